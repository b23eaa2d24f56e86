"""FreeLB: enhanced adversarial training for language understanding (Zhu et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..errors import one_of
from ..game.game import Play, Term
from ..game.injection import Deltas
from ..game.noise import NoiseName
from ..game.round import Round
from ..game.settings.checks import whole
from ..game.settings.climbing import Climbing
from ..game.settings.regularizing import Diverging
from ..game.space import Space

Form = Literal["original", "regularized"]


@dataclass(kw_only=True, eq=False)
class FreeLB(Diverging, Climbing):
    """The gradients of all K passes, averaged: every pass that moves δ trains the model too.

    Args:
        form: `"original"`: F = (1/K) Σ_{t<K} L(x + δ_t), no clean term and no α. `"regularized"`, as the SALT
            paper modified it: F = L + (α/NK) Σ_{t<K} ℓ_v(δ_t).
        steps: K ≥ 1.
        start_noise: uniform, as in the paper's U(−ε, ε)/√(coordinates), for which E‖δ⁰‖ = ε/√3.
    """

    name: ClassVar[str] = "freelb"

    form: Form = "original"
    steps: int = 3
    start_noise: NoiseName = "uniform"
    init_radius: float = 3**-0.5

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        whole("steps", self.steps, 1)
        one_of("form", self.form, ("original", "regularized"))

    def check(self, round: Round) -> None:
        """Labels, for the original form."""
        super().check(round)
        if self.form == "original":
            round.need_labels("FreeLB trains on the label loss unless form='regularized'")

    def play(self, round: Round) -> Play:
        """K passes, each giving a gradient on θ and, but for the last, one that moves δ."""
        original = self.form == "original"
        deltas, spaces = self._open(round) if original else self._clean(round)
        follower, start = self.follower(spaces), deltas
        states = follower.start(deltas)
        for k in range(self.steps):
            if original:
                first = round.task_loss if k == 0 else None
                mean = round.normalized(round.mean_label_loss(deltas) if first is None else first)
                unit = round.denominator(sentences=False)  # the follower's own gradient is that of the sum
            else:
                values = round.divergence(self.divergence_for(round), self.detach_target)(deltas, round.target)
                mean = self.regularizer(round, values)
                unit = round.denominator(self.by_sentence(round)) / torch.as_tensor(round.alpha).clamp_min(1e-30)
            g = yield Term(mean / self.steps, None if k == self.steps - 1 else deltas)
            if g is not None:
                g = {side: x * (unit * self.steps) for side, x in g.items()}
                with torch.no_grad():
                    moved, states = follower.move(k, deltas, g, states)
                deltas = {side: delta.requires_grad_() for side, delta in moved.items()}
        round.report.describe(follower.balls, follower.masks, start, deltas)
        if not original:
            yield Term(round.task_term())

    def _clean(self, round: Round) -> tuple[Deltas, dict[str, Space]]:
        round.clean()
        spaces = self.space(round)
        return {side: d.requires_grad_() for side, d in self.start(round, spaces).items()}, spaces

    def _open(self, round: Round) -> tuple[Deltas, dict[str, Space]]:
        """No clean pass: the first one already runs at δ₀, drawn where its embedding shows its shape."""
        deltas: Deltas = {}
        spaces: dict[str, Space] = {}

        def draw(side: str, x: Tensor) -> Tensor | None:
            if not self.moves(side):
                return None
            spaces[side] = self.space_of(round, side, x)
            deltas[side] = self.start_of(round, side, x, spaces[side]).requires_grad_()
            return deltas[side]

        round.open(draw)
        return deltas, spaces
