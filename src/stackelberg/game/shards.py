"""FSDP2: parameters that lie in shards across ranks, and are whole only while they are needed.

Its hooks gather each layer for each pass and free it afterwards, which is all that first derivatives ask for.
A derivative of a gradient asks for more: the second pass over a graph needs the parameters of the first, and
the leader's share of it is handed to autograd with the parameters as inputs. So for those methods all layers
stay whole while the game's own passes run; in between, and for the optimizer, they lie in shards as always.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable

from ..errors import ModelError


class Shards:
    """The parameters of a model that `fully_shard` has cut up; nothing at all where it has not."""

    def __init__(self, model: nn.Module) -> None:
        """Look for them."""
        fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # not imported, not used
        self._modules = [] if fsdp is None else [m for m in model.modules() if isinstance(m, fsdp.FSDPModule)]
        states = [module._get_fsdp_state() for module in self._modules]
        self._groups: list[Any] = []  # of parameters that are gathered together
        for state in states:
            several = getattr(state, "_fsdp_param_groups", None)  # torch 2.11 knows one at most
            self._groups += several if several is not None else [g for g in [state._fsdp_param_group] if g]
        if any(hasattr(group.offload_policy, "pin_memory") for group in self._groups):
            raise ModelError(
                "FSDP2 with CPUOffloadPolicy keeps the parameters on another device than the passes run on, which the "
                "game does not know how to follow; leave offload_policy out"
            )

    @property
    def compute_dtype(self) -> torch.dtype | None:
        """What its mixed precision policy casts the parameters to for each pass; None if it has none."""
        dtype: torch.dtype | None = self._groups[0].mp_policy.param_dtype if self._groups else None
        return dtype

    @property
    def process_groups(self) -> list[Any]:
        """What to reduce over, one after the other, to reach every rank that shares these parameters."""
        if not self._groups:
            return []
        mesh = self._groups[0].mesh_info.mesh
        return [mesh.get_group(dim) for dim in range(mesh.ndim)]

    def store(self) -> None:
        """Back to the shards, which are the parameters that the optimizer steps on. Asks nothing of other ranks."""
        for group in self._groups:
            group.__dict__.pop("reshard", None)
        for module in self._modules:
            module.reshard()

    @contextmanager
    def whole(self, needed: bool = True) -> Iterator[None]:
        """Inside, if `needed`, every parameter is whole, an ordinary tensor, and stays so after each pass."""
        try:
            if needed:
                self._gather()
            yield
        finally:
            if needed:
                self.store()

    def whole_in_backward(self, objective: Tensor) -> Tensor:
        """`objective`, in whose backward pass every parameter is whole."""

        def gather(_: Tensor) -> None:
            self._gather()
            Variable._execution_engine.queue_callback(self.store)

        if self._groups and objective.requires_grad:
            objective.register_hook(gather)
        return objective

    def _gather(self) -> None:
        for module in self._modules:
            module.unshard()
        for group in self._groups:
            # What FSDP calls after each forward and backward pass. Its two settings for that cannot be read
            # back, so that they could not be restored to what the user chose.
            group.reshard = _stay


def _stay() -> None:
    return


def full(x: Tensor) -> Tensor:
    """The whole of a tensor that may lie in shards; every rank must ask."""
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def like(x: Tensor, pattern: Tensor) -> Tensor:
    """A whole tensor, known to every rank, cut up as `pattern` is."""
    if not hasattr(pattern, "device_mesh") or hasattr(x, "device_mesh"):
        return x.to(pattern.device)
    from torch.distributed.tensor import distribute_tensor

    shared: Any = pattern
    return distribute_tensor(x.to(pattern.device), shared.device_mesh, shared.placements, src_data_rank=None)
