"""The Bregman proximal point of SMART: a momentum copy θ̃ of the parameters, and the model wearing it.

Under FSDP2 the copy lies in shards as the parameters do, and is whole only while it is worn or saved.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..errors import ModelError
from .shards import full, like


class MomentumCopy:
    """θ̃ ← (1 − β) θ + β θ̃ after each optimizer step; kept in at least float32, for trained parameters only."""

    def __init__(self) -> None:
        """Empty until it has seen a model."""
        self.weights: dict[str, Tensor] = {}

    def follow(self, core: nn.Module) -> None:
        """Start at θ, unless a checkpoint was loaded."""
        parameters = dict(_named(core))
        unknown = set(self.weights) - set(parameters)
        if unknown:
            raise ModelError(f"the saved momentum copy holds {sorted(unknown)[0]!r}, which this model does not have")
        for name, p in parameters.items():
            if not p.requires_grad:
                continue
            if name not in self.weights:
                self.weights[name] = p.detach().to(torch.promote_types(p.dtype, torch.float32), copy=True)
            self.weights[name] = like(self.weights[name], p)

    @torch.no_grad()
    def move(self, core: nn.Module, momentum: float) -> None:
        """One step towards the parameters."""
        for name, p in _named(core):
            if name in self.weights:
                self.weights[name].lerp_(p.detach().to(self.weights[name]), 1 - momentum)

    @contextmanager
    def worn_by(self, core: nn.Module) -> Iterator[None]:
        """Inside, the model computes with θ̃; tied parameters stay tied."""
        copies = {
            id(p): nn.Parameter(full(self.weights[name]).to(p), requires_grad=False)
            for name, p in _named(core)
            if name in self.weights
        }
        worn = [
            (module, name, p)
            for module in core.modules()
            for name, p in module._parameters.items()
            if p is not None and id(p) in copies
        ]
        try:
            for module, name, p in worn:
                setattr(module, name, copies[id(p)])
            yield
        finally:
            for module, name, p in worn:
                setattr(module, name, p)


def _named(core: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Parameters by the names they have where nothing is compiled."""
    return ((name.replace("_orig_mod.", ""), p) for name, p in core.named_parameters())
