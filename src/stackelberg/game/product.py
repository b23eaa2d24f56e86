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
from .purpose import meant_for

ProductName = Literal["auto", "double_backward", "forward_over_reverse", "differences"]
PRODUCTS: tuple[ProductName, ...] = ("auto", "double_backward", "forward_over_reverse", "differences")


@dataclass
class Gradients:
    """G, split by what it is the gradient of; None where nothing depends on it."""

    deltas: Deltas
    clean: Tensor | None
    parameters: list[Tensor | None]


@dataclass(frozen=True)
class Point:
    """Where and in which direction a product is taken."""

    payoff: Payoff  # ℓ
    deltas: Deltas  # δ
    clean: Tensor | None  # z, which a payoff on labels does not have
    u: Deltas
    parameters: Sequence[nn.Parameter]  # θ
    scale: float | Tensor  # of ℓ, so that its half-precision derivatives do not flush to zero

    @property
    def model(self) -> int:
        """Stands for the model, where something is remembered of it."""
        return id(self.parameters[0]) if self.parameters else 0

    def leaves(self, deltas: Deltas | None = None) -> tuple[Deltas, Tensor | None]:
        """δ (or other deltas) and z, ready to be differentiated on."""
        fresh = {side: x.detach().requires_grad_() for side, x in (deltas or self.deltas).items()}
        return fresh, None if self.clean is None else self.clean.detach().requires_grad_()


class Product(Protocol):
    """u at a point → G."""

    def __call__(self, at: Point) -> Gradients:
        """The product."""


@dataclass
class DoubleBackward:
    """Differentiate ∇_δ ℓ once more. One step's graph lives at a time and is freed here."""

    examined: set[int] = field(default_factory=set)  # models (by their first parameter) whose operations all can

    def __call__(self, at: Point) -> Gradients:
        """A backward pass with a graph, and one through it."""
        deltas, clean = at.leaves()
        with meant_for("product"):
            value, inputs = at.payoff(deltas, clean).sum() * at.scale, list(deltas.values())
        if at.model in self.examined:
            g = torch.autograd.grad(value, inputs, create_graph=True)
        else:
            g = tuple(slopes(value, inputs))
            self.examined.add(at.model)
        directional, unit = _along(g, at.u)
        return _differentiate(directional, deltas, clean, at.parameters, unit / at.scale)


@dataclass
class ForwardOverReverse:
    """Carry u as a tangent through the forward pass, then one ordinary backward of the directional derivative."""

    verified: set[int] = field(default_factory=set)  # the models (by their first parameter) already looked through

    def __call__(self, at: Point) -> Gradients:
        """One pass with a tangent, one backward."""
        deltas, clean = at.leaves()

        def along(*values: Tensor) -> Tensor:
            return at.payoff(dict(zip(deltas, values, strict=True)), clean).sum() * at.scale

        with decomposed_layer_norm():
            if at.model not in self.verified:
                refuse_unverified(along(*deltas.values()))
                self.verified.add(at.model)
            unit = _unit(at.u)
            tangents = tuple(direction / unit for direction in at.u.values())
            directional: Tensor = torch.func.jvp(along, tuple(deltas.values()), tangents)[1]
        return _differentiate(directional, deltas, clean, at.parameters, unit / at.scale)


@dataclass(frozen=True)
class Differences:
    """[∇ℓ(δ + r û) − ∇ℓ(δ − r û)] ‖u‖ / 2r, with û = u / ‖u‖ for each sentence, both sides jointly."""

    radius: float

    def __call__(self, at: Point) -> Gradients:
        """Two ordinary gradients, each freed before the next."""
        size = torch.stack([x.square().sum((-2, -1)) for x in at.u.values()]).sum(0).sqrt()  # (B,)
        if not at.payoff.per_sentence:  # ℓ of one sentence cannot be weighted alone: one û for the whole batch
            size = size.square().sum().sqrt().expand_as(size)
        inverse = torch.where(size > 0, 1 / torch.where(size > 0, size, 1), 0)[:, None, None]
        weights = size if at.payoff.per_sentence else size[:1]
        unit = weights.amax().clamp_min(torch.finfo(size.dtype).tiny)
        total: Gradients | None = None
        for step in (self.radius, -self.radius):
            deltas, clean = at.leaves({side: x + step * inverse * at.u[side] for side, x in at.deltas.items()})
            weighted = (at.payoff(deltas, clean) * (weights / unit)).sum() * at.scale
            part = _differentiate(weighted, deltas, clean, at.parameters, unit / (2 * step * at.scale))
            total = part if total is None else _add(total, part)
        assert total is not None
        return total


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

    def __call__(self, at: Point) -> Gradients:
        """The product, by the best way there is."""
        if at.model not in self.without:
            try:
                return self.faithful(at)
            except RuntimeError as error:
                if not lacks_second_derivative(error):
                    raise
                self.without.add(at.model)
                doubt = (
                    "" if self.precision in FAITHFUL_DIFFERENCES else f", which are not faithful in {self.precision}"
                )
                warnings.warn(
                    f"an operation of the model has no second derivative, so the interaction term is taken by central "
                    f"differences{doubt}; game.fidelity(model, batch) measures it, product='double_backward' names "
                    "the module",
                    stacklevel=2,
                )
        return self.differences(at)


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
