"""Dropout masks that a step draws once and every pass of it wears again, without a generator being set back.

A captured graph cannot set a generator back, and two compiled graphs draw in different orders; so here the masks
themselves are kept, in the order in which a pass comes to them. Every dropout and every attention of the pass is
taken over for that, by a mode that sees the functions a model calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..errors import ModelError
from .purpose import PURPOSE


class UnsharedError(ModelError):
    """Passes would differ in what they draw; they can be played eagerly, where generators are set back."""


Take = Callable[[tuple[int, ...], float, torch.device], Tensor]  # (shape, p, device) → bool, True where kept


class Tape:
    """The masks of one draw, by the order in which a pass meets them."""

    def __init__(self) -> None:
        """Empty: the first pass draws."""
        self.masks: list[Tensor] = []
        self.scalars: list[Tensor] = []
        self._next = self._next_scalar = 0

    @contextmanager
    def worn(self) -> Iterator[None]:
        """Around a pass: the same masks from the first on, drawn where they are not there yet."""
        outer = self._next, self._next_scalar
        self._next = self._next_scalar = 0
        token = _WORN.set(self)
        try:
            with Dropouts(self.take, self.scalar):
                yield
        finally:
            _WORN.reset(token)
            self._next, self._next_scalar = outer

    def take(self, shape: tuple[int, ...], p: float, device: torch.device) -> Tensor:
        """The next mask."""
        if self._next == len(self.masks):
            self.masks.append(torch.empty(shape, dtype=torch.bool, device=device).bernoulli_(1 - p))
        mask = self.masks[self._next]
        self._next += 1
        if mask.shape != shape:
            raise UnsharedError("two passes of one step came to their dropouts in a different order")
        return mask

    def scalar(self) -> Tensor:
        """The next number that a model draws on the CPU, to compare it with the rate at which it drops layers.

        A captured graph holds what came of that; models with such a rate are not captured.
        """
        if self._next_scalar == len(self.scalars):
            self.scalars.append(torch.rand([]))
        self._next_scalar += 1
        return self.scalars[self._next_scalar - 1]


_AWAKE: ContextVar[Dropouts | None] = ContextVar("awake", default=None)
_WORN: ContextVar[Tape | None] = ContextVar("worn", default=None)


def worn() -> Tape | None:
    """The tape of the pass that is running, where there is one."""
    return _WORN.get()


class Dropouts(TorchFunctionMode):
    """Gives every dropout of a pass its mask, and every attention that needs more than a fused kernel has."""

    def __init__(self, take: Take, scalar: Callable[[], Tensor] | None = None) -> None:
        """`take` says which mask comes next, `scalar` which number."""
        super().__init__()
        self.take = take
        self.scalar = scalar

    def __enter__(self) -> Dropouts:
        """From here on this one, and none around it."""
        self._token = _AWAKE.set(self)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        """The one around it again."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        _AWAKE.reset(self._token)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Dropout and attention as here, drawing anything else refused, the rest as it is."""
        kwargs = kwargs or {}
        if _AWAKE.get() is not self:
            return func(*args, **kwargs)
        if func in (F.dropout, torch.dropout):
            return self.dropout(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            if PURPOSE.get() == "product" or kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0):
                return self.attention(*args, **kwargs)
        elif func is torch.rand and args == ([],) and not kwargs and self.scalar is not None:
            return self.scalar()
        elif func in _DRAWING:
            raise UnsharedError(
                f"the model draws random numbers with {func.__name__}, which its passes would not share"
            )
        return func(*args, **kwargs)

    def dropout(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        """`F.dropout` with a mask that is kept."""
        if not training or p == 0.0:
            return input
        return torch.where(self.take(tuple(input.shape), p, input.device), input * (1 / (1 - p)), 0.0)

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Attention in plain operations, (B, H, L, d): it has a second derivative, and its dropout a mask."""
        if enable_gqa:
            groups = query.shape[-3] // key.shape[-3]
            key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
        scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.transpose(-2, -1)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if attn_mask is not None:
            bias = attn_mask
            if bias.dtype == torch.bool:  # the lowest finite number: a row without any real key stays finite
                bias = torch.zeros_like(bias, dtype=scores.dtype).masked_fill(~bias, torch.finfo(scores.dtype).min)
            scores = scores + bias
        weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(value.dtype)
        return self.dropout(weights, dropout_p) @ value


@contextmanager
def asleep() -> Iterator[None]:
    """Inside, functions are not looked at: they are a compiler's, not a model's."""
    token = _AWAKE.set(None)
    try:
        yield
    finally:
        _AWAKE.reset(token)


_DRAWING = frozenset(
    {
        F.alpha_dropout, F.feature_alpha_dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.gumbel_softmax, F.rrelu,
        torch.bernoulli, torch.multinomial, torch.normal, torch.rand, torch.rand_like, torch.randint, torch.randn,
        torch.randn_like, torch.randperm, torch.poisson,
    }
)  # fmt: skip
