"""SMART: smoothness-inducing regularization and Bregman proximal point optimization (Jiang et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from ..game.ball import Norm
from ..game.game import Play, Term
from ..game.proximal import MomentumCopy
from ..game.round import Round
from ..game.settings.checks import number, whole
from ..game.shards import Shards, full
from .salt import VirtualGame


@dataclass(kw_only=True, eq=False)
class SMART(VirtualGame):
    """F = L + (λ/N) Σ max_δ ℓ_s(f(x, θ), f(x + δ, θ)) + (μ/N) Σ ℓ_s(f(x, θ), f(x, θ̃)).

    ℓ_s is the symmetric KL (squared difference for regression). θ̃ follows θ with momentum β after each
    optimizer step: not per micro-batch, not on steps that a gradient scaler skipped.

    Args:
        weight: λ_s, called α elsewhere in this library.
        proximal_weight: μ; 0 leaves the smoothness part alone, and no copy of θ is kept.
        momentum: β.
        later_momentum: β from `switch_step` on.
        switch_step: when. Left out, after the first tenth of all steps, as in the paper, if `plan` was told how many
            there are (trainers do), and otherwise never.
    """

    name: ClassVar[str] = "smart"
    own_divergence: ClassVar[str] = "symmetric_kl"

    norm: Norm = "linf"
    proximal_weight: float = 1.0
    momentum: float = 0.99
    later_momentum: float = 0.999
    switch_step: int | None = None
    _planned_switch: int | None = field(default=None, init=False, repr=False)
    anchor: MomentumCopy = field(default_factory=MomentumCopy, init=False, repr=False)

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        number("proximal_weight", self.proximal_weight, least=0)
        for name in ("momentum", "later_momentum"):
            number(name, getattr(self, name), least=0, most=1)
        if self.switch_step is not None:
            whole("switch_step", self.switch_step, 0)

    def play(self, round: Round) -> Play:
        """The smoothness game, and the pull towards θ̃."""
        if self.proximal_weight == 0:
            yield from super().play(round)
            return
        self.anchor.follow(round.core)
        play = super().play(round)
        yield next(play)
        with torch.no_grad(), round.shards.whole(), self.anchor.worn_by(round.core):
            anchored = round.answer({}, round.conditions.draw())
        pull = round.compare(self.divergence_for(round), False, round.target, anchored)
        yield Term(self.proximal_weight * pull.sum() / round.denominator(self.by_sentence(round)))
        yield next(play)

    def on_step(self) -> None:
        """Move θ̃."""
        core = self._core() if self._core else None
        if core is not None:
            Shards(core).store()
            switch = self._planned_switch if self.switch_step is None else self.switch_step
            switched = switch is not None and self.clock.step > switch
            self.anchor.move(core, self.later_momentum if switched else self.momentum)

    def plan(self, total_steps: int) -> None:
        """Switch to `later_momentum` after a tenth of the steps, as the paper does, unless told otherwise."""
        self._planned_switch = total_steps // 10

    def state_dict(self) -> dict[str, Any]:
        """With θ̃; under FSDP2 it is gathered, so that every rank must ask."""
        return {**super().state_dict(), "anchor": {name: full(x) for name, x in self.anchor.weights.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """With θ̃."""
        super().load_state_dict(state)
        self.anchor.weights = {name: weight.clone() for name, weight in state["anchor"].items()}
