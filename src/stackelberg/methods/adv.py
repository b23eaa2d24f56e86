"""Adv: adversarial training on the labels (Miyato et al., 2017; Sano et al., 2019 for translation)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..game.noise import NoiseName
from ..game.payoff import Payoff
from ..game.round import Round
from .salt import AdversarialGame


@dataclass(kw_only=True, eq=False)
class Adv(AdversarialGame):
    """F = L + α L(x + δ), with δ = ε g / ‖g‖ and g = ∇_x of the label loss.

    One normalised step of η = ε from δ⁰ = 0, which is exactly that δ; more `steps` make it PGD.
    """

    name: ClassVar[str] = "adv"

    start_noise: NoiseName = "zero"

    def check(self, round: Round) -> None:
        """Labels."""
        super().check(round)
        round.need_labels("this method's adversary climbs on the label loss")

    def payoff(self, round: Round) -> Payoff:
        """ℓ = the task loss at x + δ."""
        return round.label_loss()
