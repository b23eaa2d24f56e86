"""The one Hessian-vector product that each step of the reverse sweep needs, three ways.

G = ∇_{θ, δ, z} [u · ∇_δ ℓ(δ, z, θ)], where z is the clean prediction that ℓ compares with. All three share a
signature, so that everything about differentiating twice stays in this file.

| product | needs | faithful in |
|---|---|---|
| `DoubleBackward` | attention with a second derivative | every precision |
| `ForwardOverReverse` | a verified forward-mode rule for every operation | every precision |
| `Differences` | first derivatives only: any kernel | float64, and float32 with care |
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from .blame import lacks_second_derivative, slopes
from .forward_mode import decomposed_layer_norm, refuse_unverified
from .injection import Deltas
from .payoff import Payoff
from .precision import FAITHFUL_DIFFERENCES

ProductName = Literal["auto", "double_backward", "forward_over_reverse", "differences"]
PRODUCTS: tuple[ProductName, ...] = ("auto", "double_backward", "forward_over_reverse", "differences")


@dataclass
class Gradients:
    """G, split by what it is the gradient of; None where nothing depends on it."""

    deltas: Deltas
    clean: Tensor | None
    parameters: list[Tensor | None]


class Product(Protocol):
    """(payoff, δ, z, u, θ, scale) → G. `scale` keeps half-precision derivatives of ℓ from flushing to zero."""

    def __call__(
        self,
        payoff: Payoff,
        deltas: Deltas,
        clean: Tensor | None,
        u: Deltas,
        parameters: Sequence[nn.Parameter],
        scale: float | Tensor,
    ) -> Gradients:
        """The product."""


@dataclass
class DoubleBackward:
    """Differentiate ∇_δ ℓ once more. One step's graph lives at a time and is freed here."""

    examined: set[int] = field(default_factory=set)  # models (by their first parameter) whose operations all can

    def __call__(
        self,
        payoff: Payoff,
        deltas: Deltas,
        clean: Tensor | None,
        u: Deltas,
        parameters: Sequence[nn.Parameter],
        scale: float | Tensor,
    ) -> Gradients:
        """A backward pass with a graph, and one through it."""
        deltas, clean = _leaves(deltas, clean)
        value, inputs, model = payoff(deltas, clean).sum() * scale, list(deltas.values()), _model(parameters)
        if model in self.examined:
            g = torch.autograd.grad(value, inputs, create_graph=True)
        else:
            g = tuple(slopes(value, inputs))
            self.examined.add(model)
        directional, unit = _along(g, u)
        return _differentiate(directional, deltas, clean, parameters, unit / scale)


@dataclass
class ForwardOverReverse:
    """Carry u as a tangent through the forward pass, then one ordinary backward of the directional derivative."""

    verified: set[int] = field(default_factory=set)  # the models (by their first parameter) already looked through

    def __call__(
        self,
        payoff: Payoff,
        deltas: Deltas,
        clean: Tensor | None,
        u: Deltas,
        parameters: Sequence[nn.Parameter],
        scale: float | Tensor,
    ) -> Gradients:
        """One pass with a tangent, one backward."""
        deltas, clean = _leaves(deltas, clean)
        sides = list(deltas)

        def along(*values: Tensor) -> Tensor:
            return payoff(dict(zip(sides, values, strict=True)), clean).sum() * scale

        with decomposed_layer_norm():
            model = _model(parameters)
            if model not in self.verified:
                refuse_unverified(along(*deltas.values()))
                self.verified.add(model)
            unit = _unit(u)
            tangents = tuple(direction / unit for direction in u.values())
            directional: Tensor = torch.func.jvp(along, tuple(deltas.values()), tangents)[1]
        return _differentiate(directional, deltas, clean, parameters, unit / scale)


@dataclass(frozen=True)
class Differences:
    """[∇ℓ(δ + r û) − ∇ℓ(δ − r û)] ‖u‖ / 2r, with û = u / ‖u‖ for each sentence, both sides jointly."""

    radius: float

    def __call__(
        self,
        payoff: Payoff,
        deltas: Deltas,
        clean: Tensor | None,
        u: Deltas,
        parameters: Sequence[nn.Parameter],
        scale: float | Tensor,
    ) -> Gradients:
        """Two ordinary gradients, each freed before the next."""
        size = torch.stack([x.square().sum((-2, -1)) for x in u.values()]).sum(0).sqrt()  # (B,)
        if not payoff.per_sentence:  # ℓ of one sentence cannot be weighted alone: one û for the whole batch
            size = size.square().sum().sqrt().expand_as(size)
        inverse = torch.where(size > 0, 1 / torch.where(size > 0, size, 1), 0)
        weights = size if payoff.per_sentence else size[:1]
        unit = weights.amax().clamp_min(torch.finfo(size.dtype).tiny)
        total: Gradients | None = None
        for sign in (1.0, -1.0):
            moved = {
                side: delta + sign * self.radius * inverse[:, None, None] * u[side] for side, delta in deltas.items()
            }
            moved, target = _leaves(moved, clean)
            weighted = (payoff(moved, target) * (weights / unit)).sum() * scale
            part = _differentiate(weighted, moved, target, parameters, sign * unit / (2 * self.radius * scale))
            total = part if total is None else _add(total, part)
        assert total is not None
        return total


def _model(parameters: Sequence[nn.Parameter]) -> int:
    return id(parameters[0]) if parameters else 0


def _leaves(deltas: Deltas, clean: Tensor | None) -> tuple[Deltas, Tensor | None]:
    fresh = {side: delta.detach().requires_grad_() for side, delta in deltas.items()}
    return fresh, None if clean is None else clean.detach().requires_grad_()


def _along(g: Sequence[Tensor], u: Deltas) -> tuple[Tensor, Tensor]:
    """(û · g, ‖u‖∞) with û = u / ‖u‖∞: a cotangent of order one survives half precision."""
    unit = _unit(u)
    return torch.stack([(x * direction / unit).sum() for x, direction in zip(g, u.values(), strict=True)]).sum(), unit


def _unit(u: Deltas) -> Tensor:
    peak = torch.stack([direction.abs().amax() for direction in u.values()]).amax()
    return peak.clamp_min(torch.finfo(peak.dtype).tiny)


def _differentiate(
    value: Tensor,
    deltas: Deltas,
    clean: Tensor | None,
    parameters: Sequence[nn.Parameter],
    factor: Tensor,
) -> Gradients:
    """factor · ∇ value, with the factor applied after the (perhaps half-precision) backward pass."""
    inputs = [*deltas.values(), *([] if clean is None else [clean]), *parameters]
    if not value.requires_grad:  # a model that is linear in δ has no second derivative left
        found: Sequence[Tensor | None] = [None] * len(inputs)
    else:
        found = torch.autograd.grad(value, inputs, allow_unused=True)
    scaled = iter([None if x is None else x * factor.to(x.dtype) for x in found])
    by_side = {}
    for side, delta in deltas.items():
        g = next(scaled)
        by_side[side] = torch.zeros_like(delta) if g is None else g
    target = None if clean is None else next(scaled)
    return Gradients(by_side, target, list(scaled))


def _add(a: Gradients, b: Gradients) -> Gradients:
    def plus(x: Tensor | None, y: Tensor | None) -> Tensor | None:
        return y if x is None else x if y is None else x + y

    return Gradients(
        {side: a.deltas[side] + b.deltas[side] for side in a.deltas},
        plus(a.clean, b.clean),
        [plus(x, y) for x, y in zip(a.parameters, b.parameters, strict=True)],
    )


@dataclass
class Automatic:
    """`DoubleBackward`, faithful in every precision, until the model turns out to have no second derivative."""

    differences: Differences
    precision: str
    without: set[int] = field(default_factory=set)  # models that have none
    faithful: DoubleBackward = field(default_factory=DoubleBackward)

    def __call__(
        self,
        payoff: Payoff,
        deltas: Deltas,
        clean: Tensor | None,
        u: Deltas,
        parameters: Sequence[nn.Parameter],
        scale: float | Tensor,
    ) -> Gradients:
        """The product, by the best way there is."""
        if _model(parameters) not in self.without:
            try:
                return self.faithful(payoff, deltas, clean, u, parameters, scale)
            except RuntimeError as error:
                if not lacks_second_derivative(error):
                    raise
                self.without.add(_model(parameters))
                doubt = (
                    "" if self.precision in FAITHFUL_DIFFERENCES else f", which are not faithful in {self.precision}"
                )
                warnings.warn(
                    f"an operation of the model has no second derivative, so the interaction term is taken by central "
                    f"differences{doubt}; game.fidelity(model, batch) measures it, product='double_backward' names "
                    "the module",
                    stacklevel=2,
                )
        return self.differences(payoff, deltas, clean, u, parameters, scale)


def build(name: ProductName, radius: float, precision: str) -> Product:
    """The product of that name; `radius` is only for differences."""
    if name == "differences" and precision not in FAITHFUL_DIFFERENCES:
        warnings.warn(
            f"product='differences' is not faithful in {precision}; use 'double_backward', or float32",
            stacklevel=2,
        )
    if name == "double_backward":
        return DoubleBackward()
    if name == "forward_over_reverse":
        return ForwardOverReverse()
    return Differences(radius) if name == "differences" else Automatic(Differences(radius), precision)
