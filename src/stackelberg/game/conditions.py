"""What every pass of one step has in common: dropout masks, attention kernel, autocast.

The follower's response is differentiated, so its passes must compute the same function as the clean pass does,
and the passes that `Function.backward` runs later must find the conditions they were promised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..errors import ModelError
from .casts import Casts
from .layers import CompiledLayers
from .masks import Tape
from .shards import Shards

Dropout = Literal["shared", "off", "independent"]
DROPOUTS: tuple[Dropout, ...] = ("shared", "off", "independent")

# What makes a pass wear the same dropout masks again: generator states, or the masks themselves.
Masks = tuple[Tensor, Tensor | None] | Tape

# Attention implementations of transformers that have a second derivative as they are or through SDPA's math.
TWICE_DIFFERENTIABLE = ("eager", "sdpa")


class Conditions:
    """The conditions of one step on one device."""

    def __init__(
        self,
        core: nn.Module,
        dropout: Dropout,
        second_derivative: bool,
        head: Sequence[nn.Module] = (),
        layers: CompiledLayers | None = None,
    ) -> None:
        """`core` is the bare model; `second_derivative` asks for attention that has one.

        `head` holds the modules that make logits of hidden states, for games that compare logits. With `layers`
        the passes run compiled, and keep their masks instead of generator states.
        """
        for function in (module.__dict__.get("_gradient_checkpointing_func") for module in core.modules()):
            if getattr(function, "keywords", {}).get("use_reentrant"):
                raise ModelError(
                    "gradient checkpointing with use_reentrant=True cannot give the gradient on the embeddings; enable "
                    'it with gradient_checkpointing_kwargs={"use_reentrant": False}'
                )
        self.core = core
        self.dropout = dropout
        self.second_derivative = second_derivative
        self.device = next((p.device for p in core.parameters()), torch.device("cpu"))
        self._cast = Shards(core).compute_dtype
        kinds = sorted({"cpu", self.device.type})
        self._autocast = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds]
        single = self._cast is None and all(p.dtype == torch.float32 for module in head for p in module.parameters())
        self._head = list(head) if single else []
        self.layers = layers
        self._casts = Casts()
        self.masks: Masks = self._fresh()  # the clean pass's, which is the first

    @contextmanager
    def clean(self) -> Iterator[None]:
        """Around the clean pass, under the caller's own autocast."""
        self.masks = self._fresh()
        with self._kernels(), self.masks.worn() if isinstance(self.masks, Tape) else nullcontext():
            yield

    def refuse_hidden_autocast(self, ran_in: torch.dtype | None) -> None:
        """Refuse a model that enters autocast in its own forward: all else would take it for float32.

        `ran_in`: what autocast was casting to inside the clean pass.
        """
        seen = next((dtype for kind, on, dtype in self._autocast if kind == self.device.type and on), None)
        if ran_in is not None and seen is None:
            name = str(ran_in).removeprefix("torch.")
            raise ModelError(
                f"the model's forward enters {name} autocast by itself (Accelerate prepares models so), and the game "
                "around it does not know; call it inside the same autocast: with accelerator.autocast(): loss = "
                "game(model, batch)"
            )

    def recomputation(self) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        """The contexts of a clean pass that is run again in the backward pass."""

        def again() -> AbstractContextManager[Any]:
            stack = ExitStack()
            stack.enter_context(self._kernels())
            if isinstance(self.masks, Tape):
                stack.enter_context(self.masks.worn())
            return stack

        return nullcontext(), _Reentrant(again)

    def draw(self) -> Masks:
        """The masks of a coming pass: the clean pass's, or fresh ones if `independent`."""
        if self.dropout != "independent":
            return self.masks
        if self.layers is not None:
            return Tape()
        seed = int(torch.randint(2**62, ()))
        gpu = torch.Generator(self.device).manual_seed(seed) if self.device.type == "cuda" else None
        return torch.Generator().manual_seed(seed).get_state(), gpu.get_state() if gpu else None

    @contextmanager
    def perturbed(self, masks: Masks) -> Iterator[None]:
        """Around any other pass, drawing `masks`; the generators are put back afterwards."""
        with ExitStack() as stack:
            for kind, enabled, dtype in self._autocast:
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled))
            stack.enter_context(self._kernels())
            if self.dropout == "off":
                stack.enter_context(_without_dropout(self.core))
            if isinstance(masks, Tape):
                stack.enter_context(masks.worn())
            else:
                stack.callback(self._set_generators, self._generators())
                self._set_generators(masks)
            yield

    @contextmanager
    def _kernels(self) -> Iterator[None]:
        with ExitStack() as stack:
            if self.layers is not None:
                stack.enter_context(self.layers.running(self._casts))
            elif self.second_derivative:
                stack.enter_context(_twice_differentiable(self.core))
            if self.precise_head:
                stack.enter_context(_in_float32(self._head, self.device.type))
            yield

    @property
    def precise_head(self) -> bool:
        """Whether logits are made in float32 under autocast to a half precision.

        Hidden states round independently and average out in the head; a logit's own rounding does not, and what
        the adversary climbs on is the difference of two logits.
        """
        return bool(self._head) and self.precision in ("bfloat16", "float16")

    def _fresh(self) -> Masks:
        return self._generators() if self.layers is None else Tape()

    def _generators(self) -> tuple[Tensor, Tensor | None]:
        on_gpu = self.device.type == "cuda"
        return torch.get_rng_state(), torch.cuda.get_rng_state(self.device) if on_gpu else None

    def _set_generators(self, masks: tuple[Tensor, Tensor | None]) -> None:
        torch.set_rng_state(masks[0])
        if masks[1] is not None:
            torch.cuda.set_rng_state(masks[1], self.device)

    @property
    def precision(self) -> str:
        """What the passes compute in: float64, float32, tf32, bfloat16 or float16."""
        for kind, enabled, dtype in self._autocast:
            if kind == self.device.type and enabled:
                return str(dtype).removeprefix("torch.")
        dtype = self._cast or next((p.dtype for p in self.core.parameters() if p.is_floating_point()), torch.float32)
        if dtype == torch.float32 and self.device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32:
            return "tf32"
        return str(dtype).removeprefix("torch.")


@contextmanager
def _without_dropout(core: nn.Module) -> Iterator[None]:
    """Evaluation mode, each module's own mode given back afterwards."""
    training = [module for module in core.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def _in_float32(modules: Sequence[nn.Module], device: str) -> Iterator[None]:
    """Inside, these modules compute in float32 whatever autocast says."""

    def precise(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast(device, enabled=False):
                return forward(*map(_single, args), **{name: _single(x) for name, x in kwargs.items()})

        return run

    own = [(module, module.__dict__.get("forward")) for module in modules]
    for module, _ in own:
        module.__dict__["forward"] = precise(module.forward)
    try:
        yield
    finally:
        for module, forward in own:
            if forward is None:
                del module.__dict__["forward"]
            else:
                module.__dict__["forward"] = forward


def _single(x: Any) -> Any:
    return x.float() if isinstance(x, Tensor) and x.dtype in (torch.bfloat16, torch.float16) else x


@contextmanager
def _twice_differentiable(core: nn.Module) -> Iterator[None]:
    """Attention whose backward can itself be differentiated, and the model's own choice back afterwards.

    SDPA's math kernel does; flash, memory-efficient and cuDNN kernels do not.
    """
    config = getattr(core, "config", None)
    chosen = getattr(config, "_attn_implementation", None) or "sdpa"
    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if chosen not in TWICE_DIFFERENTIABLE:
            if any(getattr(module, "gradient_checkpointing", False) for module in core.modules()):
                raise ModelError(
                    f"{type(core).__name__} uses {chosen!r} attention with gradient checkpointing, whose "
                    "recomputation cannot be switched to attention with a second derivative; load the model with "
                    "attn_implementation='sdpa'"
                )
            core.set_attn_implementation("sdpa")  # type: ignore[operator]
            stack.callback(core.set_attn_implementation, chosen)  # type: ignore[arg-type]
        for module in core.modules():
            function = module.__dict__.get("_gradient_checkpointing_func")
            if function is not None:  # what is recomputed in the backward pass must run the same kernel
                module.__dict__["_gradient_checkpointing_func"] = partial(function, context_fn=_math_recomputation)
                stack.callback(setattr, module, "_gradient_checkpointing_func", function)
        yield


class _Reentrant:
    """A context that can be entered again while it is open, as a recomputation that is differentiated twice does."""

    def __init__(self, make: Callable[[], AbstractContextManager[Any]]) -> None:
        self._make = make
        self._open: list[AbstractContextManager[Any]] = []

    def __enter__(self) -> None:
        self._open.append(self._make())
        self._open[-1].__enter__()

    def __exit__(self, *error: Any) -> None:
        self._open.pop().__exit__(*error)


def _math_recomputation() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """The contexts of a checkpointed layer's forward pass and of its recomputation."""
    return nullcontext(), _Reentrant(partial(sdpa_kernel, SDPBackend.MATH))
