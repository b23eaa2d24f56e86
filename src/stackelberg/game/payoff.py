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

    def watched(self, deltas: Deltas, clean: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """ℓ, and how far each sentence's output moved in units of its rounding (`precision.movement`)."""


@dataclass(frozen=True)
class DivergencePayoff:
    """ℓ_v(δ, z) = D(z, f(x + δ, θ)), summed over each sentence's real positions: `(B,)`."""

    answer: Callable[[Deltas], Tensor]  # δ → the logits at x + δ
    compare: Callable[[Tensor, Tensor], Tensor]  # (z, logits) → D, (B,)
    movement: Callable[[Tensor, Tensor], Tensor]  # (z, logits) → rounding units, (B,)
    per_sentence: bool = True

    def __call__(self, deltas: Deltas, clean: Tensor | None) -> Tensor:
        """`(B,)`."""
        assert clean is not None
        return self.compare(clean, self.answer(deltas))

    def watched(self, deltas: Deltas, clean: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """With the movement of the same pass."""
        assert clean is not None
        reply = self.answer(deltas)
        return self.compare(clean, reply), self.movement(clean, reply)


@dataclass(frozen=True)
class LabelPayoff:
    """ℓ(δ) = the model's own loss at x + δ, summed over the batch: `(1,)`."""

    loss: Callable[[Deltas], Tensor]
    per_sentence: bool = False

    def __call__(self, deltas: Deltas, clean: Tensor | None) -> Tensor:
        """`(1,)`."""
        return self.loss(deltas)[None]

    def watched(self, deltas: Deltas, clean: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The slope of a label loss does not vanish at δ = 0, so nothing needs watching."""
        return self(deltas, clean), None
