"""What speaks against playing a model by compiled layers or captured graphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from .conditions import TWICE_DIFFERENTIABLE
from .huggingface import bare
from .task import Batch


class Obstacle(NamedTuple):
    """One reason."""

    why: str
    instead: Literal["eager", "compiled"]  # the fastest way that is left


def model_obstacles(model: nn.Module, core: nn.Module, batch: Batch) -> list[Obstacle]:
    """Those of a model as the user gave it, of the bare model inside, and of a batch; asked for at every step."""
    inner: Any = bare(core)
    attention = getattr(getattr(inner, "config", None), "_attn_implementation", None) or "sdpa"
    kind = next((p.device.type for p in core.parameters()), "cpu")
    found = {
        Obstacle("the model is sharded", "eager"): any(isinstance(p, DTensor) for p in core.parameters()),
        Obstacle("the model is compiled already", "eager"): hasattr(core, "_orig_mod") or hasattr(model, "_orig_mod"),
        Obstacle("gradient checkpointing is on", "eager"): _any_module_has(core, "gradient_checkpointing"),
        Obstacle("the model drops whole layers at random", "eager"): _any_module_has(core, "layerdrop"),
        Obstacle(f"{attention!r} attention has no second derivative", "eager"): attention not in TWICE_DIFFERENTIABLE,
        Obstacle("float16 adapts its inner scale, and compiled layers fail in it", "eager"): (
            torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.float16
        ),
        Obstacle("DistributedDataParallel reduces gradients as they come", "compiled"): model is not core,
        Obstacle("the batch is not a mapping", "compiled"): not isinstance(batch, Mapping),
    }
    return [obstacle for obstacle, there in found.items() if there]


def _any_module_has(core: nn.Module, attribute: str) -> bool:
    """Whether it is set in any; `getattr` would go through each module's parameters first."""
    return any(module.__dict__.get(attribute) for module in core.modules())
