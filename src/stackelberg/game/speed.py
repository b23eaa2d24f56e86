"""How a game's passes are run: eagerly, with compiled layers, or as one captured CUDA graph a shape."""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from .capture import CaptureError, Input, Recording, Static
from .layers import CompiledLayers
from .obstacles import Obstacle
from .twice import Compiler, inductor

Mode = Literal["auto", "eager", "compiled", "graph"]
MODES: tuple[Mode, ...] = ("auto", "eager", "compiled", "graph")

# Compiling and capturing a shape takes 10 to 40 s, and saves about 0.1 s a step where launching kernels is what takes
# the time. So `auto` waits until a shape has taken about as long eagerly: no run is much longer than the better choice
# would have made it, and a short one compiles nothing.
PATIENCE = 100

GRAPHS = 24  # how many shapes of one model are captured; more are played with compiled layers

log = logging.getLogger("stackelberg")


@dataclass(eq=False)
class Captured:
    """What was compiled and captured of one model."""

    layers: CompiledLayers
    pool: Any = None
    recordings: dict[Hashable, Recording] = field(default_factory=dict)
    seen: Counter[Hashable] = field(default_factory=Counter)  # how often a shape has come
    notes: dict[Hashable, Any] = field(default_factory=dict)  # what a recording's tensors mean
    gradients: dict[nn.Parameter, Tensor] = field(default_factory=dict)  # where every recording leaves them
    pending: ref[Pending] | None = None  # gradients of the last replay that `backward` has not fetched yet


@dataclass(eq=False)
class Pending:
    """The gradients of one replay, until they are asked for."""

    gradients: list[Tensor | None]

    def keep(self) -> None:
        """Copy them: another replay is about to write there."""
        self.gradients = [None if g is None else g.clone() for g in self.gradients]


class Speed:
    """Chooses, once for a model, and keeps what was compiled and captured."""

    def __init__(self, mode: Mode, compiler: Compiler = inductor) -> None:
        """Nothing is compiled before the first step."""
        self.mode = mode
        self.compiler = compiler
        self._models: WeakKeyDictionary[nn.Module, Captured] = WeakKeyDictionary()
        self._said: set[str] = set()

    def choose(self, obstacles: Callable[[], Sequence[Obstacle]], device: torch.device) -> Mode:
        """The mode of a step."""
        if self.mode == "eager":
            return "eager"
        wanted: Mode = "compiled" if self.mode == "compiled" else "graph"
        if wanted == "graph" and not self.can_capture(device):
            self._say(f"mode={self.mode!r} plays eagerly: CUDA graphs need a GPU, the model is on {device.type}")
            return "eager"
        for why, instead in obstacles():
            if instead == "eager" or wanted == "graph":
                self._say(f"mode={self.mode!r} plays with mode={instead!r}: {why}")
                return instead
        if wanted == "graph" and self.mode == "auto":
            self._say(
                "mode='auto' chose captured CUDA graphs with compiled layers, one graph for each shape of a batch that "
                f"has come {PATIENCE} times; until then no graph"
            )
        return wanted

    def is_worth(self, core: nn.Module, form: Hashable, counts: bool) -> bool:
        """Whether calls of this form are worth compiling and capturing; only `auto` waits. `counts` this call too."""
        if self.mode != "auto":
            return True
        seen = self.of(core).seen
        times = seen[form] + 1
        if counts:
            seen[form] = times
        return times >= PATIENCE

    def compile(self, device: torch.device) -> None:
        """Asked for compiled passes in another way than by `mode`; on a GPU `auto` compiles of itself."""
        if self.mode == "auto" and not self.can_capture(device):
            self.mode = "compiled"

    def can_capture(self, device: torch.device) -> bool:
        """Only a GPU's work can be."""
        return device.type == "cuda"

    def of(self, core: nn.Module) -> Captured:
        """What is kept of this model."""
        if core not in self._models:
            self._models[core] = Captured(CompiledLayers(core, self.compiler))
        return self._models[core]

    def forget(self) -> None:
        """Capture anew: tensors that the graphs read were replaced."""
        self._models = WeakKeyDictionary()

    def recording(
        self,
        kept: Captured,
        key: Hashable,
        function: Callable[[Static], Tensor],
        inputs: Mapping[str, Input],
        device: torch.device,
    ) -> Recording | None:
        """The recording of this key; None where there are too many, or it cannot be made."""
        if key in kept.recordings:
            return kept.recordings[key]
        if len(kept.recordings) >= GRAPHS:
            self._say(f"{GRAPHS} shapes of batches are captured; further ones are played with mode='compiled'")
            return None
        try:
            kept.recordings[key] = Recording(function, inputs, device, kept.pool)
        except CaptureError as error:
            self.give_up("compiled", str(error))
            return None
        kept.pool = kept.recordings[key].pool
        log.info("captured graph %d, %.2f GiB", len(kept.recordings), kept.recordings[key].bytes / 2**30)
        return kept.recordings[key]

    def give_up(self, instead: Mode, why: str) -> None:
        """From now on another mode."""
        self._say(f"mode={self.mode!r} plays with mode={instead!r}: {why}", loud=True)
        self.mode = instead

    def _say(self, what: str, loud: bool = False) -> None:
        if what in self._said:
            return
        self._said.add(what)
        if loud or (self.mode in ("graph", "compiled") and "plays" in what):
            warnings.warn(what, stacklevel=4)
        else:
            log.info(what)
