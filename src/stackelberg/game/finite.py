"""No optimizer step on a non-finite objective, without stalling the device.

On a CPU the objective is looked at once it is there. On a GPU its flag is copied while the backward pass is
being launched and read when that has been: by then the copy is long done, and `loss.backward()` raises before
`optimizer.step()` can be reached. Ranks agree on the flag. Under float16 the gradient scaler skips the step.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable

from ..errors import NonFiniteLossError


class FiniteFlag:
    """Collects whether every value it is shown is finite."""

    def __init__(self, model: nn.Module, precision: str) -> None:
        """`model` as the user gave it: under DDP the flag is agreed on. `precision` is that of the passes."""
        self.active = precision != "float16"
        self.shared = isinstance(model, nn.parallel.DistributedDataParallel) and dist.is_initialized()
        self.flag: Tensor | None = None

    def show(self, value: Tensor) -> None:
        """Take note of one value."""
        finite = torch.isfinite(value.detach()).all()
        self.flag = finite if self.flag is None else self.flag & finite

    def raise_now(self) -> None:
        """Wait for the flag, and raise if anything was not finite."""
        if self.active and self.flag is not None and not bool(self._agreed()):
            raise NonFiniteLossError(_MESSAGE)

    def guard(self, objective: Tensor) -> Tensor:
        """Raise now (CPU), or from `objective.backward()` once all of it is launched (GPU)."""
        self.show(objective)
        if not self.active:
            return objective
        if objective.device.type != "cuda":
            self.raise_now()
            return objective
        host = self._agreed().to("cpu", non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()

        def look() -> None:
            copied.synchronize()
            if not bool(host):
                raise NonFiniteLossError(_MESSAGE)

        if objective.requires_grad:
            objective.register_hook(lambda _: Variable._execution_engine.queue_callback(look))
        return objective

    def _agreed(self) -> Tensor:
        assert self.flag is not None
        if self.shared:
            everywhere = self.flag.to(torch.int32)
            dist.all_reduce(everywhere, op=dist.ReduceOp.MIN)
            return everywhere.bool()
        return self.flag


_MESSAGE = (
    "the objective is not finite (NaN or infinity), so no step was taken on it; lower the learning rate or the "
    "method's weight, or look at the batch that caused it"
)
