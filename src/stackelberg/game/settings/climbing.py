"""The follower's steps, and whether the leader anticipates them."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from ...errors import SettingError, one_of
from .. import ascent
from ..follower import Follower
from ..injection import Deltas
from ..obstacles import Obstacle
from ..precision import DIFFERENCE_RADIUS
from ..product import PRODUCTS, Product, ProductName, build
from ..response import ROUTES, Route
from ..space import Space
from .checks import number, whole
from .perturbing import Perturbing


@dataclass(kw_only=True, eq=False)
class Climbing(Perturbing):
    """A method whose δ climbs: the follower's K steps.

    Args:
        steps: K; 0 leaves δ⁰, plain noise.
        step_size: η. Left out, one step crosses ε: ε for `normalized`, ε / √(coordinates) for `sign` and
            `adam` in an ℓ2 ball. `sgd` has no such value and needs one.
        ascent: `normalized` (δ + η g/‖g‖, in the ball's norm), `sgd` (the paper's), `sign`, `adam`.
    """

    steps: int = 1
    step_size: float | None = None
    ascent: ascent.AscentName = "normalized"

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        whole("steps", self.steps, 0)
        one_of("ascent", self.ascent, ascent.ASCENTS)
        if self.step_size is not None:
            number("step_size", self.step_size, above=0)
        elif self.ascent == "sgd" and self.steps:
            raise SettingError("ascent='sgd' has no natural step_size: its unit depends on the gradient's; give one")

    def follower(self, spaces: dict[str, Space]) -> Follower:
        """The follower on this batch."""
        return Follower(
            {side: space.ball for side, space in spaces.items()},
            {side: ascent.build(self.ascent, self._eta(space), space.ball) for side, space in spaces.items()},
            {side: space.mask for side, space in spaces.items()},
            self.steps,
        )

    def _eta(self, space: Space) -> float | Tensor:
        if self.step_size is not None:
            return self.step_size * space.unit
        if self.ascent == "normalized":
            return self.radius * space.unit
        return self.radius * space.unit / space.coordinates**0.5  # sign and adam move every coordinate by η


@dataclass(kw_only=True, eq=False)
class Anticipating(Climbing):
    """A leader that anticipates the follower: how dδ^K/dθ is computed.

    Args:
        gradient: `"sweep"`, `"exact"` (the oracle: memory grows with K) or `"none"` (not anticipating).
        product: of the sweep: `"double_backward"`, `"forward_over_reverse"`, `"differences"`, or `"auto"`.
        radius_of_differences: r, how far `differences` moves δ. Left out, by precision.
        every: take the interaction only every m-th step, and then m times: cheaper, the same on average.
    """

    gradient: Route = "sweep"
    product: ProductName = "auto"
    radius_of_differences: float | None = None
    every: int = 1
    _products: dict[str, Product] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        one_of("gradient", self.gradient, ROUTES)
        one_of("product", self.product, PRODUCTS)
        whole("every", self.every, 1)
        if self.ascent == "sign" and self.gradient != "none" and self.steps > 0:
            raise SettingError(
                "ascent='sign' has no derivative, so there is nothing to anticipate and the game would silently be "
                "VAT; use ascent='normalized', or the method 'vat'"
            )
        if self.radius_of_differences is not None:
            number("radius_of_differences", self.radius_of_differences, above=0)

    def route(self) -> Route:
        """The route at this step: with `every`, the interaction is left out in between."""
        return self.gradient if self.clock.step % self.every == 0 else "none"

    def amplified(self, response: Deltas) -> Deltas:
        """With `every` = m, the steps that do take the interaction take it m times."""
        if self.every == 1:
            return response
        return {side: delta.detach() + self.every * (delta - delta.detach()) for side, delta in response.items()}

    def product_for(self, working: str) -> Product:
        """The sweep's product at this working precision, the same one at every step."""
        if working not in self._products:
            r = self.radius_of_differences or DIFFERENCE_RADIUS[working]
            self._products[working] = build(self.product, r, working)
        return self._products[working]

    @property
    def differentiates_gradients(self) -> bool:
        """Where there is an interaction."""
        return self.steps > 0 and self.route() != "none"

    @property
    def variant(self) -> object:
        """With `every`, some steps have another route."""
        return super().variant, self.route()

    @property
    def obstacles(self) -> list[Obstacle]:
        """Compiled layers are differentiated by double backward or by differences."""
        found = super().obstacles
        if self.gradient == "exact" and self.steps:
            found.append(Obstacle("gradient='exact' differentiates through everything at once", "eager"))
        if self.product == "forward_over_reverse":
            found.append(Obstacle("product='forward_over_reverse' carries tangents through every operation", "eager"))
        return found

    @property
    def second_derivative(self) -> bool:
        """Unless by differences."""
        route = self.route()
        return self.steps > 0 and (route == "exact" or (route == "sweep" and self.product != "differences"))
