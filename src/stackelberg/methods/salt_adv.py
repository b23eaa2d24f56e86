"""SALT-Adv: the Stackelberg game played on the label loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..game.payoff import Payoff
from ..game.round import Round
from ..game.settings.climbing import Anticipating
from .salt import AdversarialGame


@dataclass(kw_only=True, eq=False)
class SALTAdv(Anticipating, AdversarialGame):
    """F = L + (α/N) Σ ℓ(f(x + δ^K(θ)), y): both players look at the labels, and the leader anticipates."""

    name: ClassVar[str] = "salt-adv"

    def check(self, round: Round) -> None:
        """Labels."""
        super().check(round)
        round.need_labels("this method's adversary climbs on the label loss")

    def payoff(self, round: Round) -> Payoff:
        """ℓ = the task loss at x + δ."""
        return round.label_loss()
