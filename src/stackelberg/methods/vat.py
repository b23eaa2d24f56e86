"""VAT: virtual adversarial training (Miyato et al., 2016), appendix A of the SALT paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..game.payoff import Payoff
from ..game.round import Round
from ..game.settings import Diverging
from .salt import AdversarialGame


@dataclass(kw_only=True, eq=False)
class VAT(Diverging, AdversarialGame):
    """SALT's game without the leader–follower interaction: δ^K is a constant to the leader.

    Needs no labels for its regularizer, so it takes unlabelled batches too.
    """

    name: ClassVar[str] = "vat"

    def payoff(self, round: Round) -> Payoff:
        """ℓ_v = D(f(x, θ) ‖ f(x + δ, θ))."""
        return round.divergence(self.divergence_for(round), self.detach_target)
