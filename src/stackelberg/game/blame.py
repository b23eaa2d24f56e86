"""Which module of a model has no second derivative: for an error message, once something has already failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

# How PyTorch says that a backward pass cannot itself be differentiated.
_MARKS = ("is not implemented", "once_differentiable", "double backward", "does not support higher order")


def lacks_second_derivative(error: RuntimeError) -> bool:
    """Whether this error means that an operation has no second derivative."""
    return any(mark in str(error) for mark in _MARKS)


def culprit(core: nn.Module, run: Callable[[], object]) -> str:
    """The innermost module that cannot be differentiated twice in the passes that `run` makes, by its path."""
    paths = {module: path or type(core).__name__ for path, module in core.named_modules()}
    found: list[str] = []
    trying = False

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object) -> None:
        nonlocal trying
        if found or trying:  # children are tried before their parents; the first to fail is the innermost
            return
        trying = True
        try:
            _differentiate_twice(module, args, kwargs)
        except RuntimeError as error:
            if lacks_second_derivative(error):
                found.append(f"{paths[module]} ({type(module).__name__})")
        finally:
            trying = False

    handles = [module.register_forward_hook(hook, with_kwargs=True) for module in paths]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else type(core).__name__


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
    first = torch.autograd.grad(output.float().square().sum(), leaves, create_graph=True, allow_unused=True)
    slopes = [g.float().square().sum() for g in first if g is not None and g.requires_grad]
    if slopes:
        torch.autograd.grad(torch.stack(slopes).sum(), leaves, allow_unused=True)
