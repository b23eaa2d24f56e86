"""What happened in one step of the game, without making the device wait for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from .ball import Ball
from .follower import Trajectory
from .injection import Deltas


@dataclass
class Report:
    """Diagnostics of one step. Tensors stay on the device until `numbers()` is asked for."""

    loss: Tensor | None = None  # F
    task_loss: Tensor | None = None  # L
    divergence: Tensor | None = None  # Σ ℓ / N, before α
    start_norm: Tensor | None = None  # ‖δ⁰‖₂, mean over sentences and sides
    start_ratio: Tensor | None = None  # ‖δ⁰‖/ε in the ball's own norm, mean over balls
    final_norm: Tensor | None = None  # ‖δ^K‖₂
    radius: Tensor | None = None  # ε, mean
    surface: Tensor | None = None  # share of balls whose δ^K lies on the surface
    guarded: Tensor | None = None  # share of (sentence, step) pairs whose interaction was left out as noise
    interaction_norm: Tensor | None = None  # ‖interaction term‖₂ over θ, only when asked for
    skipped: Tensor | None = None  # 1 where a gradient that was not finite left the parameters alone

    def describe(self, balls: Mapping[str, Ball], masks: Deltas, first: Deltas, last: Deltas) -> None:
        """Fill in what is known of a perturbation that went from `first` to `last`."""
        self.start_norm = _mean_norm(first.values())
        self.final_norm = _mean_norm(last.values())
        on_surface, radii, ratios = [], [], []
        for side, ball in balls.items():
            real = masks[side].amax((-2, -1) if ball.per == "sentence" else -1, keepdim=True) > 0
            on_surface.append((ball.on_surface(last[side].detach()) & real).sum() / real.sum())
            ratios.append((ball.length(first[side].detach()) / ball.radius * real).sum() / real.sum())
            radii.append((ball.radius * real.float()).sum() / real.sum())
        self.surface = torch.stack(on_surface).mean()
        self.start_ratio = torch.stack(ratios).mean()
        self.radius = torch.stack(radii).mean()

    def count_guarded(self, path: Trajectory) -> None:
        """Fill in whose interaction was left out."""
        if path.steps:
            self.guarded = 1 - torch.stack([path.trusted(k).float().mean() for k in range(path.steps)]).mean()

    @classmethod
    def of_step(cls, parts: Sequence[Report]) -> Report:
        """Of a step's micro-batches: the objectives are shares of one step's and add up, the rest is averaged."""
        shares = ("loss", "divergence")
        found = {f.name: [getattr(part, f.name) for part in parts] for f in fields(cls)}
        known = {name: torch.stack(xs) for name, xs in found.items() if all(x is not None for x in xs)}
        return cls(**{name: x.sum(0) if name in shares else x.mean(0) for name, x in known.items()})

    def numbers(self) -> dict[str, float]:
        """Everything known, as floats; this waits for the device."""
        known = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: float(value) for name, value in known.items() if value is not None}


def _mean_norm(deltas: Iterable[Tensor]) -> Tensor:
    norms = [delta.detach().float().square().sum((-2, -1)).sqrt().mean() for delta in deltas]
    return torch.stack(norms).mean()
