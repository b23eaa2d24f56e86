"""Toy: the label loss once more, on embeddings that one signed step has moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stackelberg.game.ascent import AscentName
from stackelberg.game.ball import Norm
from stackelberg.game.payoff import Payoff
from stackelberg.game.round import Round
from stackelberg.methods.salt import AdversarialGame


@dataclass(kw_only=True, eq=False)
class Toy(AdversarialGame):
    """F = L + α L(x + δ), with δ one signed step on the label loss."""

    name: ClassVar[str] = "toy"

    ascent: AscentName = "sign"
    norm: Norm = "linf"

    def check(self, round: Round) -> None:
        """Labels."""
        super().check(round)
        round.need_labels("the adversary climbs on the loss of them")

    def payoff(self, round: Round) -> Payoff:
        """ℓ = the task loss at x + δ."""
        return round.label_loss()
