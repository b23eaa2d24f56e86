"""An operation in compiled graphs that autograd can differentiate once, or twice: what `torch.compile` cannot.

A function y = f(x, θ) is split into graphs by tracing its own gradient: a forward that also returns what the
gradient needs, and the gradient. For a Hessian-vector product, ∇_θ [u · ∇_x (v · f)], both halves are split again:

    F:  (x, θ) → y, s          its gradient takes cotangents of y and of s
    V:  (s, v) → ∇_x           its gradient takes a cotangent of ∇_x

so that one product costs what autograd's double backward does (forward 1, gradient on x 1, and 2 for each of them),
in four graphs of fused kernels, with no pass done twice and nothing of one layer kept but s and what F and V need.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.autograd.function import once_differentiable

from .masks import asleep

Function = Callable[[Sequence[Tensor]], Sequence[Tensor]]
Compiler = Callable[[fx.GraphModule, list[Tensor]], Callable[..., Any]]


@dataclass
class Split:
    """A function as two graphs: inputs → outputs and saved; saved and cotangents → gradients of the wanted inputs."""

    forward: fx.GraphModule
    backward: fx.GraphModule
    outputs: int
    differentiable: list[bool]  # of the outputs: which have a cotangent
    layouts: list[tuple[int, ...]]  # the strides of each cotangent that `backward` was traced for
    wanted: list[int]  # the inputs that `backward` gives gradients of
    sources: list[int | None]  # of the saved: the input that it is, if it is one
    compiler: Compiler
    _forward: Callable[..., Any] | None = None
    _backward: Callable[..., Any] | None = None

    @classmethod
    def of(cls, function: Function, inputs: Sequence[Tensor], wanted: Sequence[bool], compiler: Compiler) -> Split:
        """Trace `function` and its gradient at these inputs, whose values do not matter."""
        from torch._functorch.partitioners import min_cut_rematerialization_partition

        count = len(inputs)
        asked = [i for i, wants in enumerate(wanted) if wants]
        differentiable: list[bool] = []
        outputs = 0

        def joint(*flat: Tensor) -> tuple[Tensor | None, ...]:
            nonlocal outputs
            with torch.enable_grad(), torch.autocast(flat[0].device.type, enabled=False):
                leaves = [x.detach().requires_grad_(wants) for x, wants in zip(flat[:count], wanted, strict=True)]
                found = function(leaves)
                outputs, differentiable[:] = len(found), [y.requires_grad for y in found]
                ends = [y for y in found if y.requires_grad]
                cotangents = flat[count:] or [torch.empty_like(y) for y in ends]
                slopes = torch.autograd.grad(ends, [leaves[i] for i in asked], cotangents, allow_unused=True)
            return (*(y.detach() for y in found), *slopes)

        fixed = [x.detach() for x in inputs]
        with torch.no_grad():
            shapes = traced(joint, fixed)
            ends = [n.meta["val"] for n in _results(shapes)[:outputs]]
            cotangents = [_empty_like(y) for y, has in zip(ends, differentiable, strict=True) if has]
            whole = traced(joint, [*fixed, *cotangents])
        for i, node in enumerate(n for n in whole.graph.nodes if n.op == "placeholder"):
            node.name = node.target = f"primals_{i + 1}" if i < count else f"tangents_{i + 1 - count}"
        whole.recompile()
        forward, backward = min_cut_rematerialization_partition(whole, None, num_fwd_outputs=outputs)
        places = {f"primals_{i + 1}": i for i in range(count)}
        saved = [places.get(node.name) for node in _results(forward)[outputs:]]
        layouts = [g.stride() for g in cotangents]
        return cls(forward, backward, outputs, differentiable, layouts, asked, saved, compiler)

    def run(self, inputs: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """(outputs, saved)."""
        if self._forward is None:
            self._forward = self.compiler(self.forward, list(inputs))
        found = list(self._forward(*inputs))
        return found[: self.outputs], found[self.outputs :]

    def pull(self, saved: Sequence[Tensor], cotangents: Sequence[Tensor]) -> list[Tensor | None]:
        """The gradients of the wanted inputs."""
        cotangents = [laid_out(g, strides) for g, strides in zip(cotangents, self.layouts, strict=True)]
        if self._backward is None:
            self._backward = self.compiler(self.backward, [*saved, *cotangents])
        return list(self._backward(*saved, *cotangents))


@dataclass
class Once:
    """A function compiled with its gradient."""

    split: Split

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Its outputs, in autograd's graph."""
        found: Any = _Once.apply(self.split, *inputs)  # type: ignore[no-untyped-call]
        return list(found)


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, split: Split, *inputs: Tensor) -> tuple[Tensor, ...]:
        outputs, saved = split.run(inputs)
        ctx.split, ctx.count = split, len(inputs)
        ctx.save_for_backward(*saved)
        ctx.mark_non_differentiable(*(y for y, has in zip(outputs, split.differentiable, strict=True) if not has))
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        split: Split = ctx.split
        given = [g for g, has in zip(cotangents, split.differentiable, strict=True) if has]
        return None, *_placed(split, split.pull(ctx.saved_tensors, given), ctx.count)


@dataclass
class Twice:
    """A function compiled with its gradient on `slope` inputs, and with the gradients of both halves."""

    value: Split  # F: inputs → y, s
    slope: Split  # V: s, v → ∇
    outputs: int
    differentiable: list[bool]  # of y
    asked: list[int]  # the inputs that ∇ is of
    sources: list[int | None]  # of s: the input that it is, if it is one
    others: int = field(default=0)  # how many of s are not inputs

    @classmethod
    def of(
        cls,
        function: Function,
        inputs: Sequence[Tensor],
        slope: Sequence[bool],
        wanted: Sequence[bool],
        compiler: Compiler,
    ) -> Twice:
        """`slope`: what the first derivative is on; `wanted`: what the second is."""
        first = Split.of(function, inputs, slope, compiler)
        others = sum(source is None for source in first.sources)

        def value(leaves: Sequence[Tensor]) -> list[Tensor]:
            found = list(fx.Interpreter(first.forward).run(*leaves))
            kept = [x for x, source in zip(found[first.outputs :], first.sources, strict=True) if source is None]
            return [*found[: first.outputs], *kept]

        fixed = [x.detach() for x in inputs]
        F = Split.of(value, fixed, wanted, compiler)
        examples = _examples(F)
        kept = iter(zip(examples[first.outputs :], F.differentiable[first.outputs :], strict=True))
        s = [next(kept) if i is None else (fixed[i], wanted[i]) for i in first.sources]
        v = [y for y, has in zip(examples[: first.outputs], first.differentiable, strict=True) if has]

        def gradient(leaves: Sequence[Tensor]) -> list[Tensor]:
            return [g for g in fx.Interpreter(first.backward).run(*leaves) if g is not None]

        given = [bool(n is not None) for n in _results(first.backward)]
        V = Split.of(gradient, [*(x for x, _ in s), *v], [*(has for _, has in s), *(True for _ in v)], compiler)
        asked = [i for i, has in zip(first.wanted, given, strict=True) if has]
        return cls(F, V, first.outputs, first.differentiable, asked, first.sources, others)

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Its outputs, in autograd's graph."""
        found: Any = _Twice.apply(self, *inputs)  # type: ignore[no-untyped-call]
        return list(found[: self.outputs])


class _Twice(torch.autograd.Function):
    """Its first backward is V, itself in the graph; its second, with cotangents of s, is F's own gradient."""

    @staticmethod
    def forward(ctx: Any, op: Twice, *inputs: Tensor) -> tuple[Tensor, ...]:
        results, saved = op.value.run(inputs)
        ctx.op, ctx.count = op, len(inputs)
        ctx.set_materialize_grads(False)
        from_inputs = [inputs[i] for i in op.sources if i is not None]
        ctx.save_for_backward(*from_inputs, *results, *saved)
        ctx.mark_non_differentiable(*(y for y, has in zip(results, op.value.differentiable, strict=True) if not has))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        op: Twice = ctx.op
        split = op.value
        places = sum(i is not None for i in op.sources)
        from_inputs = iter(ctx.saved_tensors[:places])
        results = ctx.saved_tensors[places : places + split.outputs]
        full = [
            torch.zeros_like(y) if g is None else g
            for g, y, has in zip(cotangents, results, split.differentiable, strict=True)
            if has
        ]
        if not torch.is_grad_enabled():  # the second time
            saved = ctx.saved_tensors[places + split.outputs :]
            return None, *_placed(split, split.pull(saved, full), ctx.count)
        kept = iter(results[op.outputs :])
        s = [next(kept) if i is None else next(from_inputs) for i in op.sources]
        v = [laid_out(g, strides) for g, strides in zip(full[: sum(op.differentiable)], split.layouts, strict=False)]
        slopes = iter(_Slope.apply(op.slope, *s, *v))  # type: ignore[no-untyped-call]
        return None, *(next(slopes) if i in op.asked else None for i in range(ctx.count))


class _Slope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, split: Split, *inputs: Tensor) -> tuple[Tensor, ...]:
        outputs, saved = split.run(inputs)
        ctx.split, ctx.count = split, len(inputs)
        ctx.save_for_backward(*saved)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        split: Split = ctx.split
        given = [g for g, has in zip(cotangents, split.differentiable, strict=True) if has]
        return None, *_placed(split, split.pull(ctx.saved_tensors, given), ctx.count)


def laid_out(x: Tensor, strides: tuple[int, ...]) -> Tensor:
    """`x` with these strides, differentiably."""
    if x.stride() == strides:
        return x
    order = sorted(range(x.dim()), key=lambda dim: strides[dim], reverse=True)
    return x.permute(order).contiguous().permute([order.index(dim) for dim in range(x.dim())])


def _placed(split: Split, gradients: Sequence[Tensor | None], count: int) -> list[Tensor | None]:
    by_input = dict(zip(split.wanted, gradients, strict=True))
    return [by_input.get(i) for i in range(count)]


def traced(function: Callable[..., Any], inputs: Sequence[Tensor]) -> fx.GraphModule:
    """Its operations, free of mutations, and of `detach`, which only meant something to autograd."""
    from torch._decomp import get_decompositions  # compilers are slow to import, and most steps need none
    from torch.fx.experimental.proxy_tensor import make_fx

    aten = torch.ops.aten
    # Gradients that autograd does not know the gradient of, as operations that it does.
    table: Any = get_decompositions(
        [
            aten.silu_backward, aten.mish_backward, aten.hardswish_backward, aten.hardsigmoid_backward,
            aten._fused_rms_norm, aten._fused_rms_norm_backward,
        ]
    )  # fmt: skip
    graph = make_fx(function, decomposition_table=table, tracing_mode="fake")(*inputs)
    graph = make_fx(torch.func.functionalize(graph), tracing_mode="fake")(*inputs)
    for node in list(graph.graph.nodes):
        if node.target in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _results(graph: fx.GraphModule) -> list[Any]:
    """The nodes that a graph returns."""
    (returned,) = next(node for node in reversed(graph.graph.nodes) if node.op == "output").args
    return list(returned) if isinstance(returned, tuple | list) else [returned]


def _examples(split: Split) -> list[Tensor]:
    """Tensors like the outputs, of any value."""
    return [_empty_like(node.meta["val"]) for node in _results(split.forward)[: split.outputs]]


def _empty_like(x: Tensor) -> Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)


def inductor(graph: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
    """Fused kernels."""
    with torch.no_grad(), asleep(), warnings.catch_warnings(action="ignore"):
        from torch._inductor import compile

        compiled: Callable[..., Any] = compile(graph, [*inputs])
    return compiled


def as_is(graph: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
    """The graph's own operations, one after the other."""
    return graph
