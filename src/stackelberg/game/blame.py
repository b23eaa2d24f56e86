"""Which module of a model has no second derivative: for an error message, once something has already failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

# How PyTorch says that a backward pass cannot itself be differentiated.
_MARKS = ("is not implemented", "once_differentiable", "double backward", "not support higher order")


def lacks_second_derivative(error: RuntimeError) -> bool:
    """Whether this error means that an operation has no second derivative."""
    return any(mark in str(error) for mark in _MARKS)


def slopes(value: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """∇ value with a graph, refusing operations written in Python whose gradient would be a constant in it.

    Autograd itself says nothing there: the second derivative through them is silently left out.
    """
    constant: list[str] = []
    handles = []
    for node in nodes(value):
        if isinstance(node, BackwardCFunction):

            def look(found: tuple[Any, ...], _: tuple[Any, ...], name: str = type(node).__name__) -> None:
                tensors = [g for g in found if isinstance(g, Tensor) and g.is_floating_point()]
                if any(g.grad_fn is None or g.grad_fn.name() == "torch::autograd::Error" for g in tensors):
                    constant.append(name)

            handles.append(node.register_hook(look))
    try:
        found = torch.autograd.grad(value, inputs, create_graph=True)
    finally:
        for handle in handles:
            handle.remove()
    if constant:
        raise RuntimeError(f"{constant[0]} does not support higher order gradients")
    return list(found)


def nodes(value: Tensor) -> set[Any]:
    """Every autograd node on the way to `value`."""
    seen: set[Any] = set()
    waiting: list[Any] = [value.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting.extend(parent for parent, _ in node.next_functions)
    return seen


def culprit(core: nn.Module, run: Callable[[], object]) -> str:
    """The innermost module that cannot be differentiated twice in the passes that `run` makes, by its path."""
    paths = {module: path or type(core).__name__ for path, module in core.named_modules()}
    calls: list[tuple[nn.Module, tuple[Any, ...], dict[str, Any]]] = []  # children before their parents

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object) -> None:
        calls.append((module, args, kwargs))

    handles = [module.register_forward_hook(hook, with_kwargs=True) for module in paths]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    for module, args, kwargs in calls:
        try:
            _differentiate_twice(module, args, kwargs)
        except RuntimeError as error:
            if lacks_second_derivative(error):
                return f"{paths[module]} ({type(module).__name__})"
    return type(core).__name__


def _differentiate_twice(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    leaves: list[Tensor] = []

    def fresh(x: Any) -> Any:
        if isinstance(x, Tensor) and x.is_floating_point():
            leaves.append(x.detach().requires_grad_())
            return leaves[-1]
        return x

    output = module.forward(*(fresh(x) for x in args), **{key: fresh(x) for key, x in kwargs.items()})
    while isinstance(output, tuple | list):
        output = output[0]
    if not (isinstance(output, Tensor) and output.requires_grad and leaves):
        return
    first = slopes(output.float().square().sum() + 0 * torch.stack([x.sum() for x in leaves]).sum(), leaves)
    squares = [g.float().square().sum() for g in first if g.requires_grad]
    if squares:
        torch.autograd.grad(torch.stack(squares).sum(), leaves, allow_unused=True)
