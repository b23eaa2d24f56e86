"""A function of tensors recorded as a CUDA graph: launched in one go, at the price of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..errors import StackelbergError

Input = Tensor | float  # numbers are inputs too: the optimizer step, α
Static = dict[str, Tensor]

_in_use: Callable[[], bool] = torch.cuda.is_initialized
_is_capturing = torch.cuda.is_current_stream_capturing

WARM_UPS = 2  # runs before the recording, in which kernels are compiled and libraries set up


class CaptureError(StackelbergError):
    """A step does something that a graph cannot record."""


class Recording:
    """`function` at inputs of one shape. What it returns lies in the graph's own memory until the next replay."""

    def __init__(
        self,
        function: Callable[[Static], Tensor],
        inputs: Mapping[str, Input],
        device: torch.device,
        pool: Any,
    ) -> None:
        """Record it. `pool` is that of another recording: they share their memory, since one is replayed at a time."""
        self.inputs = {name: _static(x, device) for name, x in inputs.items()}
        before = torch.cuda.memory_reserved(device)
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side), _as_if_capturing():
            for _ in range(WARM_UPS):
                function(self.inputs)
        torch.cuda.current_stream(device).wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        generator = torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
        state = generator.clone_state()
        try:
            with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
                self.result = function(self.inputs)
        except RuntimeError as error:
            generator.graphsafe_set_state(state)  # the broken capture would leave it waiting for its end
            cause = error.__context__ or error  # leaving a broken capture raises again
            raise CaptureError(f"the step cannot be captured ({str(cause).splitlines()[0]})") from cause
        self.pool = self.graph.pool()
        self.bytes = torch.cuda.memory_reserved(device) - before  # of the recording and its warm-up, for good

    def replay(self, inputs: Mapping[str, Input]) -> Tensor:
        """The same function at other values."""
        for name, x in inputs.items():
            if isinstance(x, Tensor):
                self.inputs[name].copy_(x, non_blocking=True)
            else:
                self.inputs[name].fill_(x)
        self.graph.replay()
        return self.result


def capturing() -> bool:
    """Whether kernels launched now are recorded instead of run."""
    return _in_use() and _is_capturing()  # which fails where there is no GPU to ask


@contextmanager
def _as_if_capturing() -> Iterator[None]:
    """Inside, a model that asks is told that it is being captured.

    Transformers leaves a mask of ones out, unless it is captured and may not look. Kernels that a recording needs
    must have been compiled before, so the runs before it take the way that it will take.
    """
    own = torch.cuda.is_current_stream_capturing
    torch.cuda.is_current_stream_capturing = lambda: True
    try:
        yield
    finally:
        torch.cuda.is_current_stream_capturing = own


def _static(x: Input, device: torch.device) -> Tensor:
    if isinstance(x, Tensor):
        return x.detach().to(device, copy=True)
    return torch.full((), x, device=device, dtype=torch.int64 if isinstance(x, int) else torch.float32)
