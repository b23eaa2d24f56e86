"""A model's repeated layers as compiled operations: traced each, compiled once for all that are alike.

A transformer spends its time in a few dozen equal layers, so compiling one of them is most of what compiling the
whole model would give, in seconds instead of minutes. Each layer's own trace decides which are equal.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _pytree as pytree

from .casts import Casts
from .masks import Dropouts, worn
from .purpose import PURPOSE, meant_for
from .twice import Compiler, Once, Split, Twice, inductor, traced

Operation = Callable[[Sequence[Tensor]], list[Tensor]]
Site = tuple[tuple[int, ...], float, torch.device]  # one dropout of a layer: shape, rate, device


@dataclass
class Way:
    """How one layer answers one kind of call."""

    operation: Operation | None  # None: as it always did
    casts: list[torch.dtype | None] = field(
        default_factory=list
    )  # for each weight, what it is given in if not as it is
    sites: list[Site] = field(default_factory=list)
    answer: Callable[[list[Tensor]], Any] = tuple  # output tensors → what the layer returns


class CompiledLayers:
    """The layers of a model, compiled as they are called."""

    def __init__(self, core: nn.Module, compiler: Compiler = inductor) -> None:
        """Nothing is traced before the first pass."""
        self.compiler = compiler
        self.layers = list(repeated_layers(core))
        self.operations: dict[Hashable, Operation] = {}
        self.refused: dict[str, str] = {}  # a layer's class → why it runs as it always did
        self.casts = Casts()  # of the step that is running
        self._ways: dict[Hashable, Way] = {}

    @contextmanager
    def running(self, casts: Casts) -> Iterator[None]:
        """Inside, the layers run compiled, on weights that this step has cast."""
        own = [(layer, layer.__dict__.get("forward")) for layer in self.layers]
        before, self.casts = self.casts, casts
        for layer, _ in own:
            layer.__dict__["forward"] = _Call(self, layer, layer.forward)
        try:
            yield
        finally:
            self.casts = before
            for layer, forward in own:
                if forward is None:
                    del layer.__dict__["forward"]
                else:
                    layer.__dict__["forward"] = forward

    def way(self, call: _Call, key: Hashable, tensors: list[Tensor], rebuild: Callable[[list[Tensor]], Any]) -> Way:
        """How this call is answered, found out the first time."""
        if key not in self._ways:
            try:
                # A tracer warns of tensors that it looks at, and what it saves is not what a checkpoint counts.
                with warnings.catch_warnings(action="ignore"), saved_tensors_hooks(_itself, _itself):
                    self._ways[key] = self._compiled(call, key, tensors, rebuild)
            except Exception as error:  # a tracer fails in as many ways as there are models; the layer still runs
                self.refused[type(call.layer).__name__] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
                self._ways[key] = Way(None)
        return self._ways[key]

    def _compiled(
        self, call: _Call, key: Hashable, tensors: list[Tensor], rebuild: Callable[[list[Tensor]], Any]
    ) -> Way:
        weights, purpose = call.weights(), PURPOSE.get()
        autocast = _autocast(tensors[0].device.type)
        sites: list[Site] = []
        spec: list[Any] = []

        def function(leaves: Sequence[Tensor]) -> list[Tensor]:
            masks, rest = iter(leaves[: len(sites)]), leaves[len(sites) :]

            def take(shape: tuple[int, ...], p: float, device: torch.device) -> Tensor:
                mask = next(masks, None)
                if mask is None:  # the first time, which finds the sites
                    sites.append((shape, p, device))
                    mask = torch.ones(shape, dtype=torch.bool, device=device)
                return mask

            with ExitStack() as stack:
                stack.enter_context(meant_for(purpose))
                stack.enter_context(torch.autocast(**autocast, cache_enabled=False))
                stack.enter_context(Dropouts(take))
                stack.enter_context(_wearing(call.places, rest[: len(weights)]))
                args, kwargs = rebuild(list(rest[len(weights) :]))
                found, form = pytree.tree_flatten(call.forward(*args, **kwargs))
            spec[:] = [form, [_TENSOR if isinstance(x, Tensor) else x for x in found]]
            return [x for x in found if isinstance(x, Tensor)]

        grad = torch.is_grad_enabled()
        given = [_leaf(x, x.requires_grad and grad) for x in (*weights, *tensors)]
        with torch.no_grad():
            seen = traced(lambda *leaves: tuple(function(leaves)), given)
            if any(node.op == "get_attr" for node in seen.graph.nodes):
                raise ValueError("it holds tensors that are neither parameters nor buffers")
        casts = _casts(seen, weights, autocast["dtype"] if autocast["enabled"] else None)
        for i, dtype in enumerate(casts):
            given[i] = given[i] if dtype is None else _leaf(given[i].to(dtype), given[i].requires_grad)
        like = (seen.code, tuple(sites), key[1:])  # type: ignore[index]
        form, fixed = spec

        def answer(outputs: list[Tensor]) -> Any:
            waiting = iter(outputs)
            return pytree.tree_unflatten([next(waiting) if x is _TENSOR else x for x in fixed], form)

        if like not in self.operations:
            masks = [torch.ones(shape, dtype=torch.bool, device=device) for shape, _, device in sites]
            self.operations[like] = self._operation(function, [*masks, *given], len(masks), len(weights), purpose)
        return Way(self.operations[like], casts, list(sites), answer)

    def _operation(self, function: Any, inputs: list[Tensor], masks: int, weights: int, purpose: str) -> Operation:
        wanted = [x.requires_grad for x in inputs]
        if not any(wanted):
            with torch.no_grad():
                graph = traced(lambda *leaves: tuple(function(leaves)), inputs)
                run = self.compiler(graph, inputs)
            return lambda leaves: list(run(*leaves))
        if purpose == "product":
            slope = [wants and i >= masks + weights for i, wants in enumerate(wanted)]
            return Twice.of(function, inputs, slope, wanted, self.compiler)
        return Once(Split.of(function, inputs, wanted, self.compiler))


class _Call:
    """A layer's forward while its model runs compiled."""

    def __init__(self, owner: CompiledLayers, layer: nn.Module, forward: Callable[..., Any]) -> None:
        self.owner, self.layer, self.forward = owner, layer, forward
        self.places = [
            (kept, name)
            for module in layer.modules()
            for kept in (module._parameters, module._buffers)
            for name, x in kept.items()
            if x is not None
        ]

    def weights(self, casts: Sequence[torch.dtype | None] = ()) -> list[Tensor]:
        """Parameters and buffers, in these precisions; constants in an ascent pass."""
        found: list[Tensor] = [kept[name] for kept, name in self.places]  # type: ignore[misc]
        if casts:
            given = zip(found, casts, strict=True)
            found = [x if dtype is None else self.owner.casts.of(x, dtype) for x, dtype in given]
        return [x.detach() for x in found] if PURPOSE.get() == "ascent" else found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the layer itself."""
        flat, form = pytree.tree_flatten((args, kwargs))
        tensors = [x for x in flat if isinstance(x, Tensor)]
        fixed = [None if isinstance(x, Tensor) else x for x in flat]
        if not tensors or not all(isinstance(x, _SIMPLE) for x in fixed):
            return self.forward(*args, **kwargs)
        where = [isinstance(x, Tensor) for x in flat]

        def rebuild(given: list[Tensor]) -> Any:
            waiting = iter(given)
            return pytree.tree_unflatten([next(waiting) if t else x for t, x in zip(where, fixed, strict=True)], form)

        weights = self.weights()
        grad = torch.is_grad_enabled()
        key = (
            id(self.layer),
            type(self.layer),
            str(form),
            tuple(fixed),
            tuple((x.shape, x.stride(), x.dtype, x.device, x.requires_grad and grad) for x in (*weights, *tensors)),
            PURPOSE.get(),
            tuple(_autocast(tensors[0].device.type).values()),
            tuple(module.training for module in self.layer.modules()),
        )
        way = self.owner.way(self, key, tensors, rebuild)
        if way.operation is None:
            return self.forward(*args, **kwargs)
        tape = worn()
        assert tape is not None
        masks = [tape.take(*site) for site in way.sites]
        return way.answer(way.operation([*masks, *self.weights(way.casts), *tensors]))


def _leaf(x: Tensor, wanted: bool) -> Tensor:
    return x.detach().requires_grad_(wanted)


def _casts(seen: fx.GraphModule, weights: Sequence[Tensor], dtype: torch.dtype | None) -> list[torch.dtype | None]:
    """For each weight, `dtype` if all that a layer does with it is to cast it so."""
    to_copy, found = torch.ops.aten._to_copy.default, []
    nodes = [node for node in seen.graph.nodes if node.op == "placeholder"][: len(weights)]
    for node, weight in zip(nodes, weights, strict=True):
        uses = [use.target == to_copy and use.kwargs == {"dtype": dtype} for use in node.users]
        found.append(dtype if type(weight) in (Tensor, nn.Parameter) and uses and all(uses) else None)
    return found


def _itself(x: Any) -> Any:
    return x


_TENSOR = object()  # stands for a tensor among a layer's results
_SIMPLE = (type(None), bool, int, float, str, torch.dtype, torch.device)


def repeated_layers(core: nn.Module) -> Iterator[nn.Module]:
    """The outermost modules that stand in a list of two or more of one class."""
    for child in core.children():
        alike = isinstance(child, nn.ModuleList) and len(child) > 1 and len({type(m) for m in child}) == 1
        if alike:
            yield from child  # type: ignore[misc]
        else:
            yield from repeated_layers(child)


@contextmanager
def _wearing(places: list[tuple[dict[str, Any], str]], tensors: Sequence[Tensor]) -> Iterator[None]:
    """Inside, these tensors are the layer's parameters and buffers."""
    own = [kept[name] for kept, name in places]
    try:
        for (kept, name), x in zip(places, tensors, strict=True):
            kept[name] = x
        yield
    finally:
        for (kept, name), x in zip(places, own, strict=True):
            kept[name] = x


def _autocast(device: str) -> dict[str, Any]:
    return {
        "device_type": device,
        "dtype": torch.get_autocast_dtype(device),
        "enabled": torch.is_autocast_enabled(device),
    }
