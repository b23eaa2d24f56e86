"""The ball ‖δ‖ ≤ ε that the follower moves in: its norm, its projection Π and its unit vectors.

Perturbations are `(B, L, d)`. A ball belongs to a whole sentence (`per="sentence"`, as in the paper) or to
each token. Every function is differentiable, with finite derivatives at zero rows and at the surface.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Norm = Literal["l2", "linf"]
Per = Literal["sentence", "token"]

NORMS: tuple[Norm, ...] = ("l2", "linf")
PERS: tuple[Per, ...] = ("sentence", "token")


@dataclass(frozen=True)
class Ball:
    """The set {δ : ‖δ‖ ≤ radius}, one for each sentence or one for each token.

    `radius` is ε, or a tensor `(B, 1, 1)` (sentence) or `(B, L, 1)` (token) when ε is relative.
    """

    radius: float | Tensor
    norm: Norm = "l2"
    per: Per = "sentence"

    def length(self, x: Tensor) -> Tensor:
        """‖x‖ in the ball's norm: `(B, 1, 1)` per sentence, `(B, L, 1)` per token."""
        return length(x, self.norm, self.per)

    def unit(self, x: Tensor) -> Tensor:
        """x / ‖x‖ in the ball's norm; 0 / 0 is 0, with derivative 0."""
        x = x / _positive(length(x, "linf", self.per).detach())  # its size cancels, but its square could vanish
        return x * _reciprocal(self.length(x))

    def project(self, x: Tensor) -> Tensor:
        """Π: the nearest point of the ball. A point exactly on the surface is inside."""
        if self.norm == "linf":
            return x.clamp(-self.radius, self.radius)  # type: ignore[arg-type]  # both bounds tensors, or neither
        size = self.length(x)
        outside = size > self.radius
        # An inside point's size is replaced before it is divided by, or its derivative could be 0 · ∞.
        return torch.where(outside, x * (self.radius / torch.where(outside, size, torch.ones_like(size))), x)

    def on_surface(self, x: Tensor) -> Tensor:
        """Whether ‖x‖ reaches the radius, `(B, 1, 1)` or `(B, L, 1)`, bool."""
        return self.length(x) >= (1 - 1e-4) * self.radius


def length(x: Tensor, norm: Norm, per: Per) -> Tensor:
    """‖x‖, kept broadcastable: `(B, 1, 1)` per sentence, `(B, L, 1)` per token."""
    dims = (-2, -1) if per == "sentence" else (-1,)
    peak = x.abs().amax(dims, keepdim=True)
    if norm == "linf":
        return peak
    # Squares of a gradient of 1e-20 vanish in float32: measure in units of the largest coordinate.
    # The unit cancels, so treating it as a constant leaves the derivative exact.
    unit = _positive(peak).detach()
    squares = (x / unit).square().sum(dims, keepdim=True)
    positive = squares > 0  # a square root has no derivative at 0
    return unit * torch.where(positive, squares, torch.ones_like(squares)).sqrt() * positive


def _reciprocal(size: Tensor) -> Tensor:
    """1 / size; 0, with derivative 0, where size is 0."""
    return torch.where(size > 0, 1 / _positive(size), torch.zeros_like(size))


def _positive(size: Tensor) -> Tensor:
    """`size`, and 1 where it is 0."""
    return torch.where(size > 0, size, torch.ones_like(size))
