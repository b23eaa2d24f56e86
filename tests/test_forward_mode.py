"""Forward over reverse is right for every operation on the verified list, and refuses all others by name."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from stackelberg import ModelError
from stackelberg.game.forward_mode import VERIFIED, _operation, _operations, decomposed_layer_norm, refuse_unverified

INDEX = torch.tensor([[0, 2, 1, 3, 5, 4]] * 4)
MASK = torch.arange(24).reshape(4, 6) % 3 == 0


def _attention(x: Tensor) -> Tensor:
    q = x.reshape(1, 1, 4, 6)
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, q * 0.5, q.sin(), attn_mask=torch.ones(4, 4, dtype=torch.bool))


def _written_in_place(x: Tensor) -> Tensor:
    y = x * 2
    y[0] = x[1]
    return y


# One expression for each operation: of x (4, 6) and w (6, 6), both float64 and positive.
EXPRESSIONS = {
    "Abs": lambda x, w: x.abs(),
    "Add": lambda x, w: x + w[:4],
    "Addmm": lambda x, w: torch.addmm(w[0], x, w),
    "AsStrided": lambda x, w: x.sin().as_strided((2, 3), (3, 1)),
    "Baddbmm": lambda x, w: torch.baddbmm(w[:1, None], x[None], w[None]),
    "Bmm": lambda x, w: torch.bmm(x[None], w[None]),
    "Cat": lambda x, w: torch.cat([x, w]),
    "Clamp": lambda x, w: x.clamp(0.7, 1.4),
    "ClampMin": lambda x, w: x.clamp_min(0.9),
    "Clone": lambda x, w: x.clone(),
    "ConstantPadNd": lambda x, w: F.pad(x, (1, 1)),
    "CopySlices": lambda x, w: _written_in_place(x),
    "Cos": lambda x, w: x.cos(),
    "Cumsum": lambda x, w: x.cumsum(1),
    "Div": lambda x, w: x / w[:4],
    "Embedding": lambda x, w: F.embedding(torch.tensor([1, 3, 3, 0]), w) * x,
    "Erf": lambda x, w: x.erf(),
    "Exp": lambda x, w: x.exp(),
    "Expand": lambda x, w: x[:1].expand(4, 6) * w[:4],
    "Gather": lambda x, w: x.gather(1, INDEX),
    "Gelu": lambda x, w: F.gelu(x),
    "Index": lambda x, w: x[torch.tensor([0, 2, 2])],
    "IndexPut": lambda x, w: torch.zeros_like(x).index_put((torch.arange(4),), x),
    "IndexSelect": lambda x, w: x.index_select(0, torch.tensor([0, 2, 2])),
    "Log": lambda x, w: x.log(),
    "Logaddexp": lambda x, w: torch.logaddexp(x, w[:4]),
    "LogSoftmax": lambda x, w: x.log_softmax(-1),
    "MaskedFill": lambda x, w: x.masked_fill(MASK, -2.0),
    "Max": lambda x, w: x.max(-1).values,
    "Mean": lambda x, w: x.mean(-1),
    "Minimum": lambda x, w: torch.minimum(x, w[:4]),
    "Maximum": lambda x, w: torch.maximum(x, w[:4]),
    "Mish": lambda x, w: F.mish(x),
    "Mm": lambda x, w: x @ w,
    "Mul": lambda x, w: x * w[:4],
    "Mv": lambda x, w: x @ w[0],
    "NativeDropout": lambda x, w: torch.native_dropout(x, 0.4, True)[0],
    "Neg": lambda x, w: -x,
    "Permute": lambda x, w: x.permute(1, 0),
    "Pow": lambda x, w: x**3,
    "Reciprocal": lambda x, w: x.reciprocal(),
    "Relu": lambda x, w: (x - 1).relu(),
    "Repeat": lambda x, w: x.repeat(2, 1),
    "Roll": lambda x, w: x.roll(1, 0),
    "Rsqrt": lambda x, w: x.rsqrt(),
    "SafeSoftmax": lambda x, w: _attention(x),
    "Scatter": lambda x, w: torch.zeros_like(x).scatter(1, INDEX, x),
    "Select": lambda x, w: x[1],
    "Sigmoid": lambda x, w: x.sigmoid(),
    "Silu": lambda x, w: F.silu(x),
    "Sin": lambda x, w: x.sin(),
    "Slice": lambda x, w: x[1:3],
    "Softmax": lambda x, w: x.softmax(-1),
    "Softplus": lambda x, w: F.softplus(x),
    "Split": lambda x, w: x.split(3, 1)[0],
    "SplitWithSizes": lambda x, w: x.split([2, 4], 1)[1],
    "Sqrt": lambda x, w: x.sqrt(),
    "Squeeze": lambda x, w: x[None].squeeze(0),
    "Stack": lambda x, w: torch.stack([x, w[:4]]),
    "Sub": lambda x, w: x - w[:4],
    "Sum": lambda x, w: x.sum(-1),
    "T": lambda x, w: x.t(),
    "Tanh": lambda x, w: x.tanh(),
    "ToCopy": lambda x, w: x.to(torch.complex128).real,
    "Transpose": lambda x, w: x.transpose(0, 1),
    "Tril": lambda x, w: x.tril(),
    "Triu": lambda x, w: x.triu(),
    "Unbind": lambda x, w: x.unbind(0)[1],
    "UnsafeSplit": lambda x, w: torch.ops.aten.unsafe_split(x, 3, 1)[0],
    "UnsafeView": lambda x, w: (x[None] @ w[None]) * x,
    "Unsqueeze": lambda x, w: x.unsqueeze(1),
    "Var": lambda x, w: x.var(-1),
    "VarMean": lambda x, w: torch.var_mean(x, -1)[0],
    "View": lambda x, w: x.view(24),
    "Where": lambda x, w: torch.where(MASK, x, w[:4]),
    "Xlogy": lambda x, w: torch.xlogy(x, w[:4]),
    "NllLoss": lambda x, w: F.cross_entropy(x, torch.tensor([0, 3, 5, -100])),
    "MseLoss": lambda x, w: F.mse_loss(x, w[:4]),
    "BinaryCrossEntropyWithLogits": lambda x, w: F.binary_cross_entropy_with_logits(x, MASK.double()),
    "ReshapeAlias": lambda x, w: torch.ops.aten._reshape_alias(x, [24], [1]),
    "Alias": lambda x, w: torch.ops.aten.alias(x),
}  # fmt: skip
LEAVES = {"AccumulateGrad"}  # not operations, but they end every graph


@pytest.mark.parametrize("name", sorted(EXPRESSIONS))
def test_the_product_is_that_of_double_backward(name: str) -> None:
    """∇(u · ∇_x f) of f = Σ sin(op(x, w)) · op(x, w), by both ways, on x and on w; the operation is really met."""
    generator = torch.Generator().manual_seed(0)
    x, w, u = (torch.rand(*shape, dtype=torch.float64, generator=generator) + 0.5 for shape in ((4, 6), (6, 6), (4, 6)))
    x.requires_grad_()
    w.requires_grad_()

    def f(x: Tensor) -> Tensor:
        torch.manual_seed(1)
        y = EXPRESSIONS[name](x, w)
        return (y.sin() * y).sum()

    assert name in {_operation(node) for node in _operations(f(x))}
    (g,) = torch.autograd.grad(f(x), x, create_graph=True)
    expected = torch.autograd.grad((g * u).sum(), [x, w], allow_unused=True, materialize_grads=True)
    _, directional = torch.func.jvp(f, (x,), (u,))
    found = torch.autograd.grad(directional, [x, w], allow_unused=True, materialize_grads=True)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_the_list_holds_what_is_proven_and_nothing_else() -> None:
    """Every verified operation has an expression above."""
    assert set(EXPRESSIONS) | LEAVES == VERIFIED


def test_the_stock_layer_norm_is_wrong_and_the_decomposed_one_right() -> None:
    """Why LayerNorm is replaced; if PyTorch mends its tangent this test says so."""
    x, w, u = (torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(s)) for s in range(3))
    x.requires_grad_()
    w.requires_grad_()

    def f(x: Tensor) -> Tensor:
        return F.layer_norm(x * w, (6,)).sin().sum()

    (g,) = torch.autograd.grad(f(x), x, create_graph=True)
    (expected,) = torch.autograd.grad((g * u).sum(), w)

    def by_forward_mode() -> Tensor:
        _, directional = torch.func.jvp(f, (x,), (u,))
        return torch.autograd.grad(directional, w)[0]

    assert (by_forward_mode() - expected).norm() > 1e-3 * expected.norm()
    with decomposed_layer_norm():
        torch.testing.assert_close(by_forward_mode(), expected, rtol=1e-10, atol=1e-12)


def test_an_operation_that_is_not_on_the_list_is_named() -> None:
    """`lgamma` was never checked."""
    x = torch.rand(3, dtype=torch.float64, requires_grad=True)
    with pytest.raises(ModelError, match="Lgamma"):
        refuse_unverified(torch.lgamma(x).sum())
    with pytest.raises(ModelError, match="NativeLayerNorm"):
        refuse_unverified(F.layer_norm(x, (3,)).sum())
