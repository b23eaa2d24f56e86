"""What a working precision can resolve: whose gradient to trust, how far to step, how much to scale.

The pull-back of a normalised step is η (I − ĝ ĝᵀ) / ‖g‖. Where a sentence's output hardly moves, g is rounding
noise, and 1 / ‖g‖ makes that noise the largest thing in the batch. So each sentence's movement is measured in
units of what rounding alone does to its output; below `TRUSTED` units it keeps its step, but its share of the
interaction is left out and the report counts it. The unit is a sentence's own, never relative to its batch:
a micro-batch guards exactly the sentences that the whole batch would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .divergence import SLICE_ELEMENTS
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


# What is left of a logit's rounding where the head computes in float32: that of the hidden states, averaged.
HIDDEN_SHARE = 2.0**-4


def unit_rounding(precision: str, precise_head: bool) -> float:
    """The relative error of a logit in this precision."""
    return SPACING[precision] / 2 * (HIDDEN_SHARE if precise_head else 1)


@torch.no_grad()
def movement(clean: Tensor, reply: Tensor, mask: Tensor, rounding: float, distributions: bool) -> Tensor:
    """How far each sentence's output moved, in units of its own rounding: `(B,)`.

    Rows are `(B, T, C)` logits, or values where not `distributions`. Logits of size |z| are known to about
    `rounding` · |z|, which moves their probabilities by that times Σ p (1 − p); a probability itself is computed
    in float32. Positions of a sentence are averaged; large vocabularies are gone through in slices.
    """
    width = max(1, SLICE_ELEMENTS // max(1, clean.shape[0] * clean.shape[2]))
    moved = unit = torch.zeros((), device=clean.device)
    for z, answer, real in zip(clean.split(width, 1), reply.split(width, 1), mask.split(width, 1), strict=True):
        m, u = _moved(z, answer, rounding, distributions)
        moved = moved + torch.where(real, m, 0).sum(-1)
        unit = unit + torch.where(real, u, 0).sum(-1)
    return moved / unit.clamp_min(torch.finfo(unit.dtype).tiny)


def _moved(clean: Tensor, reply: Tensor, rounding: float, distributions: bool) -> tuple[Tensor, Tensor]:
    """Movement and rounding unit of each position, (B, T)."""
    clean = clean.to(torch.promote_types(clean.dtype, torch.float32))
    reply = reply.to(clean.dtype)
    if not distributions:
        return (clean - reply).abs().sum(-1), rounding * (clean.abs().amax(-1) + 0.1)
    p, q = clean.softmax(-1), reply.softmax(-1)
    # A masked class's huge logit rounds nothing that matters. Small logits still come from terms that are not.
    size = torch.where(p > 1e-6, clean.abs(), 0).amax(-1) + 0.1
    unit = rounding * size * (p * (1 - p)).sum(-1) + torch.finfo(p.dtype).eps
    return (p - q).abs().sum(-1), unit


@dataclass
class InnerScale:
    """What ℓ is multiplied by before it is differentiated, and its gradient divided by in float32.

    Half of float16's gradients are below its smallest number at small δ. Like a gradient scaler's, the scale
    halves when a gradient or a product overflows, which is then left out, and grows again after a while; all of
    it on the device, which is not waited for. In other precisions it is 1.
    """

    value: Tensor
    good: Tensor  # how many finite ones in a row
    active: bool

    GROWTH_INTERVAL = 2000

    @classmethod
    def at(cls, precision: str, device: torch.device, saved: Sequence[float] | None = None) -> InnerScale:
        """2¹⁴ for float16, or where a checkpoint's `state` was."""
        active = precision == "float16"
        value, good = saved or (2.0**14 if active else 1.0, 0.0)
        return cls(torch.full((), value, device=device), torch.full((), good, device=device), active)

    def state(self) -> list[float]:
        """For a checkpoint."""
        return [float(self.value), float(self.good)]

    def unscale(self, gradients: Deltas) -> tuple[Deltas, Tensor]:
        """The true gradients, 0 where they overflowed; and whether all were finite, a bool on the device."""
        finite = self.watch(list(gradients.values()))
        scale = torch.where(finite, self.value, 1)
        true = {side: torch.where(finite, g / scale, torch.zeros_like(g)) for side, g in gradients.items()}
        self.adapt(finite)
        return true, finite

    def watch(self, found: Sequence[Tensor | None]) -> Tensor:
        """Whether all of these are finite, a bool on the device."""
        return torch.stack([torch.isfinite(x).all() for x in found if x is not None]).all()

    def adapt(self, finite: Tensor) -> None:
        """Halve after an overflow, double after `GROWTH_INTERVAL` finite ones."""
        if self.active:
            self.good = torch.where(finite, self.good + 1, 0)
            grown = torch.where(self.good >= self.GROWTH_INTERVAL, self.value * 2, self.value)
            self.good = torch.where(self.good >= self.GROWTH_INTERVAL, 0, self.good)
            self.value = torch.where(finite, grown, self.value / 2).clamp(1.0, 2.0**16)
