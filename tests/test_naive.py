"""The specification and the zoo are tested themselves: against algebra, finite differences and identities."""

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import naive
import zoo

DOUBLE = torch.float64
ZOO = [(kind, arch) for kind, archs in zoo.KINDS.items() for arch in archs]
GAME: dict[str, Any] = {
    "weight": 0.7,
    "epsilon": 1.0,
    "steps": 1,
    "step_size": 0.5,
    "norm": "l2",
    "per": "sentence",
    "ascent": "normalized",
    "normalizer": 4.0,
}


def flat(tensors: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def gradient(of: Tensor, parameters: list[Tensor]) -> Tensor:
    return flat(torch.autograd.grad(of, parameters, retain_graph=True, materialize_grads=True))


def error(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


class Toy:
    """Two sides of three sentences with padding, a smooth network of both, and two parameters."""

    def __init__(self, outputs: int = 3) -> None:
        generator = torch.Generator().manual_seed(1)
        draw = partial(torch.randn, generator=generator, dtype=DOUBLE)
        self.x = [draw(3, 4, 3), draw(3, 2, 3)]
        self.parameters = [(0.8 * draw(5, 3)).requires_grad_(), draw(outputs, 5).requires_grad_()]
        self.starts = [0.3 * draw(3, 4, 3), 0.3 * draw(3, 2, 3)]
        self.masks = [torch.ones(3, 4, dtype=torch.bool), torch.ones(3, 2, dtype=torch.bool)]
        self.masks[0][1, 2:], self.masks[1][2, 1:] = False, False

    def logits(self, deltas: list[Tensor]) -> Tensor:
        inner, outer = self.parameters
        x = torch.cat(self.x, dim=1) + (torch.cat(deltas, dim=1) if deltas else 0.0)  # (3, 6, 3)
        return torch.sin(x @ inner.T).sum(1) @ outer.T

    def task_loss(self, clean: Tensor) -> Tensor:
        return clean.square().mean()

    def objective(self, **changes: Any) -> naive.Objective:
        arguments = {"payoff": naive.kl} | GAME | changes
        return naive.stackelberg_objective(self.logits, self.task_loss, self.starts, self.masks, **arguments)


def slope(value: Callable[[], Tensor], parameters: list[Tensor], directions: list[Tensor], h: float) -> float:
    """[F(θ + h u) - F(θ - h u)]/2h."""
    ends: list[float] = []
    for sign in (1, -1):
        with torch.no_grad():
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter.add_(direction, alpha=sign * h)
        ends.append(value().item())
        with torch.no_grad():
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter.sub_(direction, alpha=sign * h)
    return (ends[0] - ends[1]) / (2 * h)


# --------------------------------------------------------------------------------------------------
# The objective


@pytest.mark.parametrize("steps", range(4))
@pytest.mark.parametrize("response", ["differentiated", "detached"])
def test_linear_game_has_the_gradient_derived_on_paper(
    steps: int, response: naive.Response, generator: torch.Generator
) -> None:
    draw = partial(torch.randn, generator=generator, dtype=DOUBLE)
    x, start, weights = draw(3, 2, 4), draw(3, 2, 4), draw(5, 8).requires_grad_()

    def logits(deltas: list[Tensor]) -> Tensor:
        return sum(deltas, start=x).flatten(1) @ weights.T

    free = GAME | {"epsilon": math.inf, "ascent": "sgd", "steps": steps, "step_size": 0.03}
    everywhere = torch.ones(3, 2, dtype=torch.bool)
    objective = naive.stackelberg_objective(
        logits, lambda clean: clean.sum(), [start], [everywhere], payoff=naive.mse, response=response, **free
    )
    kept = {name: free[name] for name in ("weight", "steps", "step_size", "normalizer")}
    value, expected = naive.closed_form(weights, start.flatten(1), response=response, **kept)

    assert torch.allclose(objective.value - objective.task_loss, value, rtol=1e-10)
    (actual,) = torch.autograd.grad(objective.value - objective.task_loss, weights)
    assert error(actual, expected) < 1e-10


@pytest.mark.parametrize("per", ["sentence", "token"])
@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize("ascent", ["sgd", "normalized", "sign", "adam"])
@pytest.mark.parametrize("epsilon", [0.25, 10.0])
def test_gradient_is_the_slope_of_the_objective(ascent: str, norm: str, per: str, epsilon: float) -> None:
    toy = Toy()
    step_size = 0.05 if ascent in ("sign", "adam") else 0.3
    game = partial(toy.objective, ascent=ascent, norm=norm, per=per, epsilon=epsilon, steps=2, step_size=step_size)
    torch.manual_seed(0)
    directions = [torch.randn_like(parameter) for parameter in toy.parameters]
    expected = slope(lambda: game().divergence, toy.parameters, directions, 1e-6)
    actual = gradient(game().divergence, toy.parameters) @ flat(directions)
    assert actual.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("payoff", [naive.kl, naive.symmetric_kl, naive.js, naive.mse])
@pytest.mark.parametrize("detach_target", [False, True])
def test_every_payoff_has_an_interaction(payoff: naive.Payoff, detach_target: bool) -> None:
    toy = Toy()
    game = partial(toy.objective, payoff=payoff, detach_target=detach_target, steps=2)
    true, vat = (game(response=response) for response in ("differentiated", "detached"))
    assert torch.equal(true.value, vat.value)
    assert all(torch.equal(a, b) for a, b in zip(true.deltas, vat.deltas, strict=True))
    assert error(gradient(vat.divergence, toy.parameters), gradient(true.divergence, toy.parameters)) > 1e-2


def test_a_sign_step_has_no_interaction() -> None:
    toy = Toy()
    true, vat = (toy.objective(ascent="sign", response=r) for r in ("differentiated", "detached"))
    assert error(gradient(vat.divergence, toy.parameters), gradient(true.divergence, toy.parameters)) < 1e-14


def test_sentences_and_weights_do_not_reach_the_ascent() -> None:
    toy = Toy()
    whole = toy.objective(ascent="sgd", steps=3).deltas
    assert all(
        torch.equal(a, b)
        for a, b in zip(whole, toy.objective(ascent="sgd", steps=3, weight=9.0, normalizer=1.0).deltas, strict=True)
    )
    toy.x, toy.starts, toy.masks = ([side[:1] for side in field] for field in (toy.x, toy.starts, toy.masks))
    alone = toy.objective(ascent="sgd", steps=3).deltas
    assert all(torch.allclose(a[:1], b, rtol=1e-12) for a, b in zip(whole, alone, strict=True))


@pytest.mark.parametrize("per", ["sentence", "token"])
@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize("ascent", ["sgd", "normalized", "sign", "adam"])
def test_deltas_stay_in_the_ball_and_off_the_padding(ascent: str, norm: str, per: str) -> None:
    toy = Toy()
    for start, mask, delta in zip(
        toy.starts,
        toy.masks,
        toy.objective(ascent=ascent, norm=norm, per=per, epsilon=0.2).deltas,
        strict=True,
    ):
        assert start[~mask].ne(0).all() and delta[~mask].eq(0).all() and delta[mask].ne(0).all()
        balls = delta.flatten(1) if per == "sentence" else delta
        order = 2 if norm == "l2" else math.inf
        assert torch.linalg.vector_norm(balls, order, dim=-1).max() <= 0.2 * (1 + 1e-12)
    start, first = toy.starts[0] * toy.masks[0].unsqueeze(-1), toy.objective(steps=0, epsilon=0.2).deltas[0]
    assert torch.equal(first, start)  # masked, not projected


def test_unknown_ascent_is_refused() -> None:
    with pytest.raises(ValueError, match="lion"):
        Toy().objective(ascent="lion")


# --------------------------------------------------------------------------------------------------
# Its parts


def test_payoffs_agree_with_torch_and_with_each_other(generator: torch.Generator) -> None:
    p, q = torch.randn(2, 3, 5, 4, generator=generator, dtype=DOUBLE)
    mask = torch.rand(3, 5, generator=generator) < 0.6
    mask[1] = False
    log_p, log_q = p.log_softmax(-1), q.log_softmax(-1)
    reference = (nn.functional.kl_div(log_q, log_p, log_target=True, reduction="none").sum(-1) * mask).sum(-1)
    assert torch.allclose(naive.kl(p, q, mask), reference)
    assert naive.kl(p, q, mask)[1] == 0
    assert torch.allclose(naive.symmetric_kl(p, q), naive.kl(p, q) + naive.kl(q, p))
    released = 0.5 * ((log_p.exp() - log_q.exp()) * (log_p - log_q)).flatten(1).sum(-1)
    assert torch.allclose(naive.half_symmetric_kl(p, q), released)
    assert torch.allclose(naive.js(p, q), naive.js(q, p)) and naive.js(20 * p, -20 * p).max() <= 5 * math.log(2)
    assert torch.allclose(naive.mse(p, q, mask), ((p - q).square().sum(-1) * mask).sum(-1))
    near = p + 1e-4 * (q - p)
    assert torch.allclose(naive.symmetric_kl(p, near), 2 * naive.kl(p, near), rtol=1e-3)
    assert torch.allclose(4 * naive.js(p, near), naive.kl(p, near), rtol=1e-3)
    p, q = p[:, 0], q[:, 0]
    bernoulli = [torch.distributions.Bernoulli(logits=x) for x in (p, q)]
    expected = torch.distributions.kl_divergence(*bernoulli).sum(-1)
    assert torch.allclose(naive.kl(naive.bernoulli(p), naive.bernoulli(q)), expected)


def test_js_and_kl_survive_extreme_logits() -> None:
    p, q = torch.tensor([[0.0, 300.0]], dtype=DOUBLE), torch.tensor([[300.0, 0.0]], dtype=DOUBLE)
    assert naive.kl(p, q).item() == pytest.approx(300)
    assert naive.js(p, q).item() == pytest.approx(math.log(2))


def adam(g: Tensor) -> Tensor:
    """Two of Adam's steps on the same gradient."""
    state = naive.Moments(torch.zeros_like(g), torch.zeros_like(g), 0)
    first, state = naive.adam_step(state, g, (0.9, 0.98), 1e-8, 1e-12)
    second, state = naive.adam_step(state, g, (0.9, 0.98), 1e-8, 1e-12)
    return first + second


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "project l2": partial(naive.projected, norm="l2", epsilon=5.0),
    "project linf": partial(naive.projected, norm="linf", epsilon=5.0),
    "unit l2": partial(naive.unit, norm="l2"),
    "unit linf": partial(naive.unit, norm="linf"),
    "adam": adam,
}
BALLS = {
    "zero": [0.0, 0.0, 0.0],
    "one entry": [3.0, 0.0, 0.0],
    "tie in the norm": [3.0, 4.0, 0.0],
    "tie in an entry": [5.0, 0.0, 0.0],
    "tie for the largest": [7.0, -7.0, 0.0],
    "outside": [6.0, 8.0, 0.0],
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("ball", BALLS)
def test_zero_rows_and_ties_can_be_differentiated_twice(function: str, ball: str) -> None:
    x = torch.tensor(BALLS[ball], dtype=DOUBLE, requires_grad=True)
    y = FUNCTIONS[function](x)
    probe = torch.tensor([1.0, 2.0, -3.0], dtype=DOUBLE)
    (first,) = torch.autograd.grad(y @ probe, x, create_graph=True, materialize_grads=True)
    second = torch.zeros_like(x)
    if first.requires_grad:
        (second,) = torch.autograd.grad(first.square().sum(), x, materialize_grads=True)
    assert all(tensor.isfinite().all() for tensor in (y, first, second))
    if function.startswith("project") and ball in ("zero", "one entry", "tie in an entry"):
        assert torch.equal(y, x) and torch.equal(first, probe)  # inside, and so is ‖δ‖ = ε
    elif ball == "zero":
        assert y.eq(0).all() and first.eq(0).all()  # 0/0 = 0, and does not vary


@pytest.mark.parametrize("ascent", ["sgd", "normalized", "sign", "adam"])
def test_a_sentence_that_may_not_move_is_harmless(ascent: str) -> None:
    toy = Toy()
    toy.masks[0][0], toy.masks[1][0] = False, False
    objective = toy.objective(ascent=ascent, steps=2)
    assert all(delta[0].eq(0).all() for delta in objective.deltas)
    assert gradient(objective.value, toy.parameters).isfinite().all()


def test_adam_takes_the_step_of_torch_adam(generator: torch.Generator) -> None:
    delta = torch.zeros(2, 3, 4, dtype=DOUBLE, requires_grad=True)
    optimizer = torch.optim.Adam([delta], lr=1.0, betas=(0.9, 0.98), eps=1e-8, maximize=True)
    state = naive.Moments(torch.zeros_like(delta), torch.zeros_like(delta), 0)
    ours = torch.zeros(2, 3, 4, dtype=DOUBLE)
    for _ in range(3):
        delta.grad = torch.randn(2, 3, 4, generator=generator, dtype=DOUBLE)
        step, state = naive.adam_step(state, delta.grad, (0.9, 0.98), 1e-8, 0.0)
        optimizer.step()
        ours += step
    assert torch.allclose(ours, delta, rtol=1e-10)


# --------------------------------------------------------------------------------------------------
# The released code


def test_released_code_computes_another_gradient() -> None:
    model, batch = zoo.build("classification", "bert")
    players, parameters = zoo.players("classification", model, batch), list(model.parameters())
    starts = [start * mask.unsqueeze(-1) for start, mask in zip(players.starts(0.1), players.masks, strict=True)]
    settings: dict[str, Any] = {"steps": 2, "step_size": 2.0, "normalizer": 4.0, "weight": 1.0}
    released = naive.released_code_gradient(
        players.logits, players.task_loss, starts, parameters, epsilon=0.3, **settings
    )

    def game(**changes: Any) -> naive.Objective:
        arguments = settings | {"norm": "l2", "per": "sentence", "ascent": "sgd"} | changes
        return naive.stackelberg_objective(players.logits, players.task_loss, starts, players.masks, **arguments)

    assert error(flat(released.gradient), gradient(game(payoff=naive.kl, epsilon=0.3).value, parameters)) > 0.01
    # B1: what is copied is the whole derivative of the unprojected game (B3) with a constant target (B4) …
    unrolled = game(payoff=naive.half_symmetric_kl, epsilon=math.inf, detach_target=True)
    total = gradient(unrolled.divergence, parameters)
    assert error(flat(released.copied), total) < 1e-12
    # … so the sum exceeds even that game's gradient by one leader term, taken at δ⁰ (B2)
    unmoved = [torch.renorm(start, 2, 0, 0.3) for start in starts]
    at_start = naive.half_symmetric_kl(players.logits([]).detach(), players.logits(unmoved)).sum() / 4
    surplus = flat(released.gradient) - gradient(unrolled.value, parameters)
    assert error(surplus, gradient(at_start, parameters)) < 1e-10


# --------------------------------------------------------------------------------------------------
# The zoo


@pytest.mark.parametrize(("kind", "arch"), ZOO)
def test_a_model_plays(kind: str, arch: str) -> None:
    """Every embedding that fires gets a gradient, and the game's gradient is its slope."""
    model, batch = zoo.build(kind, arch)
    players = zoo.players(kind, model, batch)
    assert len(players.modules) == 1 + model.config.is_encoder_decoder
    assert all(shape[:2] == mask.shape for shape, mask in zip(players.shapes, players.masks, strict=True))
    assert {field.shape[0] for field in batch.values()} == {4}

    loss = model(**batch).loss
    assert loss.isfinite() and loss.dtype == DOUBLE
    weights = [parameter for module in players.modules for parameter in module.parameters()]
    assert all(part.norm() > 1e-6 for part in torch.autograd.grad(loss, weights))

    payoff = partial(naive.mse if kind == "regression" else naive.kl, mask=players.counted)
    starts = players.starts(0.1)

    def game(response: naive.Response = "differentiated") -> naive.Objective:
        return naive.stackelberg_objective(
            players.logits, players.task_loss, starts, players.masks, payoff=payoff, response=response, **GAME
        )

    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    objective = game()
    assert objective.divergence > 1e-4
    actual = gradient(objective.value, parameters)
    assert error(gradient(game("detached").value, parameters), actual) > 1e-3

    torch.manual_seed(0)
    directions = [torch.randn_like(parameter) for parameter in parameters]
    for module in model.modules():  # torch gives an embedding's padding row no gradient
        if isinstance(module, nn.Embedding) and module.padding_idx is not None and module.weight.requires_grad:
            (index,) = (i for i, parameter in enumerate(parameters) if parameter is module.weight)
            directions[index][module.padding_idx] = 0
    expected = slope(lambda: game().value, parameters, directions, 1e-6)
    assert (actual @ flat(directions)).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("kind", "arch"), ZOO)
def test_more_padding_changes_no_divergence(kind: str, arch: str) -> None:
    model, batch = zoo.build(kind, arch)
    wider = zoo.pad_further(batch, 3, model)
    assert wider["input_ids"].shape[-1] == batch["input_ids"].shape[-1] + 3
    short, long = zoo.players(kind, model, batch), zoo.players(kind, model, wider)
    narrow = [start * mask.unsqueeze(-1) for start, mask in zip(short.starts(0.1), short.masks, strict=True)]
    wide = [nn.functional.pad(start, (0, 0, 0, 3)) for start in narrow]
    payoff = naive.mse if kind == "regression" else naive.kl
    before, after = (
        payoff(players.logits([]), players.logits(deltas), players.counted)
        for players, deltas in ((short, narrow), (long, wide))
    )
    assert torch.allclose(before, after, rtol=1e-9)
    if kind != "span":  # whose own loss counts padding among the positions
        clean = short.logits([])
        assert torch.allclose(short.task_loss(clean), long.task_loss(clean), rtol=1e-12)


@pytest.mark.parametrize(("kind", "arch"), ZOO)
def test_dropout_reaches_every_rate(kind: str, arch: str) -> None:
    """At rate 0 two passes agree; at 0.5 they do not, but those of a game do, to the last bit at δ = 0."""
    still, batch = zoo.build(kind, arch)
    noisy, _ = zoo.build(kind, arch, dropout=0.5)
    assert torch.equal(still(**batch).loss, still(**batch).loss)
    assert not torch.equal(noisy(**batch).loss, noisy(**batch).loss)
    for model, rate in ((still, 0.0), (noisy, 0.5)):
        assert {m.p for m in model.modules() if isinstance(m, nn.Dropout)} <= {rate}
    players = zoo.players(kind, noisy, batch)
    zeros = [torch.zeros(shape, dtype=DOUBLE) for shape in players.shapes]
    assert torch.equal(players.logits([]), players.logits(zeros))


@pytest.mark.parametrize("arch", ["bert", "llama", "t5"])
def test_models_are_reproducible_and_can_be_copied(arch: str) -> None:
    state = torch.get_rng_state()
    (model, batch), (again, same) = zoo.build("classification", arch), zoo.build("classification", arch)
    other, _ = zoo.build("classification", arch, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(batch[name], same[name]) for name in batch)
    loss = model(**batch).loss
    assert torch.equal(loss, again(**batch).loss) and not torch.equal(loss, other(**batch).loss)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(1.1)
    assert torch.equal(model(**batch).loss, loss) and not torch.equal(twin(**batch).loss, loss)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kind", "arch"), [("classification", "bert"), ("causal", "llama"), ("seq2seq", "t5")])
def test_other_precisions_and_kernels(kind: str, arch: str, dtype: torch.dtype) -> None:
    model, batch = zoo.build(kind, arch, dtype=dtype, attn="sdpa")
    double, _ = zoo.build(kind, arch)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    assert model(**batch).loss.item() == pytest.approx(double(**batch).loss.item(), rel=tolerance)


def test_micro_batches_put_together_are_the_batch() -> None:
    _, batch = zoo.build("token", "bert", batch=5)
    pieces = zoo.split(batch, 2)
    assert [len(piece["labels"]) for piece in pieces] == [3, 2]
    assert all(torch.equal(torch.cat([piece[name] for piece in pieces]), batch[name]) for name in batch)
