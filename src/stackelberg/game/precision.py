"""What each working precision can resolve: whose derivative to trust, how far to step, how much to scale."""

from __future__ import annotations

import torch
from torch import Tensor

from .injection import Deltas

# Half of float16's gradients at a small σ are below its smallest number; ℓ is scaled by this before it is
# differentiated, and the gradient divided in float32. It halves whenever a gradient overflows.
FLOAT16_SCALE = 2.0**14


def trusts(precision: str, values: Tensor, g: Deltas) -> Tensor:
    """(B,) bool."""
    batch = next(iter(g.values())).shape[0]
    return torch.ones(batch, dtype=torch.bool, device=values.device)


DIFFERENCE_RADIUS = {"float64": 1e-5, "float32": 1e-2, "tf32": 1e-1, "bfloat16": 1e-1, "float16": 1e-1}
