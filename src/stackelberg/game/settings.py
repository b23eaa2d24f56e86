"""The settings that methods share, each beside its symbol in the paper, checked when a game is made.

A method inherits the groups it needs, so that it knows exactly its own settings and refuses all others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..errors import SettingError, one_of
from . import ascent, product
from .ball import NORMS, PERS, Ball, Norm, Per, length
from .conditions import DROPOUTS, Dropout
from .divergence import DIVERGENCES
from .follower import Follower
from .game import Game
from .huggingface import refuse_packed
from .injection import Deltas
from .noise import NOISES, NoiseName, unit_noise
from .response import ROUTES, Route
from .precision import DIFFERENCE_RADIUS
from .round import Round
from .space import Space, perturbable


def number(
    name: str, value: object, *, above: float = -math.inf, least: float = -math.inf, most: float = math.inf
) -> None:
    """Refuse a value that is not a finite number in range."""
    real = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not real or not (least <= value <= most and value > above):  # type: ignore[operator]
        bounds = [f"above {above:g}"] * (above > -math.inf) + [f"at least {least:g}"] * (least > -math.inf)
        bounds += [f"at most {most:g}"] * (most < math.inf)
        raise SettingError(f"{name}={value!r} should be a number {' and '.join(bounds)}")


def whole(name: str, value: object, least: int) -> None:
    """Refuse a value that is not a whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SettingError(f"{name}={value!r} should be a whole number of at least {least}")


@dataclass(kw_only=True, eq=False)
class Regularizing(Game):
    """A method with a regularizer: F = L + (α/N) Σ …

    Args:
        weight: α.
        start_step: the optimizer step at which the method begins; before, it is plain.
        ramp: how many steps α takes to grow from 0 to `weight`, from `start_step` on.
        dropout: `"shared"`: every pass of a step draws the clean pass's masks. `"off"`: the regularizer's
            passes, and a second reference pass they are compared with, run without dropout. `"independent"`:
            each pass draws its own, so that the divergence holds dropout's noise too, as in R-Drop.
        reduction: for token-level outputs, `"tokens"`: α times the mean over all real tokens; `"sentences"`:
            α times the mean over sentences of the sum over a sentence's tokens.
    """

    weight: float = 1.0
    start_step: int = 0
    ramp: int = 0
    dropout: Dropout = "shared"
    reduction: str = "tokens"

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        number("weight", self.weight, least=0)
        whole("start_step", self.start_step, 0)
        whole("ramp", self.ramp, 0)
        one_of("dropout", self.dropout, DROPOUTS)
        one_of("reduction", self.reduction, ("tokens", "sentences"))

    @property
    def dropout_policy(self) -> Dropout:
        """The setting."""
        return self.dropout

    def is_on(self) -> bool:
        """From `start_step` on."""
        return self.clock.step >= self.start_step

    def alpha(self) -> float:
        """α at this step."""
        grown = 1.0 if not self.ramp else min(1.0, (self.clock.step - self.start_step + 1) / self.ramp)
        return self.weight * grown

    def regularizer(self, round: Round, values: Tensor) -> Tensor:
        """(α/N) Σ ℓ, and its size into the report."""
        mean = values.sum() / round.denominator(self.by_sentence(round))
        round.report.divergence = mean.detach()
        return self.alpha() * mean

    def by_sentence(self, round: Round) -> bool:
        """Whether the regularizer's N counts sentences where the task loss counts tokens."""
        chosen = self.reduction == "sentences" and round.task.by_token
        if chosen and round.normalizer is not None and not isinstance(round.normalizer, tuple):
            raise SettingError(
                'reduction="sentences" divides the loss by tokens and the regularizer by sentences; give both, '
                "normalizer=(tokens, sentences)"
            )
        return chosen


@dataclass(kw_only=True, eq=False)
class Diverging(Regularizing):
    """A regularizer that is a divergence between the clean output and another.

    Args:
        divergence: ℓ_v, one of `kl`, `symmetric_kl`, `half_symmetric_kl`, `js`, `mse` (of the outputs
            themselves). Left out: the method's own, and `mse` for regression.
        detach_target: treat the clean output as a constant, as Miyato's VAT does and the paper does not.
    """

    own_divergence: ClassVar[str] = "kl"

    divergence: str | None = None
    detach_target: bool = False

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        if self.divergence is not None:
            one_of("divergence", self.divergence, DIVERGENCES)

    def divergence_for(self, round: Round, chosen: str | None = None) -> str:
        """The divergence that fits the task."""
        chosen = chosen or self.divergence
        if round.task.kind == "regression":
            if chosen not in (None, "mse"):
                raise SettingError(
                    f"divergence={chosen!r} compares distributions, but this is a regression head with "
                    "single values, where it would always be 0; use divergence='mse' or leave it out"
                )
            return "mse"
        return chosen or self.own_divergence


@dataclass(kw_only=True, eq=False)
class Perturbing(Game):
    """A method that moves the word embeddings: where δ lives and where it starts.

    Args:
        epsilon: ε, the ball's radius. Left out, a value that constrains alike under each norm and
            granularity: 1 (ℓ2, sentence), 0.25 (ℓ2, token), 0.02 (ℓ∞).
        norm: of the ball, `"l2"` or `"linf"`.
        per: `"sentence"`: one ball for a sentence's whole perturbation, as in the paper; `"token"`.
        relative: ε, η and σ are multiples of the embeddings' own size (that of the sentence or token in
            the ball's norm for ε and η; the root mean square of a coordinate for σ).
        start_noise: the distribution of δ⁰: `"normal"`, `"uniform"` of the same deviation, or `"zero"`.
        init_std: σ, the standard deviation of each coordinate of δ⁰. Left out, `init_radius` decides.
        init_radius: the expected ‖δ⁰‖ / ε, whatever the sentence's length and the embeddings' width.
        sides: which embeddings are perturbed, of `("source", "target")`; left out, all there are.
        exclude_tokens: ids of tokens that are never perturbed, such as the special ones.
        perturb_prompt: whether a causal model's prompt (label −100) is perturbed.
    """

    default_epsilons: ClassVar[dict[tuple[str, str], float]] = {
        ("l2", "sentence"): 1.0,
        ("l2", "token"): 0.25,
        ("linf", "sentence"): 0.02,
        ("linf", "token"): 0.02,
    }

    epsilon: float | None = None
    norm: Norm = "l2"
    per: Per = "sentence"
    relative: bool = False
    start_noise: NoiseName = "normal"
    init_std: float | None = None
    init_radius: float = 0.3
    sides: tuple[str, ...] | None = None
    exclude_tokens: tuple[int, ...] = ()
    perturb_prompt: bool = True

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        one_of("norm", self.norm, NORMS)
        one_of("per", self.per, PERS)
        one_of("start_noise", self.start_noise, NOISES)
        if self.epsilon is not None:
            number("epsilon", self.epsilon, above=0)
        if self.init_std is not None:
            number("init_std", self.init_std, least=0)
        number("init_radius", self.init_radius, least=0)
        for side in self.sides or ():
            one_of("sides", side, ("source", "target"))

    @property
    def radius(self) -> float:
        """ε."""
        return self.default_epsilons[self.norm, self.per] if self.epsilon is None else self.epsilon

    def space(self, round: Round) -> dict[str, Space]:
        """Where each perturbed side's δ may be, once the first pass has shown the embeddings."""
        for side in self.sides or ():
            if side not in round.embedded:
                raise SettingError(f"sides={self.sides!r}: this model has only {', '.join(round.embedded)} embeddings")
        return {side: self.space_of(round, side, x) for side, x in round.embedded.items() if self.moves(side)}

    def moves(self, side: str) -> bool:
        """Whether a side is perturbed."""
        return self.sides is None or side in self.sides

    def space_of(self, round: Round, side: str, x: Tensor) -> Space:
        """One side's space; `x` is what its embedding put out, (B, L, d)."""
        mask = perturbable(round, side, x, self.exclude_tokens, self.perturb_prompt)
        x = x.to(mask.dtype) * mask
        tokens = mask.sum((1, 2), keepdim=True).clamp_min(1) if self.per == "sentence" else 1
        coordinates = tokens * x.shape[-1] if self.norm == "l2" else 1  # how many share one unit of the norm
        unit = length(x, self.norm, self.per) if self.relative else 1.0
        ball = Ball(self.radius * unit, self.norm, self.per)
        if self.init_std is None:
            deviation = self.init_radius * self.radius * unit / coordinates**0.5
        else:
            deviation = self.init_std * (length(x, "l2", self.per) / (tokens * x.shape[-1]) ** 0.5 if self.relative else 1)
        return Space(mask, ball, unit, coordinates, deviation)

    def start(self, round: Round, spaces: dict[str, Space]) -> Deltas:
        """δ⁰ of every perturbed side, masked but not projected; a given one as it is."""
        refuse_packed(round.batch, self.per)
        given = round.start
        if isinstance(given, Mapping) and set(given) != set(spaces):
            raise SettingError(f"start names the sides {sorted(given)}, but {sorted(spaces)} are perturbed")
        if isinstance(given, Tensor) and len(spaces) != 1:
            raise SettingError(f"start is one tensor, but {', '.join(spaces)} are perturbed; give a mapping from side")
        return {side: self.start_of(round, side, round.embedded[side], space) for side, space in spaces.items()}

    def start_of(self, round: Round, side: str, x: Tensor, space: Space) -> Tensor:
        """One side's δ⁰."""
        if round.start is not None:
            given = round.start if isinstance(round.start, Tensor) else round.start[side]
            if given.shape != x.shape:
                raise SettingError(f"start of side {side!r} is {tuple(given.shape)}, its embeddings are {tuple(x.shape)}")
            return given.detach().to(space.mask) * space.mask
        drawn = unit_noise(
            self.start_noise, x.shape, round.row_index(len(x)), seed=self.seed, step=self.clock.step, side=side
        )
        return drawn.to(space.mask.dtype) * space.mask * space.deviation


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
    product: product.ProductName = "auto"
    radius_of_differences: float | None = None
    every: int = 1

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        one_of("gradient", self.gradient, ROUTES)
        one_of("product", self.product, product.PRODUCTS)
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

    def product_for(self, working: str) -> product.Product:
        """The sweep's product at this working precision."""
        r = self.radius_of_differences or DIFFERENCE_RADIUS[working]
        return product.build("double_backward" if self.product == "auto" else self.product, r)

    @property
    def second_derivative(self) -> bool:
        """Unless by differences."""
        route = self.route()
        return self.steps > 0 and (route == "exact" or (route == "sweep" and self.product != "differences"))
