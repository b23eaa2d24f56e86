"""The follower's start δ⁰: noise that is a pure function of (seed, step, example, side, token, coordinate).

A counter is hashed instead of a generator being advanced, so that resuming needs no state, any number of
ranks or micro-batches draws the same noise for an example, and padding a batch changes nothing.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

NoiseName = Literal["normal", "uniform", "zero"]
NOISES: tuple[NoiseName, ...] = ("normal", "uniform", "zero")

_MASK = 0xFFFFFFFF


def unit_noise(
    kind: NoiseName, shape: torch.Size, index: Tensor, *, seed: int, step: int | Tensor, side: str
) -> Tensor:
    """Noise `(B, L, d)` of mean 0 and standard deviation 1, float32, on the device of `index`.

    `index` `(B,)` holds each example's global number within the step; `side` names the perturbed side.
    """
    _, length, width = shape
    if kind == "zero":
        return torch.zeros(shape, device=index.device)
    salt = seed ^ _scramble_int(int.from_bytes(side.encode()))
    if isinstance(step, Tensor):  # on the device, where a captured graph reads it anew at every step
        key = _scramble(_scramble(step + 1) ^ (salt & _MASK))
        key = key if 0 <= salt <= _MASK else _scramble(key ^ ((salt >> 32) & _MASK))
    else:
        key = torch.full_like(index, _scramble_int(salt ^ _scramble_int(step + 1)))
    key = _scramble(_scramble(index & _MASK) ^ _scramble(index >> 32) ^ key)  # (B,)
    token = _scramble(_scramble(torch.arange(length, device=index.device)) ^ key[:, None])  # (B, L)
    word = _scramble(torch.arange(width, device=index.device) * 0x9E3779B9 & _MASK)  # (d,)
    bits = _scramble(token[:, :, None] ^ word)  # (B, L, d)
    uniform = ((bits >> 9).float() + 0.5) * 2.0**-23  # in (0, 1): with one bit more, float32 would round to 1
    if kind == "uniform":
        return (2 * uniform - 1) * math.sqrt(3)
    return torch.erfinv(2 * uniform - 1) * math.sqrt(2)


def _scramble(x: Tensor) -> Tensor:
    """A bijection of 32-bit words with good avalanche (C. Wellons, lowbias32); `x` int64 in [0, 2³²)."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D & _MASK
    x = x ^ (x >> 15)
    x = x * 0x846CA68B & _MASK
    return x ^ (x >> 16)


def _scramble_int(x: int) -> int:
    """The same for a Python integer of any size."""
    low = int(_scramble(torch.tensor(x & _MASK)))
    return low if 0 <= x <= _MASK else _scramble_int(low ^ ((x >> 32) & _MASK))
