"""Where forward-mode differentiation is right under a later backward pass, and where it is not.

PyTorch's stock LayerNorm has a tangent that is silently wrong when it is differentiated again, so it runs
decomposed here. Every other operation on the way from δ to the payoff must be on a list that the tests check
against double backward; one that is not is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..errors import ModelError
from .blame import nodes

# Names of autograd nodes, without "Backward0", whose forward-over-reverse product tests/test_forward_mode.py
# compares with double backward.
VERIFIED = frozenset(
    """
    Abs AccumulateGrad Add Addmm Alias AsStrided Baddbmm BinaryCrossEntropyWithLogits Bmm Cat Clamp ClampMin
    Clone ConstantPadNd CopySlices Cos Cumsum Div Embedding Erf Exp Expand Gather Gelu Index IndexPut
    IndexSelect Log LogSoftmax Logaddexp MaskedFill Max Maximum Mean Minimum Mish Mm MseLoss Mul Mv
    NativeDropout Neg NllLoss Permute Pow Reciprocal Relu Repeat ReshapeAlias Roll Rsqrt SafeSoftmax Scatter
    Select Sigmoid Silu Sin Slice Softmax Softplus Split SplitWithSizes Sqrt Squeeze Stack Sub Sum T Tanh ToCopy
    Transpose Tril Triu Unbind UnsafeSplit UnsafeView Unsqueeze Var VarMean View Where Xlogy
    """.split()
)


class _DecomposedLayerNorm(TorchFunctionMode):
    """Replaces `layer_norm` by mean, variance and a reciprocal root, which have correct rules."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in (F.layer_norm, torch.layer_norm):
            return _layer_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def decomposed_layer_norm() -> TorchFunctionMode:
    """A context in which every LayerNorm runs in plain operations."""
    return _DecomposedLayerNorm()


def _layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *unused: object,
) -> Tensor:
    dims = tuple(range(-len(normalized_shape), 0))
    x = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
    centred = x - x.mean(dims, keepdim=True)
    out = centred * (centred.square().mean(dims, keepdim=True) + eps).rsqrt()
    out = out if weight is None else out * weight
    out = out if bias is None else out + bias
    # Autocast gives layer_norm a float32 output; outside it the input's own type comes back.
    return out if torch.is_autocast_enabled(input.device.type) else out.to(input.dtype)


def refuse_unverified(value: Tensor) -> None:
    """Refuse a model that has operations on the way to `value` that are not on the verified list."""
    unknown = sorted({_operation(name) for name in _operations(value)} - VERIFIED)
    if unknown:
        raise ModelError(
            f"forward mode is not verified for the operation{'s' * (len(unknown) > 1)} {', '.join(unknown)} of this "
            "model; use product='double_backward'"
        )


def _operations(value: Tensor) -> set[str]:
    """The names of all autograd nodes on the way to `value`."""
    return {node.name() for node in nodes(value)}


def _operation(node: str) -> str:
    """`NativeDropoutBackward0` → `NativeDropout`, `torch::autograd::AccumulateGrad` → `AccumulateGrad`."""
    name = node.rsplit("::", 1)[-1]
    return name.rstrip("0123456789").removesuffix("Backward")
