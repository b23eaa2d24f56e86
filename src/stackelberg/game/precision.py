"""What a working precision can resolve: whose gradient to trust, how far to step, how much to scale.

The pull-back of a normalised step is η (I − ĝ ĝᵀ) / ‖g‖. Where a sentence's output hardly moves, g is rounding
noise, and 1 / ‖g‖ makes that noise the largest thing in the batch. So each sentence's movement is measured in
units of what rounding alone does to its output; below `TRUSTED` units it keeps its step, but its share of the
interaction is left out and the report counts it. The unit is a sentence's own, never relative to its batch:
a micro-batch guards exactly the sentences that the whole batch would.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .injection import Deltas

# The relative spacing of numbers in what the model computes its outputs with.
SPACING = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "tf32": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float16": 2.0**-10,
}

# Movement below this many rounding units is noise; `benchmarks/fidelity.py` shows what it separates.
TRUSTED = 2.0

# How far `differences` moves each sentence: rounding grows as 1/r, curvature as r².
DIFFERENCE_RADIUS = {"float64": 1e-5, "float32": 1e-2, "tf32": 1e-1, "bfloat16": 1e-1, "float16": 1e-1}
FAITHFUL_DIFFERENCES = ("float64", "float32")


def movement(clean: Tensor, reply: Tensor, mask: Tensor, precision: str, distributions: bool) -> Tensor:
    """How far each sentence's output moved, in units of its own rounding: `(B,)`.

    Rows are `(B, T, C)` logits, or values where not `distributions`. Logits of size |z| are known to about
    spacing · |z|, which moves their probabilities by that times Σ p (1 − p); a probability itself is computed
    in float32. Positions of a sentence are averaged.
    """
    clean, reply = clean.detach(), reply.detach()
    clean, reply = clean.to(torch.promote_types(clean.dtype, torch.float32)), reply.to(clean.dtype)
    size = clean.abs().amax(-1) + 0.1  # logits that happen to be small still come from terms that are not
    if distributions:
        p, q = clean.softmax(-1), reply.to(clean.dtype).softmax(-1)
        moved = (p - q).abs().sum(-1)
        unit = SPACING[precision] / 2 * size * (p * (1 - p)).sum(-1) + torch.finfo(p.dtype).eps
    else:
        moved = (clean - reply).abs().sum(-1)
        unit = SPACING[precision] / 2 * size
    count = mask.sum(-1).clamp_min(1)
    return torch.where(mask, moved, 0).sum(-1) / torch.where(mask, unit, 0).sum(-1).clamp_min(1e-30) * (count > 0)


@dataclass
class InnerScale:
    """What ℓ is multiplied by before it is differentiated, and its gradient divided by in float32.

    Half of float16's gradients are below its smallest number at small δ. The scale halves, without the device
    being waited for, whenever a gradient overflows; that step's sentences are not moved and not trusted.
    """

    value: Tensor

    @classmethod
    def at(cls, precision: str, device: torch.device) -> InnerScale:
        """1, but for float16."""
        return cls(torch.tensor(2.0**14 if precision == "float16" else 1.0, device=device))

    def unscale(self, gradients: Deltas) -> tuple[Deltas, Tensor]:
        """The true gradients, 0 where they overflowed; and whether all were finite, a bool on the device."""
        finite = torch.stack([torch.isfinite(g).all() for g in gradients.values()]).all()
        true = {side: torch.where(finite, g / self.value, torch.zeros_like(g)) for side, g in gradients.items()}
        self.value = torch.where(finite, self.value, self.value / 2)
        return true, finite
