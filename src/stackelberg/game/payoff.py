"""What a player is paid: a function ℓ(δ, z) of the perturbation and of the clean prediction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from .injection import Deltas


class Payoff(Protocol):
    """(δ, z) → ℓ, summed to one number for each sentence `(B,)`, or for the whole batch `(1,)`."""

    @property
    def per_sentence(self) -> bool:
        """Which of the two."""

    def __call__(self, deltas: Deltas, clean: Tensor | None) -> Tensor:
        """ℓ at δ against the clean prediction z, which a payoff on labels ignores."""


@dataclass(frozen=True)
class DivergencePayoff:
    """ℓ_v(δ, z) = D(z, f(x + δ, θ)), summed over each sentence's real positions: `(B,)`."""

    answer: Callable[[Deltas], Tensor]  # δ → the logits at x + δ
    compare: Callable[[Tensor, Tensor], Tensor]  # (z, logits) → D, (B,)
    per_sentence: bool = True

    def __call__(self, deltas: Deltas, clean: Tensor | None) -> Tensor:
        """`(B,)`."""
        assert clean is not None
        return self.compare(clean, self.answer(deltas))


@dataclass(frozen=True)
class LabelPayoff:
    """ℓ(δ) = the model's own loss at x + δ, summed over the batch: `(1,)`."""

    loss: Callable[[Deltas], Tensor]
    per_sentence: bool = False

    def __call__(self, deltas: Deltas, clean: Tensor | None) -> Tensor:
        """`(1,)`."""
        return self.loss(deltas)[None]
