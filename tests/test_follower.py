"""The parts of the follower: balls, rules, pull-backs and noise, against `naive.py`, autograd and geometry.

Everything is float64 and drawn by hypothesis: rows of zeros, padding, whole sentences that may not move, and
points exactly on a ball's surface are ordinary here, and nothing may come out infinite or NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import naive
from stackelberg import R3F, SALT, Game, Task
from stackelberg.game.ascent import AscentName, build
from stackelberg.game.ball import Ball, Norm, Per
from stackelberg.game.follower import Follower, States, Trajectory
from stackelberg.game.noise import NoiseName, unit_noise

DOUBLE = torch.float64
NORMS: list[Norm] = ["l2", "linf"]
PERS: list[Per] = ["sentence", "token"]
ASCENTS: list[AscentName] = ["sgd", "normalized", "sign", "adam"]
SIDES = ("source", "target")
EPSILON, ETA = 0.7, 0.5

quick = settings(max_examples=25, deadline=None, derandomize=True)
every_ball = pytest.mark.parametrize(("norm", "per"), [(norm, per) for norm in NORMS for per in PERS])


@st.composite
def perturbations(draw: st.DrawFn, scales: tuple[float, ...] = (1.0,)) -> Tensor:
    """(B, L, d), at random with rows, sentences and coordinates of zeros, and ties in size."""
    rows, length, width = (draw(st.integers(1, 4)) for _ in range(3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    x = torch.randn(rows, length, width, generator=generator, dtype=DOUBLE) * draw(st.sampled_from(scales))
    if draw(st.booleans()):
        x = x * (torch.rand(rows, length, 1, generator=generator) < 0.6)
    if draw(st.booleans()):
        x = x.sign() * EPSILON  # every coordinate on the surface of ℓ∞
    return x


def lengths(x: Tensor, norm: Norm, per: Per) -> Tensor:
    """‖·‖ of every ball, by torch's own norms in a unit that suits x: (B, 1, 1) or (B, L, 1)."""
    unit = x.abs().max().clamp_min(1e-300)
    balls = (x / unit).flatten(1)[:, None, :] if per == "sentence" else x / unit
    return unit * torch.linalg.vector_norm(balls, 2 if norm == "l2" else math.inf, dim=-1, keepdim=True)


def vjp(function: Callable[[Tensor], Tensor], x: Tensor, v: Tensor) -> Tensor:
    leaf = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(function(leaf), leaf, v, materialize_grads=True)
    return found


# --------------------------------------------------------------------------------------------------
# Balls


@every_ball
@given(x=perturbations(scales=(1e-200, 1e-9, 0.1, 1.0, 1e9)), seed=st.integers(0, 1000))
@quick
def test_the_projection_is_the_nearest_point_of_the_ball(norm: Norm, per: Per, x: Tensor, seed: int) -> None:
    """Inside, unmoved if it was inside, idempotent, and no other point of the ball is nearer."""
    ball = Ball(EPSILON, norm, per)
    nearest = ball.project(x)
    assert (lengths(nearest, norm, per) <= EPSILON * (1 + 1e-12)).all()
    assert torch.allclose(ball.project(nearest), nearest, rtol=1e-12, atol=0)
    inside = (lengths(x, norm, per) <= EPSILON).expand_as(x)
    assert torch.equal(nearest[inside], x[inside])
    specified = naive.each_ball(partial(naive.projected, norm=norm, epsilon=EPSILON), x, per)
    assert torch.allclose(nearest, specified, rtol=1e-12, atol=0)

    generator = torch.Generator().manual_seed(seed)
    for share in (1.0, 1.0, 0.9, 0.5, 0.0):  # other points of the ball, on its surface and within
        other = torch.randn(x.shape, generator=generator, dtype=DOUBLE)
        other = other * (share * EPSILON / lengths(other, norm, per))
        axes = (-2, -1) if per == "sentence" else -1
        assert ((x - nearest).norm(dim=axes) <= (x - other).norm(dim=axes) * (1 + 1e-12)).all()


@every_ball
@given(x=perturbations(scales=(1e-200, 1e-9, 1.0, 1e9)), factor=st.sampled_from([1e-100, 1e-20, 0.5, 1e100]))
@quick
def test_unit_vectors(norm: Norm, per: Per, x: Tensor, factor: float) -> None:
    """Length 1 and parallel to x, whatever x is measured in, and the derivative with it; 0 where x is 0.

    A length whose square is no number may count as 0, but only all of it: nothing is infinite or in between.
    """
    ball = Ball(EPSILON, norm, per)
    v = torch.linspace(-1, 2, x.numel(), dtype=DOUBLE).view_as(x)
    unit, pulled, size = ball.unit(x), vjp(ball.unit, x, v), lengths(x, norm, per)
    assert pulled.isfinite().all()
    as_zero = (unit == 0).all((1, 2) if per == "sentence" else 2).view_as(size)
    assert (as_zero == (size == 0))[(size == 0) | (size > 1e-150)].all()
    assert pulled[as_zero.expand_as(x)].eq(0).all()
    assert torch.allclose(lengths(unit, norm, per)[~as_zero], torch.ones((), dtype=DOUBLE), rtol=1e-12)
    assert torch.allclose(unit * size, torch.where(as_zero, 0, x), rtol=1e-12, atol=0)
    if ((size == 0) | (size * min(1, factor) > 1e-150)).all():
        assert torch.allclose(ball.unit(x * factor), unit, rtol=1e-12)
        largest = x.abs().max()
        again = vjp(ball.unit, x * factor, v) * (largest * factor)
        assert torch.allclose(again, pulled * largest, rtol=1e-9, atol=1e-9)


@every_ball
def test_a_relative_ball_has_a_radius_for_each(norm: Norm, per: Per) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 2, 4, generator=generator, dtype=DOUBLE)
    shape = (3, 1, 1) if per == "sentence" else (3, 2, 1)
    radius = torch.rand(shape, generator=generator, dtype=DOUBLE) + 0.1
    together = Ball(radius, norm, per).project(x)
    for i, j in ((0, 0), (1, 1), (2, 0)):
        alone = Ball(float(radius[i].flatten()[j if per == "token" else 0]), norm, per).project(x[i : i + 1])
        assert torch.allclose(together[i, j], alone[0, j], rtol=1e-12)


# Points where a careless norm, root or projection has no derivative: 0, and exactly on the surface.
CORNERS = {
    "zero": [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]],
    "one row of zeros": [[0.3, -0.2, 0.1], [0.0, 0.0, 0.0]],
    "on the surface of l2": [[3.0, 4.0, 0.0], [0.0, 0.0, 0.0]],
    "on the surface of linf": [[5.0, -5.0, 1.0], [0.0, 5.0, 0.0]],
    "a tie for the largest": [[7.0, -7.0, 7.0], [7.0, 0.0, 0.0]],
    "tiny": [
        [1e-200, 0.0, 0.0],
        [1e-200, -1e-200, 0.0],
    ],  # its square is 0, the square of its inverse infinite
}


@every_ball
@pytest.mark.parametrize("corner", CORNERS)
@pytest.mark.parametrize("relative", [False, True])
def test_corners_have_finite_derivatives(corner: str, norm: Norm, per: Per, relative: bool) -> None:
    """On the surface a point is inside: Π and its derivative are the identity. 0/0 is 0, and constant."""
    x = torch.tensor([CORNERS[corner]], dtype=DOUBLE)
    v = torch.tensor([[[1.0, 2.0, -3.0], [-1.0, 0.5, 2.0]]], dtype=DOUBLE)
    radius = torch.full((1, 1 if per == "sentence" else 2, 1), 5.0, dtype=DOUBLE) if relative else 5.0
    ball, size = Ball(radius, norm, per), lengths(x, norm, per).expand_as(x)
    moved, pulled = ball.project(x), vjp(ball.project, x, v)
    assert moved.isfinite().all() and pulled.isfinite().all()
    assert torch.equal(moved[size <= 5], x[size <= 5]) and torch.equal(pulled[size <= 5], v[size <= 5])
    unit, pulled = ball.unit(x), vjp(ball.unit, x, v)
    assert unit.isfinite().all() and pulled.isfinite().all()
    assert unit[size == 0].eq(0).all() and pulled[size == 0].eq(0).all()


@pytest.mark.parametrize("ascent", ASCENTS)
@every_ball
def test_gradcheck(norm: Norm, per: Per, ascent: AscentName) -> None:
    """Two steps with their state, with padding and a sentence outside its ball, by finite differences."""
    generator = torch.Generator().manual_seed(2)
    draw = partial(torch.randn, 2, 3, 2, generator=generator, dtype=DOUBLE)
    mask = torch.ones(2, 3, 1, dtype=DOUBLE)
    mask[0, 2] = 0
    scale = torch.tensor([0.1, 2.0], dtype=DOUBLE)[:, None, None]
    ball = Ball(EPSILON, norm, per)
    follower = Follower({"source": ball}, {"source": build(ascent, ETA, ball)}, {"source": mask}, 2)

    def play(delta: Tensor, *gradients: Tensor) -> Tensor:
        deltas, states = {"source": delta}, follower.start({"source": delta})
        for k, g in enumerate(gradients):
            deltas, states = follower.move(k, deltas, {"source": g}, states)
        return deltas["source"]

    leaves = [(x * scale).requires_grad_() for x in (draw() * mask, draw(), draw())]
    assert torch.autograd.gradcheck(play, leaves, eps=1e-7, atol=1e-5)


# --------------------------------------------------------------------------------------------------
# Pull-backs


def naive_step(
    ascent: AscentName, norm: Norm, per: Per, delta: Tensor, g: Tensor, state: naive.Moments
) -> tuple[Tensor, naive.Moments]:
    """One step of one side, of the pieces that `naive.stackelberg_objective` is made of."""
    step = g if ascent == "sgd" else g.sign()
    if ascent == "normalized":
        step = naive.each_ball(partial(naive.unit, norm=norm), g, per)
    elif ascent == "adam":
        step, state = naive.adam_step(state, g, (0.9, 0.98), 1e-8, 1e-12)
    moved = naive.each_ball(partial(naive.projected, norm=norm, epsilon=EPSILON), delta + ETA * step, per)
    return moved, state


@st.composite
def climbs(draw: st.DrawFn) -> tuple[dict[str, Tensor], dict[str, Tensor], list[dict[str, Tensor]]]:
    """δ⁰, masks and the gradients of some steps, for one side or two of different lengths."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    rows, width = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    shapes = {side: (rows, draw(st.integers(1, 4)), width) for side in SIDES[: draw(st.integers(1, 2))]}
    masks = {s: (torch.rand(*of[:2], 1, generator=generator) < 0.8).to(DOUBLE) for s, of in shapes.items()}
    sizes = torch.logspace(-3, 1, rows, dtype=DOUBLE)[:, None, None]  # sentences inside and far outside

    def noise(side: str) -> Tensor:
        return sizes * torch.randn(shapes[side], generator=generator, dtype=DOUBLE)

    start = {side: noise(side) * masks[side] for side in shapes}
    gradients = [{side: noise(side) for side in shapes} for _ in range(draw(st.integers(1, 4)))]
    if draw(st.booleans()):
        for g in gradients:
            g["source"][0] = 0  # a saturated sentence
    return start, masks, gradients


@pytest.mark.parametrize("ascent", ASCENTS)
@every_ball
@given(climb=climbs())
@quick
def test_pull_backs_are_those_of_autograd(norm: Norm, per: Per, ascent: AscentName, climb: Any) -> None:
    """K pull-backs in a row, states and all, are autograd through K moves at once, Follower's and naive's."""
    start, masks, gradients = climb
    balls = {side: Ball(EPSILON, norm, per) for side in start}
    rules = {side: build(ascent, ETA, ball) for side, ball in balls.items()}
    follower = Follower(balls, rules, masks, len(gradients))
    path, states = Trajectory([start]), follower.start(start)
    certain = torch.full((len(start["source"]),), torch.inf)
    for k, g in enumerate(gradients):
        path.remember(cast(Any, None), g, states, certain)
        moved, states = follower.move(k, path.deltas[k], g, states)
        path.deltas.append(moved)

    generator = torch.Generator().manual_seed(1)
    cotangents = {s: torch.randn(x.shape, generator=generator, dtype=DOUBLE) for s, x in start.items()}
    v, v_states = cotangents, cast(States | None, None)
    directions: list[Tensor] = []
    for k in reversed(range(len(gradients))):
        v, u, v_states = follower.pull_back(path, k, v, v_states)
        directions[:0] = u.values()
    pulled = [*v.values(), *directions]
    assert all(x.isfinite().all() for x in pulled)

    def leaves() -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
        return _leaf(start), [_leaf(g) for g in gradients]

    def autograd(deltas: dict[str, Tensor], *leaves: dict[str, Tensor]) -> list[Tensor]:
        inputs = [x for step in leaves for x in step.values()]
        outputs = [deltas[side] for side in cotangents]
        return list(torch.autograd.grad(outputs, inputs, [*cotangents.values()], materialize_grads=True))

    first, climbed = leaves()
    deltas, states = first, follower.start(first)
    for k, g in enumerate(climbed):
        deltas, states = follower.move(k, deltas, g, states)
    expected = autograd(deltas, first, *climbed)

    first, climbed = leaves()
    deltas = dict(first)
    moments = {s: naive.Moments(torch.zeros_like(x), torch.zeros_like(x), 0) for s, x in first.items()}
    for g in climbed:
        for side in deltas:
            masked = g[side] * masks[side]
            deltas[side], moments[side] = naive_step(ascent, norm, per, deltas[side], masked, moments[side])
    assert all(torch.allclose(path.deltas[-1][side], deltas[side], rtol=1e-10) for side in deltas)
    independent = autograd(deltas, first, *climbed)

    for ours, theirs, naives in zip(pulled, expected, independent, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-10, atol=1e-12)
        assert torch.allclose(ours, naives, rtol=1e-8, atol=1e-10)
    for k in range(len(gradients)):
        for i, side in enumerate(start):  # nothing went through the gradient of a pad
            assert (directions[k * len(start) + i] * (1 - masks[side])).eq(0).all()


def _leaf(deltas: dict[str, Tensor]) -> dict[str, Tensor]:
    return {side: delta.clone().requires_grad_() for side, delta in deltas.items()}


# --------------------------------------------------------------------------------------------------
# Noise


class Watched(nn.Module):
    """A tiny classifier that keeps what its embedding hands on, δ included."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3, dtype=DOUBLE)
        self.head = nn.Linear(3, 2, dtype=DOUBLE)
        self.seen: list[Tensor] = []

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.embedding(ids)
        self.seen.append(x.detach())
        logits: Tensor = self.head((torch.tanh(x) * mask[:, :, None]).sum(1))
        return logits


WATCHED = Task(
    "classification",
    logits=lambda model, batch: model(batch["ids"], batch["mask"]),
    loss=lambda logits, batch: logits.square().mean(),
    masks=lambda batch: batch["mask"],
)


def start_of(game: Game, real: list[int], width: int, **given: Any) -> Tensor:
    """δ⁰ (B, width, d) of a game without steps, on sentences of `real` tokens padded to `width`."""
    mask = torch.arange(width) < torch.tensor(real)[:, None]
    model = Watched()
    game(model, {"ids": mask.long(), "mask": mask}, **given)
    clean, perturbed = model.seen[:2]
    assert torch.equal(clean[~mask], perturbed[~mask])  # pads get none, to the last bit
    assert (clean[mask] != perturbed[mask]).all()
    return perturbed - clean


@pytest.mark.filterwarnings("ignore:the start noise")  # of one or two tokens
@every_ball
@given(
    real=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    extra=st.integers(1, 4),
    cut=st.integers(0, 5),
    seed=st.integers(-(2**70), 2**70),
    kind=st.sampled_from(["normal", "uniform"]),
)
@quick
def test_noise_belongs_to_the_example(
    norm: Norm, per: Per, real: list[int], extra: int, cut: int, seed: int, kind: NoiseName
) -> None:
    """Zero on pads; the same if padded further, and if the step is cut into micro-batches anywhere."""

    def fresh() -> Game:
        return SALT(steps=0, norm=norm, per=per, seed=seed, start_noise=kind, task=WATCHED)

    width = max(real)
    whole = start_of(fresh(), real, width)
    assert torch.allclose(start_of(fresh(), real, width + extra)[:, :width], whole, rtol=1e-9, atol=1e-14)
    game, numbered, parts = fresh(), [], []
    for rows in (slice(cut), slice(cut, None)):
        index = torch.arange(len(real))[rows]
        if len(index):
            parts.append(start_of(game, real[rows], width))
            numbered.append(start_of(fresh(), real[rows], width, index=index))
    assert torch.allclose(torch.cat(parts), whole, rtol=1e-9, atol=1e-14)
    assert torch.allclose(torch.cat(numbered), whole, rtol=1e-9, atol=1e-14)


@every_ball
def test_the_default_noise_is_not_called_too_much(norm: Norm, per: Per) -> None:
    """‖δ⁰‖/ε is measured in the ball's own norm and granularity: by default there is nothing to warn of."""
    game = SALT(norm=norm, per=per, task=WATCHED)
    for _ in range(3):
        start_of(game, [5, 3, 8], 8)  # warnings are errors


@pytest.mark.parametrize("kind", ["normal", "uniform"])
@every_ball
def test_noise_has_the_length_it_should(norm: Norm, per: Per, kind: NoiseName) -> None:
    """‖δ⁰‖ is init_radius · ε in the ball's own norm, whatever the sentence's length; or σ a coordinate.

    The largest of a few coordinates varies much: its root mean square is a quarter more than its mean.
    """
    real = [1, 2, 8, 64] * 200
    game = SALT(steps=0, norm=norm, per=per, epsilon=2.0, init_radius=0.3, start_noise=kind, task=WATCHED)
    size = lengths(start_of(game, real, 64), norm, per)
    for i in range(4):
        found = size[i::4, : real[i] if per == "token" else 1].square().mean().sqrt().item()
        assert found == pytest.approx(0.6, rel=0.06) if norm == "l2" else 0.45 < found < 0.75
    game = R3F(norm=norm, per=per, init_std=0.1, start_noise=kind, task=WATCHED)
    assert start_of(game, real, 64)[3::4].std().item() == pytest.approx(0.1, rel=0.03)


@given(
    length=st.integers(1, 6),
    extra=st.integers(0, 4),
    seed=st.integers(-(2**70), 2**70),
    step=st.integers(0, 2**40),
    index=st.lists(st.integers(0, 2**50), min_size=1, max_size=6, unique=True),
    kind=st.sampled_from(["normal", "uniform", "zero"]),
)
@settings(quick, max_examples=60)
def test_unit_noise_is_a_function_of_its_key(
    length: int, extra: int, seed: int, step: int, index: list[int], kind: NoiseName
) -> None:
    def noise(numbers: list[int], tokens: int, **changed: Any) -> Tensor:
        key = {"seed": seed, "step": step, "side": "source"} | changed
        return unit_noise(kind, torch.Size([len(numbers), tokens, 3]), torch.tensor(numbers), **key)

    found = noise(index, length)
    assert found.isfinite().all() and found.abs().max() < 6
    assert torch.equal(noise(index, length + extra)[:, :length], found)
    assert torch.equal(torch.cat([noise([i], length) for i in index]), found)
    assert torch.equal(noise(index[::-1], length).flip(0), found)
    if kind != "zero":
        for changed in ({"seed": seed + 1}, {"step": step + 1}, {"side": "target"}):
            assert not torch.equal(noise(index, length, **changed), found)
        assert len({tuple(x.flatten().tolist()) for x in found}) == len(index)


@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_unit_noise_looks_independent(kind: NoiseName) -> None:
    """Mean 0, deviation 1, no correlation between examples, tokens, coordinates, steps, seeds or sides."""
    shape, index = torch.Size([40, 30, 50]), torch.arange(40)
    draw = partial(unit_noise, kind, shape, index)
    key: dict[str, Any] = {"seed": 0, "step": 0, "side": "source"}
    x = draw(**key).double()
    allowed = 5 / math.sqrt(x.numel())  # five standard errors
    assert abs(x.mean().item()) < allowed and x.square().mean().item() == pytest.approx(1, abs=3 * allowed)
    fourth = 3.0 if kind == "normal" else 9 / 5
    assert (x**4).mean().item() == pytest.approx(fourth, rel=0.05)
    others = [x.roll(1, axis) for axis in range(3)]
    others += [draw(**key | changed).double() for changed in ({"seed": 1}, {"step": 1}, {"side": "target"})]
    assert all(abs((x * other).mean().item()) < allowed for other in others)
