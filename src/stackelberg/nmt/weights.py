"""A model's weights in one file, and the mean of several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from stackelberg.errors import needs
from stackelberg.storage import write_whole


def save_weights(model: nn.Module, path: Path) -> None:
    """Every parameter once, however often it is shared; the file is there whole or not at all."""
    with needs("safetensors", extra="hf"):
        from safetensors.torch import save

    write_whole(path, save({name: p.detach().contiguous().cpu() for name, p in model.named_parameters()}))


@torch.no_grad()
def set_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Into the parameters as they are, so that what holds on to them goes on doing so."""
    for name, parameter in model.named_parameters():
        parameter.copy_(weights[name])


def load_weights(path: Path) -> dict[str, Tensor]:
    """What `save_weights` wrote."""
    with needs("safetensors", extra="hf"):
        from safetensors.torch import load_file

    found: dict[str, Tensor] = load_file(str(path))
    return found


def averaged(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of several models' weights, one file in memory at a time."""
    sums: dict[str, Tensor] = {}
    for path in paths:
        for name, weight in load_weights(path).items():
            sums[name] = sums[name] + weight.double() if name in sums else weight.double()
    return {name: (total / len(paths)).float() for name, total in sums.items()}
