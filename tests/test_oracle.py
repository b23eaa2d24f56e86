"""The proof that every route computes the paper's gradient.

Two witnesses know nothing of the library: `naive.py`, which unrolls the paper's equations, and differences of
the objective's value. All runs are float64 with eager attention and, unless a test says so, without dropout,
so that two right answers agree to rounding. What is tested is never negligible: where two gradients must
agree, the interaction is at least 1 % of the leader's own gradient.

The full product of the settings runs under `pytest -m soak`; without it, a sample in which every pair meets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

import naive
import zoo
from helping import error, flat
from pairwise import Case, cross, pairs, pairwise
from stackelberg import R3F, SALT, SMART, VAT, Adv, FreeLB, Game, Plain, SALTAdv, SettingError, Task

pytestmark = pytest.mark.filterwarnings("ignore:the start noise")  # large on purpose, to reach the surface

DOUBLE = torch.float64
KINDS = {
    "classification": "bert",
    "regression": "bert",
    "token": "bert",
    "seq2seq": "marian",  # two sides, and a decoder that starts with the pad
    "causal": "gpt2",
}
ROUTES: dict[str, dict[str, Any]] = {
    "double_backward": {"product": "double_backward"},
    "forward_over_reverse": {"product": "forward_over_reverse"},
    "differences": {"product": "differences", "radius_of_differences": 3e-6},
    "exact": {"gradient": "exact"},
}
TOLERANCES = {"double_backward": 1e-8, "forward_over_reverse": 1e-8, "differences": 1e-5, "exact": 1e-8}
PAYOFFS: dict[str, Callable[..., Tensor]] = {
    "kl": naive.kl,
    "symmetric_kl": naive.symmetric_kl,
    "half_symmetric_kl": naive.half_symmetric_kl,
    "js": naive.js,
    "mse": naive.mse,
}
RADII = {("l2", "sentence"): 1.5, ("l2", "token"): 0.5, ("linf", "sentence"): 0.3, ("linf", "token"): 0.25}
FORMS = ["call", "backward"]  # game(...).backward() and game.backward(...)

Form = Literal["call", "backward"]
Start = Tensor | Mapping[str, Tensor]


# --------------------------------------------------------------------------------------------------
# An arena: one tiny model, one padded batch, and both tellings of the game on them


class Arena:
    """A model and a batch, where `naive` and the library play the same game."""

    def __init__(self, kind: str, arch: str, *, dropout: float = 0.0, rows: int = 4) -> None:
        self.kind = kind
        self.model, self.batch = zoo.build(kind, arch, dropout=dropout, batch=rows)
        self.players = zoo.players(kind, self.model, self.batch)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        counted = self.players.counted
        self.count = rows if counted is None else int(counted.sum())  # N, the task loss's own denominator

    def start(self, std: float = 0.1) -> Start:
        """δ⁰ as the library takes it, with noise on the padding too: a tensor, or a mapping for two sides."""
        starts = self.players.starts(std)
        return starts[0] if len(starts) == 1 else dict(zip(("source", "target"), starts, strict=True))

    def add(self, game: Game, form: Form = "call", batch: zoo.Batch | None = None, **given: Any) -> float:
        """Play; the gradient is added to `.grad`, the value returned. Dropout is that of `players`."""
        torch.manual_seed(0)
        if form == "backward":
            value = game.backward(self.model, batch or self.batch, **given).loss
            assert value is not None
            return value.item()
        loss = game(self.model, batch or self.batch, **given)
        loss.backward()
        return loss.item()

    def play(self, game: Game, form: Form = "call", **given: Any) -> tuple[float, Tensor]:
        """F and dF/dθ."""
        self.model.zero_grad()
        return self.add(game, form, **given), self.grad()

    def grad(self) -> Tensor:
        return flat([torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters])

    def naive(
        self, payoff: naive.Payoff | str, std: float = 0.1, masks: list[Tensor] | None = None, **game: Any
    ) -> naive.Objective:
        if isinstance(payoff, str):
            payoff = partial(PAYOFFS[payoff], mask=self.players.counted)
        starts, masks = self.players.starts(std), masks or self.players.masks
        players = self.players.logits, self.players.task_loss
        return naive.stackelberg_objective(*players, starts, masks, payoff=payoff, normalizer=float(self.count), **game)

    def differentiate(self, value: Tensor) -> Tensor:
        return flat(torch.autograd.grad(value, self.parameters, retain_graph=True, materialize_grads=True))

    def directions(self) -> list[Tensor]:
        """A random direction in θ; an embedding's padding row, which torch gives no gradient, stays."""
        generator = torch.Generator().manual_seed(5)
        found = [torch.randn(p.shape, generator=generator, dtype=DOUBLE) for p in self.parameters]
        for module in self.model.modules():
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                for parameter, direction in zip(self.parameters, found, strict=True):
                    if parameter is module.weight:
                        direction[module.padding_idx] = 0
        return found

    def slope(self, value: Callable[[], Tensor], directions: list[Tensor], h: float = 1e-6) -> Tensor:
        """[value(θ + h d) - value(θ - h d)]/2h."""
        with self.moved(directions, h):
            ahead = value()
        with self.moved(directions, -h):
            behind = value()
        return (ahead - behind) / (2 * h)

    @contextmanager
    def moved(self, directions: list[Tensor], h: float) -> Iterator[None]:
        before = [p.detach().clone() for p in self.parameters]
        with torch.no_grad():
            for parameter, direction in zip(self.parameters, directions, strict=True):
                parameter.add_(direction, alpha=h)
        yield
        with torch.no_grad():
            for parameter, value in zip(self.parameters, before, strict=True):
                parameter.copy_(value)


@cache
def arena(kind: str, *, arch: str = "", dropout: float = 0.0, rows: int = 4) -> Arena:
    return Arena(kind, arch or KINDS[kind], dropout=dropout, rows=rows)


# --------------------------------------------------------------------------------------------------
# Every setting: sampled, or all of them

OPTIONS: dict[str, Sequence[Any]] = {
    "kind": list(KINDS),
    "steps": [1, 2, 3, 4],
    "ascent": ["sgd", "normalized", "adam"],
    "norm": ["l2", "linf"],
    "per": ["sentence", "token"],
    "divergence": list(PAYOFFS),
    "detach_target": [False, True],
    "room": ["tight", "wide"],
}


def everything(**changes: Sequence[Any]) -> list[Case]:
    """All combinations of the options, in either room by turns. Regression's only divergence is `mse`."""
    options = OPTIONS | changes

    def allowed(case: Case) -> bool:
        turn = sum(options[option].index(value) for option, value in case.items())
        return turn % 2 == 0 and (case["kind"] != "regression" or case["divergence"] == "mse")

    return cross(options, allowed)


def name(case: Case) -> str:
    return "-".join(f"{option}={value}" if value in (True, False) else str(value) for option, value in case.items())


def sampled(cases: list[Case]) -> list[Any]:
    """A covering sample for the default run; what is left of the product is soak."""
    sample = pairwise(cases)
    rest = [case for case in cases if case not in sample]
    return [pytest.param(case, id=name(case)) for case in sample] + [
        pytest.param(case, id=name(case), marks=pytest.mark.soak) for case in rest
    ]


def settings(case: Case) -> tuple[float, dict[str, Any]]:
    """The start's deviation, and a game in which the interaction matters.

    A tight ball is reached by some of a batch's perturbations or by all; a wide one is not reached soon.
    Adam's first step is almost a sign: its derivative only matters where g is nearly as small as √eps_root,
    so near δ = 0.
    """
    creeping = case["ascent"] == "adam" and case["steps"] == 1
    epsilon = RADII[case["norm"], case["per"]]
    of_divergence = {"kl": 0.3, "symmetric_kl": 0.15, "half_symmetric_kl": 0.3, "js": 1.2, "mse": 0.02}
    of_kind = {"classification": 2.0, "regression": 10.0, "seq2seq": 0.5}
    step_size = {
        "sgd": of_divergence[case["divergence"]] * of_kind.get(case["kind"], 1.0),
        "normalized": 0.4 * epsilon,
        "sign": 0.1,
        "adam": 0.3 if creeping else 0.1,
    }[case["ascent"]]
    return 3e-5 if creeping else 0.1, {
        "weight": 4.0 if case["divergence"] == "js" else 1.0,
        "epsilon": epsilon if case["room"] == "tight" else 10 * epsilon,
        "step_size": step_size,
        **{option: case[option] for option in ("steps", "ascent", "norm", "per", "detach_target")},
    }


@pytest.mark.parametrize("case", sampled(everything()))
def test_every_route_computes_the_gradient_of_the_paper(case: Case) -> None:
    """Value and full gradient of each route, in both forms, are naive's; without the route, VAT's."""
    place, divergence = arena(case["kind"]), case["divergence"]
    std, game = settings(case)
    start = place.start(std)
    objective = place.naive(divergence, std, **game)
    total = place.differentiate(objective.value)
    leader = place.differentiate(place.naive(divergence, std, response="detached", **game).value)
    assert error(total, leader) > 0.01, "the interaction is too small for this test to mean anything"

    for route, chosen in ROUTES.items():
        value, gradient = place.play(SALT(divergence=divergence, **game, **chosen), start=start)
        assert value == pytest.approx(objective.value.item(), rel=1e-9), route
        assert error(gradient, total) < TOLERANCES[route], route
    value, gradient = place.play(SALT(divergence=divergence, **game), "backward", start=start)
    assert value == pytest.approx(objective.value.item(), rel=1e-9), "streamed"
    assert error(gradient, total) < 1e-8, "streamed"
    for vat in (VAT(divergence=divergence, **game), SALT(divergence=divergence, gradient="none", **game)):
        value, gradient = place.play(vat, start=start)
        assert value == pytest.approx(objective.value.item(), rel=1e-9), vat
        assert error(gradient, leader) < 1e-8, vat


def test_the_sample_meets_every_pair() -> None:
    cases = everything()
    sample = pairwise(cases)
    assert set().union(*map(pairs, sample)) == set().union(*map(pairs, cases))
    assert sample == pairwise(cases) and len(sample) < len(cases) / 50


def test_tight_balls_are_reached_and_wide_ones_are_not() -> None:
    """So the routes above are tested on both branches of the projection, also within one batch."""
    shares: dict[str, list[float]] = {"tight": [], "wide": []}
    for case in pairwise(everything()):
        std, game = settings(case)
        vat = VAT(divergence=case["divergence"], **game)
        arena(case["kind"]).play(vat, start=arena(case["kind"]).start(std))
        assert vat.report is not None and vat.report.surface is not None
        shares[case["room"]].append(vat.report.surface.item())
    assert sum(share > 0 for share in shares["tight"]) > 0.8 * len(shares["tight"])
    assert sum(0 < share < 1 for share in shares["tight"]) >= 3
    assert sum(share == 0 for share in shares["wide"]) > 0.8 * len(shares["wide"])


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_route_shares_the_dropout_of_the_clean_pass(kind: str, route: str) -> None:
    """With dropout in every layer, all passes see one mask: this is naive's game, which replays one seed."""
    place = arena(kind, dropout=0.3)
    std, game = settings(BASIC | {"kind": kind})
    objective = place.naive(BASIC["divergence"], std, **game)
    total = place.differentiate(objective.value)
    salt = SALT(divergence=BASIC["divergence"], **game, **ROUTES[route])
    value, gradient = place.play(salt, start=place.start(std))
    assert value == pytest.approx(objective.value.item(), rel=1e-9)
    assert error(gradient, total) < TOLERANCES[route]
    assert error(place.play(VAT(divergence=BASIC["divergence"], **game), start=place.start(std))[1], total) > 0.01


BASIC: Case = {
    "steps": 2,
    "ascent": "normalized",
    "norm": "l2",
    "per": "sentence",
    "divergence": "mse",  # the one that all kinds have
    "detach_target": False,
    "room": "tight",
}


# --------------------------------------------------------------------------------------------------
# Leader + interaction = total


@pytest.mark.parametrize("ascent", ["sgd", "normalized", "adam"])
@pytest.mark.parametrize("kind", KINDS)
def test_leader_plus_interaction_is_the_total(kind: str, ascent: str) -> None:
    """SALT - VAT is (∂F/∂δ^K)(dδ^K/dθ), the second factor found by moving θ and letting naive respond."""
    place = arena(kind)
    std, game = settings(BASIC | {"kind": kind, "ascent": ascent})
    salt, vat = (place.play(Method(divergence="mse", **game), start=place.start(std))[1] for Method in (SALT, VAT))

    deltas = [delta.requires_grad_() for delta in place.naive("mse", std, **game).deltas]
    answer = naive.mse(place.players.logits([]).detach(), place.players.logits(deltas), place.players.counted)
    cotangents = torch.autograd.grad(game["weight"] / place.count * answer.sum(), deltas)

    directions = place.directions()
    response = place.slope(lambda: flat(place.naive("mse", std, **game).deltas), directions)
    interaction = (flat(cotangents) @ response).item()
    assert ((salt - vat) @ flat(directions)).item() == pytest.approx(interaction, rel=1e-5)
    assert abs(interaction) > 1e-3 * abs((vat @ flat(directions)).item())


@pytest.mark.parametrize("kind", KINDS)
def test_vat_is_not_the_slope_and_salt_is(kind: str) -> None:
    """The ultimate check: F(θ ± h d), with δ^K played anew at each end, against both gradients."""
    place = arena(kind)
    std, game = settings(BASIC | {"kind": kind})
    directions = place.directions()

    def value() -> Tensor:
        return SALT(divergence="mse", **game)(place.model, place.batch, start=place.start(std)).detach()

    slope = place.slope(value, directions).item()
    for route, chosen in ROUTES.items():
        _, gradient = place.play(SALT(divergence="mse", **game, **chosen), start=place.start(std))
        assert (gradient @ flat(directions)).item() == pytest.approx(slope, rel=1e-6), route
    _, gradient = place.play(VAT(divergence="mse", **game), start=place.start(std))
    assert (gradient @ flat(directions)).item() != pytest.approx(slope, rel=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_the_released_code_computes_something_else(kind: str) -> None:
    """B1–B3: with the same payoff, the released gradient is 10 % off and not the slope of F; ours is."""
    place = arena(kind)
    own = "mse" if kind == "regression" else "half_symmetric_kl"  # the released code's, so that it is not at fault
    game = settings(BASIC | {"kind": kind, "ascent": "sgd", "divergence": own})[1]
    starts = [s * m.unsqueeze(-1) for s, m in zip(place.players.starts(0.1), place.players.masks, strict=True)]
    released = naive.released_code_gradient(
        place.players.logits,
        place.players.task_loss,
        starts,
        place.parameters,
        payoff=partial(PAYOFFS[own], mask=place.players.counted),
        normalizer=place.count,
        **{setting: game[setting] for setting in ("epsilon", "steps", "step_size", "weight")},
    )
    _, ours = place.play(SALT(divergence=own, **game), start=place.start())
    assert error(flat(released.gradient), ours) > 0.1

    def value() -> Tensor:
        return SALT(divergence=own, **game)(place.model, place.batch, start=place.start()).detach()

    directions = place.directions()
    slope = place.slope(value, directions).item()
    assert (ours @ flat(directions)).item() == pytest.approx(slope, rel=1e-6)
    assert (flat(released.gradient) @ flat(directions)).item() != pytest.approx(slope, rel=0.01)


# --------------------------------------------------------------------------------------------------
# Games that coincide


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_steps_are_plain_noise_regularization(kind: str, form: Form) -> None:
    """K = 0: F = L + (α/N) Σ D(f(x), f(x + δ⁰)) in every route, as in VAT and in R3F."""
    place = arena(kind)
    clean, noisy = place.players.logits([]), place.players.logits([s * m.unsqueeze(-1) for s, m in zip(
        place.players.starts(0.1), place.players.masks, strict=True)])  # fmt: skip
    payoff = naive.mse(clean, noisy, place.players.counted).sum()
    value = place.players.task_loss(clean) + 0.7 / place.count * payoff
    expected = place.differentiate(value)

    common: dict[str, Any] = {"weight": 0.7, "divergence": "mse"}
    games: dict[str, Game] = {route: SALT(steps=0, **common, **chosen) for route, chosen in ROUTES.items()}
    games |= {
        "none": SALT(steps=0, gradient="none", **common),
        "sign": SALT(steps=0, ascent="sign", **common),
    }
    games |= {"vat": VAT(steps=0, **common), "r3f": R3F(**common)}
    for route, game in games.items():
        actual, gradient = place.play(game, form, start=place.start())
        assert actual == pytest.approx(value.item(), rel=1e-12), route
        assert error(gradient, expected) < 1e-10, route


class Flat(nn.Module):
    """f(x, W) = W · vec(x), on embeddings that are not trained."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        table = torch.randn(7, 4, generator=generator, dtype=DOUBLE)
        self.embedding = nn.Embedding.from_pretrained(table, freeze=True)
        self.weights = nn.Parameter(torch.randn(5, 8, generator=generator, dtype=DOUBLE))

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.embedding(ids)
        return x.flatten(1) @ self.weights.T


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("steps", range(4))
@pytest.mark.parametrize("route", [*ROUTES, "none"])
def test_linear_game_has_the_gradient_derived_on_paper(route: str, steps: int, form: Form) -> None:
    """An unconstrained sgd follower on a linear model: the answer is a polynomial in WᵀW, found by hand."""
    model, ids = Flat(), torch.tensor([[0, 1], [2, 3], [4, 6]])
    task = Task("regression", logits=lambda m, b: m(b["ids"]), loss=lambda z, b: z.sum(1).mean())
    start = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    solved: dict[str, Any] = {"weight": 0.7, "steps": steps, "step_size": 0.03}
    chosen = ROUTES.get(route, {"gradient": "none"})
    game = SALT(task=task, divergence="mse", ascent="sgd", epsilon=1e9, **solved, **chosen)

    if form == "backward":
        loss = game.backward(model, {"ids": ids}, start=start).loss
        assert loss is not None
    else:
        loss = game(model, {"ids": ids}, start=start)
        loss.backward()
    response: naive.Response = "detached" if route == "none" else "differentiated"
    value, gradient = naive.closed_form(model.weights, start.flatten(1), normalizer=3.0, response=response, **solved)
    x = model.embedding(ids).flatten(1)
    assert loss.item() == pytest.approx((value + (x @ model.weights.T).sum(1).mean()).item(), rel=1e-10)
    assert model.weights.grad is not None
    assert error(model.weights.grad, gradient + x.mean(0)) < (1e-6 if route == "differences" else 1e-10)
    assert model.embedding.weight.grad is None
    if steps and response == "differentiated":
        constant = naive.closed_form(model.weights, start.flatten(1), normalizer=3.0, response="detached", **solved)
        assert error(constant[1], gradient) > 0.01


def label_loss(kind: str, labels: Tensor) -> naive.Payoff:
    """ℓ(f(x + δ), y), summed over a sentence's labels, (B,): written from the definitions of the losses."""

    def payoff(_: Tensor, logits: Tensor) -> Tensor:
        if kind == "regression":
            return (logits[:, 0] - labels).square()
        if kind == "classification":
            return cross_entropy(logits, labels, reduction="none")
        shift = 1 if kind == "causal" else 0
        rows, wanted = logits[:, : logits.shape[1] - shift], labels[:, shift:]
        return cross_entropy(rows.transpose(1, 2), wanted, reduction="none").sum(1)

    return payoff


@pytest.mark.parametrize("ascent", ["sgd", "normalized", "adam"])
@pytest.mark.parametrize("kind", KINDS)
def test_salt_adv_is_the_same_game_on_the_labels(kind: str, ascent: str) -> None:
    place = arena(kind)
    std, game = settings(BASIC | {"kind": kind, "ascent": ascent, "divergence": "kl"})
    if kind == "regression" and ascent == "sgd":
        game["step_size"] *= 0.05  # its squared errors are steep
    payoff = label_loss(kind, place.batch["labels"])
    allowed = {setting: value for setting, value in game.items() if setting != "detach_target"}
    objective = place.naive(payoff, std, **allowed)
    total = place.differentiate(objective.value)
    leader = place.differentiate(place.naive(payoff, std, response="detached", **allowed).value)
    assert error(total, leader) > 0.01
    plays: list[tuple[str, Form]] = [(route, "call") for route in (*ROUTES, "none")]
    for route, form in [*plays, ("double_backward", "backward")]:
        salt_adv = SALTAdv(**allowed, **ROUTES.get(route, {"gradient": "none"}))
        value, gradient = place.play(salt_adv, form, start=place.start(std))
        assert value == pytest.approx(objective.value.item(), rel=1e-9), (route, form)
        expected = leader if route == "none" else total
        assert error(gradient, expected) < TOLERANCES.get(route, 1e-8), (route, form)


@pytest.mark.parametrize("kind", KINDS)
def test_adv_moves_from_the_sentence_itself(kind: str) -> None:
    """δ = ε g/‖g‖ with g at δ = 0, constant to the leader."""
    place = arena(kind)
    game: dict[str, Any] = {"weight": 0.7, "epsilon": 0.8}
    single: dict[str, Any] = {
        "steps": 1,
        "step_size": 0.8,
        "norm": "l2",
        "per": "sentence",
        "ascent": "normalized",
    }
    payoff = label_loss(kind, place.batch["labels"])
    objective = place.naive(payoff, 0.0, response="detached", **game, **single)
    value, gradient = place.play(Adv(**game))
    assert value == pytest.approx(objective.value.item(), rel=1e-9)
    assert error(gradient, place.differentiate(objective.value)) < 1e-9


@pytest.mark.parametrize("ascent", ["sgd", "normalized", "adam"])
@pytest.mark.parametrize(
    ("kind", "chosen"),
    [
        ("classification", {"exclude_tokens": tuple(range(4, 20))}),
        ("seq2seq", {"exclude_tokens": tuple(range(4, 20))}),
        ("seq2seq", {"sides": ("source",)}),
        ("seq2seq", {"sides": ("target",)}),
        ("causal", {"perturb_prompt": False}),
    ],
)
def test_what_may_not_move_takes_no_part(kind: str, chosen: dict[str, Any], ascent: str) -> None:
    """Left-out words, prompts and sides have a gradient, but none of it counts: not in δ, nor in a norm."""
    place = arena(kind)
    std, game = settings(BASIC | {"kind": kind, "ascent": ascent})
    ids = [place.batch["input_ids"], place.model.prepare_decoder_input_ids_from_labels(place.batch["labels"])
           if kind == "seq2seq" else place.batch["input_ids"]]  # fmt: skip
    masks = []
    for side, mask, words in zip(("source", "target"), place.players.masks, ids, strict=False):
        moves = side in chosen.get("sides", ("source", "target"))
        allowed = mask & ~torch.isin(words, torch.tensor(chosen.get("exclude_tokens", ()), dtype=torch.long))
        if "perturb_prompt" in chosen:
            allowed &= place.batch["labels"] != -100
        masks.append(allowed & moves)
    objective = place.naive("mse", std, masks, **game)
    total = place.differentiate(objective.value)
    assert error(place.differentiate(place.naive("mse", std, **game).value), total) > 0.01
    start = place.start(std)
    if "sides" in chosen and not isinstance(start, Tensor):
        start = start[chosen["sides"][0]]
    for route in ROUTES:
        value, gradient = place.play(SALT(divergence="mse", **game, **chosen, **ROUTES[route]), start=start)
        assert value == pytest.approx(objective.value.item(), rel=1e-9), route
        assert error(gradient, total) < TOLERANCES[route], route


# --------------------------------------------------------------------------------------------------
# A sign has no derivative


@pytest.mark.parametrize("Method", [SALT, SALTAdv])
def test_anticipating_a_sign_is_refused(Method: type[Game]) -> None:
    with pytest.raises(SettingError, match=r"sign.*no derivative"):
        Method(ascent="sign", step_size=0.1)
    Method(ascent="sign", step_size=0.1, gradient="none")  # says what it is


@pytest.mark.parametrize("case", sampled(everything(ascent=["sign"], steps=[1, 3])))
def test_vat_may_follow_the_sign(case: Case) -> None:
    """VAT with sign ascent is naive's, differentiated or not: both are the same there."""
    place, divergence = arena(case["kind"]), case["divergence"]
    std, game = settings(case)
    objective = place.naive(divergence, std, response="detached", **game)
    value, gradient = place.play(VAT(divergence=divergence, **game), start=place.start(std))
    assert value == pytest.approx(objective.value.item(), rel=1e-9)
    assert error(gradient, place.differentiate(objective.value)) < 1e-6
    assert error(gradient, place.differentiate(place.naive(divergence, std, **game).value)) < 1e-6


# --------------------------------------------------------------------------------------------------
# Micro-batches

CLIMB: dict[str, Any] = {"steps": 2, "epsilon": 1.5, "step_size": 0.6, "norm": "l2", "weight": 0.7}


def smart(place: Arena) -> SMART:
    """SMART some steps into a run, when θ̃ is no longer θ."""
    game = SMART(**CLIMB)
    generator = torch.Generator().manual_seed(3)
    anchor = {
        name: p.detach() + 0.1 * torch.randn(p.shape, generator=generator, dtype=DOUBLE)
        for name, p in place.model.named_parameters()
    }
    game.load_state_dict({"clock": {"step": 0}, "anchor": anchor})
    return game


METHODS: dict[str, Callable[[Arena], Game]] = {
    "salt": lambda place: SALT(**CLIMB),
    "salt, per token": lambda place: SALT(**CLIMB | {"epsilon": 0.5, "step_size": 0.2}, per="token"),
    "salt, sgd": lambda place: SALT(**CLIMB, ascent="sgd"),
    "salt, by sentences": lambda place: SALT(**CLIMB, reduction="sentences"),
    "salt, differences": lambda place: SALT(**CLIMB, **ROUTES["differences"]),
    "salt, exact": lambda place: SALT(**CLIMB, gradient="exact"),
    "salt-adv": lambda place: SALTAdv(**CLIMB),
    "vat": lambda place: VAT(**CLIMB),
    "freelb": lambda place: FreeLB(**CLIMB),
    "freelb, sgd": lambda place: FreeLB(**CLIMB, ascent="sgd"),
    "freelb, regularized": lambda place: FreeLB(**CLIMB, form="regularized"),
    "smart": smart,
    "r3f": lambda place: R3F(weight=0.7, init_std=0.2),
    "adv": lambda place: Adv(epsilon=0.8),
    "plain": lambda place: Plain(),
}
ACCUMULATION: dict[str, Sequence[Any]] = {
    "method": list(METHODS),
    "kind": ["classification", "token", "seq2seq"],
    "form": FORMS,
    "noise": ["drawn", "given"],
}


def pieces(start: Start, parts: int) -> list[Start]:
    """A given start, cut as `zoo.split` cuts the batch."""
    if isinstance(start, Tensor):
        return list(start.tensor_split(parts))
    cut = {side: x.tensor_split(parts) for side, x in start.items()}
    return [{side: x[i] for side, x in cut.items()} for i in range(parts)]


@pytest.mark.parametrize("case", sampled(cross(ACCUMULATION)))
def test_four_micro_batches_give_the_gradient_of_the_one_batch(case: Case) -> None:
    """Sizes 2, 2, 1, 1; each divides by the whole step's N, and drawn noise is numbered through the step.

    Every comparison needs a game of its own: its clock counts the examples since the last optimizer step.
    """
    place = arena(case["kind"], rows=6)
    make = partial(METHODS[case["method"]], place)
    start = place.start() if case["noise"] == "given" and case["method"] not in ("plain", "adv") else None
    whole, expected = place.play(make(), case["form"], **({} if start is None else {"start": start}))

    count: Any = place.count
    if case["method"] == "salt, by sentences" and case["kind"] != "classification":
        count = (place.count, 6)
    place.model.zero_grad()
    game, value = make(), 0.0
    starts = [None] * 4 if start is None else pieces(start, 4)
    for part, cut in zip(zoo.split(place.batch, 4), starts, strict=True):
        value += place.add(game, case["form"], batch=part, start=cut, normalizer=count)
    assert value == pytest.approx(whole, rel=1e-9)
    assert error(place.grad(), expected) < 1e-6


@pytest.mark.parametrize("kind", ["classification", "seq2seq"])
def test_the_clock_numbers_the_examples_of_a_step(kind: str) -> None:
    """What makes the test above fail if one game serves both sides of a comparison."""
    place = arena(kind)
    game = SALT(**CLIMB)
    first, again = (place.play(game)[1] for _ in range(2))
    assert error(again, first) > 1e-3  # examples 4 … 7 of the step: other noise
    assert torch.equal(place.play(SALT(**CLIMB))[1], first)
    numbered = place.play(game, index=torch.arange(4))[1]
    assert torch.equal(numbered, first)  # their numbers say so
    assert torch.equal(place.play(SALT(**CLIMB), index=torch.arange(4, 8))[1], again)
    for later in (game, fresh := SALT(**CLIMB)):
        later.after_step()
    next_step = place.play(game)[1]
    assert error(next_step, first) > 1e-3  # other noise for example 0 too …
    assert torch.equal(place.play(fresh, index=torch.arange(4))[1], next_step)  # … which counting begins with
    assert error(place.play(SALT(**CLIMB, seed=1))[1], first) > 1e-3


# --------------------------------------------------------------------------------------------------
# Padding


def widened(start: Start, extra: int) -> Start:
    """A start with `extra` more columns of zeros."""
    if isinstance(start, Tensor):
        return pad(start, (0, 0, 0, extra))
    return {side: pad(x, (0, 0, 0, extra)) for side, x in start.items()}


PADDED = [
    pytest.param(kind, arch, id=f"{kind}-{arch}", marks=[] if i == 0 else [pytest.mark.soak])
    for kind, archs in zoo.KINDS.items()
    for i, arch in enumerate(archs)
]


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("per", ["sentence", "token"])
@pytest.mark.parametrize(("kind", "arch"), PADDED)
def test_more_padding_changes_nothing(kind: str, arch: str, per: str, relative: bool) -> None:
    """Three more pads on every row; the start has zeros there. A span's own task loss is softmaxed over pads
    by its model, so that for it only what the game adds to the plain loss is compared.
    """
    place = arena(kind, arch=arch)
    wide = zoo.pad_further(place.batch, 3, place.model)

    def added(batch: zoo.Batch, start: Start) -> tuple[float, Tensor]:
        epsilon = 0.5 if relative else RADII["l2", per]
        game = SALT(steps=2, weight=0.7, epsilon=epsilon, step_size=0.4 * epsilon, per=per, relative=relative)
        value, gradient = place.play(game, batch=batch, start=start)
        if kind != "span":
            return value, gradient
        plain, without = place.play(Plain(), batch=batch)
        return value - plain, gradient - without

    before, after = added(place.batch, place.start()), added(wide, widened(place.start(), 3))
    assert after[0] == pytest.approx(before[0], rel=1e-9)
    assert error(after[1], before[1]) < 1e-8


# --------------------------------------------------------------------------------------------------
# Sentences that the model is sure of


@pytest.mark.parametrize("ascent", ["sgd", "normalized", "adam"])
@pytest.mark.parametrize("Method", [SALT, SALTAdv])
@pytest.mark.parametrize(
    ("odds", "dtype"), [(50, torch.float32), (90, torch.float32), (400, DOUBLE), (700, DOUBLE), (2000, DOUBLE)]
)
def test_a_model_that_is_sure_gets_a_finite_gradient(
    odds: int, dtype: torch.dtype, Method: type[SALT | SALTAdv], ascent: str
) -> None:
    """Odds of e⁵⁰ and more: g is from small to the smallest numbers and to 0, where 1/‖g‖² is infinite."""
    model, batch = zoo.build("classification", "bert", dtype=dtype)
    with torch.no_grad():
        model.classifier.bias.copy_(torch.tensor([odds, 0.0, 0.0]))
    batch["labels"].zero_()
    noises = ["normal", "zero"] if Method is SALTAdv else ["normal"]
    for given in [{"start_noise": noise, "gradient": route} for noise in noises for route in ("sweep", "exact")]:
        model.zero_grad()
        game = Method(steps=2, ascent=ascent, step_size=0.1, **given)
        assert game(model, batch).isfinite(), given
        game.backward(model, batch)
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None), given


# --------------------------------------------------------------------------------------------------
# What reaches .grad


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", METHODS)
def test_scaling_scales_the_gradient_and_nothing_else(method: str, form: Form) -> None:
    """(3 F).backward(), or a GradScaler of 3 in the streamed form, gives 3 dF/dθ of the same F and δ^K."""
    place = arena("classification")
    make = METHODS[method]
    given = {} if method == "plain" else {"start": place.start()}
    plain, scaled = make(place), make(place)
    value, expected = place.play(plain, form, **given)
    place.model.zero_grad()
    if form == "call":
        loss = scaled(place.model, place.batch, **given)
        (3.0 * loss).backward()
        actual = loss.item()
    else:
        scaler = torch.amp.GradScaler("cpu", init_scale=3.0)
        report = scaled.backward(place.model, place.batch, scaler=scaler, **given)
        assert report.loss is not None
        actual = report.loss.item()
    assert actual == pytest.approx(value, rel=1e-12)
    assert error(place.grad(), 3 * expected) < 1e-9
    assert plain.report is not None and scaled.report is not None
    assert scaled.report.numbers() == pytest.approx(plain.report.numbers(), rel=1e-6)  # float32 figures


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", METHODS)
def test_gradients_are_added_and_absent_ones_stay_absent(method: str, form: Form) -> None:
    """Earlier `.grad` is the same tensor, with ours added; None stays where θ is frozen or unused."""
    place = Arena("classification", "bert")
    make, given = METHODS[method], {} if method == "plain" else {"start": place.start()}
    _, expected = place.play(make(place), form, **given)
    assert expected.norm() > 0

    earlier = [torch.randn_like(p) for p in place.parameters]
    for parameter, before in zip(place.parameters, earlier, strict=True):
        parameter.grad = before.clone()
    held = [p.grad for p in place.parameters]
    place.model.spare = nn.Linear(2, 2).double()
    words = place.players.modules[0].weight
    words.requires_grad_(False)
    place.add(make(place), form, **given)
    assert all(p.grad is kept for p, kept in zip(place.parameters, held, strict=True))
    for p, before, ours in zip(
        place.parameters, earlier, expected.split([p.numel() for p in place.parameters]), strict=True
    ):
        if p is words:
            assert p.grad is not None and torch.equal(p.grad, before)
        else:
            assert p.grad is not None and torch.allclose(p.grad, before + ours.view_as(p), rtol=1e-9, atol=1e-12)
    assert all(p.grad is None for p in place.model.spare.parameters())

    place.model.zero_grad()
    place.add(make(place), form, **given)
    absent = {name for name, p in place.model.named_parameters() if p.grad is None}
    assert absent == {"spare.weight", "spare.bias", "bert.embeddings.word_embeddings.weight"}


def test_the_value_does_not_depend_on_the_route() -> None:
    """No route changes F or δ^K by a bit, so that a comparison of methods compares gradients only."""
    place = arena("seq2seq")
    std, game = settings(BASIC | {"kind": "seq2seq"})
    games = [SALT(divergence="mse", **game, **chosen) for chosen in (*ROUTES.values(), {"gradient": "none"})]
    values = {place.play(salt, start=place.start(std))[0] for salt in games}
    norms = {salt.report.final_norm.item() for salt in games if salt.report and salt.report.final_norm is not None}
    assert len(values) == len(norms) == 1 and math.isfinite(values.pop())
