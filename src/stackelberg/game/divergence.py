"""Divergences D(P, Q) between a clean output P and a perturbed output Q, summed over a sentence.

Outputs come as rows `(B, T, C)`: T positions (1 for a sentence-level task) of C logits or values, with a
mask `(B, T)` of the positions that count. All return `(B,)`: the sum over a sentence's real positions.
Distributions are compared through log-probabilities in at least float32, and nothing is detached here.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import softplus
from torch.utils.checkpoint import checkpoint

# More logits than this are compared in slices of positions, each recomputed in the backward pass, so that
# a vocabulary of 50,000 does not keep several float32 copies of itself alive.
SLICE_ELEMENTS = 2**25


def kl(p: Tensor, q: Tensor) -> Tensor:
    """KL(P ‖ Q) = Σ_c p_c (log p_c − log q_c), `(..., C)` logits to `(...)`."""
    log_p, log_q = p.log_softmax(-1), q.log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def symmetric_kl(p: Tensor, q: Tensor) -> Tensor:
    """KL(P ‖ Q) + KL(Q ‖ P) = Σ_c (p_c − q_c)(log p_c − log q_c): factor 1, twice KL near P = Q."""
    log_p, log_q = p.log_softmax(-1), q.log_softmax(-1)
    return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1)


def half_symmetric_kl(p: Tensor, q: Tensor) -> Tensor:
    """½ KL(P ‖ Q) + ½ KL(Q ‖ P), as in R-Drop."""
    return symmetric_kl(p, q) / 2


def js(p: Tensor, q: Tensor) -> Tensor:
    """½ KL(P ‖ M) + ½ KL(Q ‖ M) with M = (P + Q) / 2: Jensen–Shannon, a quarter of KL near P = Q."""
    log_p, log_q = p.log_softmax(-1), q.log_softmax(-1)
    # log(P + Q) as a softplus: the second derivative of `logaddexp` is NaN where the two are far apart.
    log_m = log_p + softplus(log_q - log_p, threshold=40) - math.log(2)
    return (log_p.exp() * (log_p - log_m) + log_q.exp() * (log_q - log_m)).sum(-1) / 2


def mse(p: Tensor, q: Tensor) -> Tensor:
    """Σ_c (p_c − q_c)²: the squared difference of the outputs themselves."""
    return (p - q).square().sum(-1)


DIVERGENCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "kl": kl,
    "symmetric_kl": symmetric_kl,
    "half_symmetric_kl": half_symmetric_kl,
    "js": js,
    "mse": mse,
}


def per_sentence(name: str, clean: Tensor, perturbed: Tensor, mask: Tensor) -> Tensor:
    """The named divergence of rows `(B, T, C)`, summed over the positions of `mask`: `(B,)`."""
    rowwise = DIVERGENCES[name]
    clean, perturbed = _at_least_float32(clean), _at_least_float32(perturbed)
    if clean.numel() <= SLICE_ELEMENTS or torch._C._functorch.maybe_current_level() is not None:
        rows = rowwise(clean, perturbed)
    else:
        width = max(1, SLICE_ELEMENTS // (clean.shape[0] * clean.shape[2]))
        rows = torch.cat(
            [
                checkpoint(rowwise, p, q, use_reentrant=False, preserve_rng_state=False)
                for p, q in zip(clean.split(width, 1), perturbed.split(width, 1), strict=True)
            ],
            1,
        )
    # where, not a product: a pad's logits may be anything, even infinite
    return torch.where(mask, rows, torch.zeros_like(rows)).sum(-1)


def _at_least_float32(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
