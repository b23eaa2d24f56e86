"""A step's weights in the precision that autocast multiplies in: cast once, not again in every pass."""

from __future__ import annotations

import torch
from torch import Tensor


class Casts:
    """One step's. What several passes owe a weight meets at its cast, as under autocast's own cache."""

    def __init__(self) -> None:
        """Nothing is cast before it is asked for."""
        self._made: dict[tuple[int, torch.dtype], tuple[Tensor, int, Tensor]] = {}

    def of(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """`weight` in `dtype`, in autograd's graph."""
        kept = self._made.get((id(weight), dtype))
        if kept is None or kept[1] != weight._version:  # a method may move θ within a step
            with torch.enable_grad():
                cast = weight.to(dtype)
            kept = self._made[id(weight), dtype] = (weight, weight._version, cast)
        return kept[2]
