"""R3F: better fine-tuning by reducing representational collapse (Aghajanyan et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..game.game import Play, Term
from ..game.noise import NoiseName
from ..game.round import Round
from ..game.settings.perturbing import Perturbing
from ..game.settings.regularizing import Diverging


@dataclass(kw_only=True, eq=False)
class R3F(Diverging, Perturbing):
    """F = L + (λ/N) Σ [KL(f(x) ‖ f(x + z)) + KL(f(x + z) ‖ f(x))] with noise z and no adversary.

    R3F's U(−1e-5, 1e-5) has the standard deviation 1e-5/√3, the default of `init_std` here.
    """

    name: ClassVar[str] = "r3f"
    own_divergence: ClassVar[str] = "symmetric_kl"

    start_noise: NoiseName = "uniform"
    init_std: float | None = 1e-5 / 3**0.5

    def play(self, round: Round) -> Play:
        """One noisy pass."""
        round.clean()
        spaces = self.space(round)
        noise = self.start(round, spaces)
        round.report.describe(
            {side: s.ball for side, s in spaces.items()}, {side: s.mask for side, s in spaces.items()}, noise, noise
        )
        payoff = round.divergence(self.divergence_for(round), self.detach_target)
        yield Term(self.regularizer(round, payoff(noise, round.target)))
        yield Term(round.task_term())
