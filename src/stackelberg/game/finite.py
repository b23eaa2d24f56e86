"""No optimizer step on a non-finite objective, without stalling the device.

On a CPU the objective is looked at once it is there. On a GPU its flag is copied while the backward pass is
being launched and read when that has been: by then the copy is long done, and `loss.backward()` raises before
`optimizer.step()` can be reached. Ranks agree on the flag, so that all of them raise or none; under DDP they do so
where they reduce their gradients, which they may reach after unequal numbers of micro-batches. Under float16 the
gradient scaler skips the step.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable

from ..errors import NonFiniteLossError
from .shards import Shards

_unsaid: WeakKeyDictionary[nn.Module, Tensor] = WeakKeyDictionary()  # flags of DDP's micro-batches under no_sync


class FiniteFlag:
    """Collects whether every value it is shown is finite."""

    def __init__(self, model: nn.Module, precision: str) -> None:
        """`model` as the user gave it, whose ranks agree on the flag. `precision` is that of the passes."""
        self.active = precision != "float16"
        self.model = model
        self.groups: list[Any] = Shards(model).process_groups
        self.waits = False  # for a later micro-batch, at which the ranks meet
        self.flag: Tensor | None = None
        if isinstance(model, nn.parallel.DistributedDataParallel):
            self.waits = not model.require_backward_grad_sync
            joining = model._join_config.enable  # a rank that has run out of batches answers DDP's own calls only
            self.groups = [] if joining else [model.process_group]

    def show(self, value: Tensor) -> None:
        """Take note of one value."""
        finite = torch.isfinite(value.detach()).all()
        self.flag = finite if self.flag is None else self.flag & finite

    def raise_now(self) -> None:
        """Wait for the flag, and raise if anything was not finite."""
        if not self.active or self.flag is None or self._held_back():
            return
        if not bool(self._agreed()):
            raise NonFiniteLossError(_MESSAGE)

    def guard(self, objective: Tensor) -> Tensor:
        """Raise now (CPU), or from `objective.backward()` once all of it is launched (GPU)."""
        self.show(objective)
        if not self.active:
            return objective
        if objective.device.type != "cuda":
            self.raise_now()
            return objective
        if self._held_back():
            return objective
        host = self._agreed().to("cpu", non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()

        def look() -> None:
            copied.synchronize()
            if not bool(host):
                raise NonFiniteLossError(_MESSAGE)

        def at_the_end(_: Tensor) -> None:
            # Queued twice, so that it comes after what DDP and FSDP2 queue meanwhile to finish their reductions:
            # a caller who goes on after this error must find them ready for the next batch.
            queue = Variable._execution_engine.queue_callback
            queue(lambda: queue(look))

        if objective.requires_grad:
            objective.register_hook(at_the_end)
        return objective

    def _held_back(self) -> bool:
        """Keep the flag for the micro-batch at which the ranks meet, if this is not it."""
        assert self.flag is not None
        earlier = _unsaid.pop(self.model, None)
        if earlier is not None:
            self.flag = self.flag & earlier
        if self.waits:
            _unsaid[self.model] = self.flag
        return self.waits

    def _agreed(self) -> Tensor:
        assert self.flag is not None
        if not self.groups:
            return self.flag
        everywhere = self.flag.to(torch.int32)
        for group in self.groups:
            dist.all_reduce(everywhere, op=dist.ReduceOp.MIN, group=group)
        return everywhere.bool()


_MESSAGE = (
    "the objective is not finite (NaN or infinity), so no step was taken on it; lower the learning rate or the "
    "method's weight, or look at the batch that caused it"
)
