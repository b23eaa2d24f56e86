"""The follower's update rules: how a gradient g moves a perturbation δ, before the projection.

Each rule is a pure pair: `init(delta)` gives its state, `step(k, delta, gradient, state)` gives the moved
perturbation and the next state. Both are differentiable, which is all the reverse sweep asks of a rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from .ball import Ball

AscentName = Literal["sgd", "normalized", "sign", "adam"]
ASCENTS: tuple[AscentName, ...] = ("sgd", "normalized", "sign", "adam")

State = tuple[Tensor, ...]


class Ascent(Protocol):
    """What a rule must offer."""

    def init(self, delta: Tensor) -> State:
        """The state before the first step."""

    def step(self, k: int, delta: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        """The k-th step, k = 0 … K−1."""


@dataclass(frozen=True)
class Sgd:
    """δ + η g."""

    step_size: float | Tensor

    def init(self, delta: Tensor) -> State:
        """No state."""
        return ()

    def step(self, k: int, delta: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        """One step."""
        return delta + self.step_size * gradient, state


@dataclass(frozen=True)
class Normalized:
    """δ + η g / ‖g‖, in the ball's own norm and granularity (under ℓ∞ that is SMART's rule)."""

    step_size: float | Tensor
    ball: Ball

    def init(self, delta: Tensor) -> State:
        """No state."""
        return ()

    def step(self, k: int, delta: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        """One step."""
        return delta + self.step_size * self.ball.unit(gradient), state


@dataclass(frozen=True)
class Sign:
    """δ + η sign(g): steepest ascent under ℓ∞. It has no derivative, so SALT refuses it."""

    step_size: float | Tensor

    def init(self, delta: Tensor) -> State:
        """No state."""
        return ()

    def step(self, k: int, delta: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        """One step."""
        return delta + self.step_size * gradient.sign(), state


@dataclass(frozen=True)
class Adam:
    """δ + η m̂ / (√(v̂ + ε_root) + ε), with β = (0.9, 0.98) as in the paper.

    The first step of plain Adam is g / (|g| + 1e-8), whose derivative is 1e8 at small g; `eps_root` inside
    the root bounds it by 1 / √eps_root, so that coordinates below √eps_root move in proportion to g. Coordinates
    whose gradient is 0 (padding) get no derivative at all.
    """

    step_size: float | Tensor
    beta1: float = 0.9
    beta2: float = 0.98
    eps: float = 1e-8
    eps_root: float = 1e-12

    def init(self, delta: Tensor) -> State:
        """First and second moments, both 0."""
        return torch.zeros_like(delta), torch.zeros_like(delta)

    def step(self, k: int, delta: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        """One step, bias-corrected."""
        mean = self.beta1 * state[0] + (1 - self.beta1) * gradient
        square = self.beta2 * state[1] + (1 - self.beta2) * gradient.square()
        scaled_square = square / (1 - self.beta2 ** (k + 1))
        touched = scaled_square > 0
        root = (torch.where(touched, scaled_square, torch.ones_like(square)) + self.eps_root).sqrt() + self.eps
        move = torch.where(touched, mean / (1 - self.beta1 ** (k + 1)) / root, torch.zeros_like(mean))
        return delta + self.step_size * move, (mean, square)


def build(name: AscentName, step_size: float | Tensor, ball: Ball) -> Ascent:
    """The rule of that name."""
    if name == "normalized":
        return Normalized(step_size, ball)
    if name == "adam":
        return Adam(step_size)
    return Sgd(step_size) if name == "sgd" else Sign(step_size)
