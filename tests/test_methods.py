"""Each method against what its paper says, computed here a second time with hooks of our own, in float64."""

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import stackelberg
import zoo
from helping import Passes, Spy, error, flat, gradient, kl, plays, projected, symmetric_kl
from stackelberg import (
    METHODS,
    R3F,
    SALT,
    SMART,
    VAT,
    Adv,
    FreeAT,
    FreeLB,
    Game,
    ModelError,
    Plain,
    RDrop,
    SALTAdv,
    SettingError,
    create,
    replayed,
)

# starts are given large, so that the ball's surface is met
pytestmark = pytest.mark.filterwarnings("ignore:the start noise is:UserWarning")

MODELS = [("classification", "bert"), ("causal", "gpt2"), ("seq2seq", "marian")]
on_models = pytest.mark.parametrize(("kind", "arch"), MODELS)
in_both_forms = pytest.mark.parametrize("streamed", [False, True], ids=["loss", "streamed"])


@pytest.fixture
def bert() -> Passes:
    return Passes("classification", "bert")


def agrees(
    passes: Passes, game: Game, expected: Tensor, streamed: bool, tolerance: float = 1e-9, **arguments: Any
) -> None:
    """The game's value and gradient are those of `expected`."""
    value, found, _ = plays(lambda: game, passes.model, passes.batch, streamed=streamed, **arguments)
    assert torch.allclose(value, expected, rtol=1e-9)
    assert error(found, passes.gradient(expected)) < tolerance


# --------------------------------------------------------------------------------------------------
# Plain and Adv


@on_models
@in_both_forms
def test_plain_is_the_stock_training_step(kind: str, arch: str, streamed: bool) -> None:
    """To the last bit."""
    model, batch = zoo.build(kind, arch, dropout=0.1)
    value, found, _ = plays(Plain, model, batch, streamed=streamed)
    model.zero_grad()
    torch.manual_seed(0)
    loss = model(**batch).loss
    loss.backward()
    assert torch.equal(value, loss.detach()) and torch.equal(found, gradient(model))


@on_models
@in_both_forms
def test_adv_is_one_step_of_epsilon_along_the_label_gradient(
    kind: str, arch: str, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """δ = ε g / ‖g‖ in each sentence and side, and F = L + α L(x + δ) with δ a constant."""
    passes = Passes(kind, arch)
    zero = [torch.zeros_like(x).requires_grad_() for x in passes.start()]
    delta = [0.4 * g for g in passes.unit(torch.autograd.grad(passes.loss(zero), zero))]
    expected = passes.loss([]) + 0.7 * passes.loss(delta)

    spy = Spy(monkeypatch)
    agrees(passes, Adv(weight=0.7, epsilon=0.4), expected, streamed)
    *_, used = spy.perturbed
    assert all(error(used[side], x) < 1e-10 for side, x in passes.named(delta).items())


# --------------------------------------------------------------------------------------------------
# The regularizers, and batches without labels


def unlabelled(batch: zoo.Batch, model: Any) -> zoo.Batch:
    """Without labels, but with the decoder's inputs that were made of them."""
    rest = {name: x for name, x in batch.items() if name != "labels"}
    if model.config.is_encoder_decoder:
        rest["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels=batch["labels"])
        rest["decoder_attention_mask"] = (batch["labels"] != -100).long()
    return rest


@pytest.mark.parametrize(("kind", "arch"), [("classification", "bert"), ("seq2seq", "marian")])
@pytest.mark.parametrize("name", ["vat", "salt", "r3f", "smart", "freelb"])
@in_both_forms
def test_unlabelled_batch_gives_the_regularizer_alone(name: str, kind: str, arch: str, streamed: bool) -> None:
    """F(labelled) = L + F(unlabelled), in value and gradient."""
    passes = Passes(kind, arch)
    make = partial(create, name, weight=0.7, **({"form": "regularized"} if name == "freelb" else {}))
    clean = passes.loss([])
    total, found, _ = plays(make, passes.model, passes.batch, streamed=streamed)
    rest = unlabelled(passes.batch, passes.model)
    value, alone, game = plays(make, passes.model, rest, streamed=streamed)
    assert torch.allclose(value, total - clean, rtol=1e-9) and float(value) > 0
    # R3F's noise of 1e-5 makes a regularizer of 1e-9, found here as a difference from L
    assert error(alone, found - passes.gradient(clean)) < (1e-4 if name == "r3f" else 1e-9)
    assert game.report is not None and game.report.task_loss is None


@pytest.mark.parametrize(("kind", "arch"), [("token", "bert"), ("causal", "gpt2"), ("regression", "bert")])
@pytest.mark.parametrize("name", ["vat", "salt", "r3f", "smart"])
def test_unlabelled_batches_of_other_kinds(name: str, kind: str, arch: str) -> None:
    """All real positions count where no label says otherwise; padding further changes nothing."""
    model, batch = zoo.build(kind, arch)
    del batch["labels"]
    value, found, _ = plays(partial(create, name), model, batch, streamed=False)
    assert float(value) > 0 and torch.isfinite(found).all() and found.norm() > 0
    further = zoo.pad_further(batch, 2, model)
    again, same, _ = plays(partial(create, name), model, further, streamed=False)
    assert torch.allclose(again, value, rtol=1e-7) and error(same, found) < 1e-6


@on_models
@in_both_forms
def test_vat_follows_a_constant_perturbation(kind: str, arch: str, streamed: bool) -> None:
    """F = L + (α/N) Σ KL(f(x) ‖ f(x + δ)), δ = Π(δ⁰ + η g/‖g‖) a constant."""
    passes = Passes(kind, arch)
    start = [delta.requires_grad_() for delta in passes.start()]
    g = torch.autograd.grad(passes.divergence(kl, start), start)
    moved = [d.detach() + 0.3 * u for d, u in zip(start, passes.unit(g), strict=True)]
    delta = projected(moved, 0.8)
    expected = passes.loss([]) + 0.7 * passes.divergence(kl, delta) / passes.count
    game = VAT(weight=0.7, epsilon=0.8, step_size=0.3)
    agrees(passes, game, expected, streamed, start=passes.named(passes.start()))


@on_models
@in_both_forms
def test_salt_adv_anticipates_on_the_labels(kind: str, arch: str, streamed: bool) -> None:
    """F = L + α L(x + δ¹(θ)), with δ¹ differentiated by plain autograd."""
    passes = Passes(kind, arch)
    start = [delta.requires_grad_() for delta in passes.start()]
    g = torch.autograd.grad(passes.loss(start), start, create_graph=True)
    delta = projected([d.detach() + 0.3 * u for d, u in zip(start, passes.unit(g), strict=True)], 0.8)
    clean, perturbed = passes.loss([]), passes.loss(delta)
    game = SALTAdv(weight=0.7, epsilon=0.8, step_size=0.3)
    agrees(passes, game, clean + 0.7 * perturbed, streamed, start=passes.named(passes.start()))
    constant = clean + 0.7 * passes.loss([d.detach() for d in delta])
    assert error(passes.gradient(constant), passes.gradient(clean + 0.7 * perturbed)) > 1e-3  # it matters


@in_both_forms
def test_r3f_adds_bounded_uniform_noise(bert: Passes, streamed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """z ~ U(−1e-5, 1e-5), and F = L + (λ/N) Σ [KL(f(x) ‖ f(x+z)) + KL(f(x+z) ‖ f(x))]."""
    spy = Spy(monkeypatch)
    plays(R3F, bert.model, bert.batch, streamed=streamed)
    (noise,) = spy.perturbed
    real = noise["source"][bert.players.masks[0]]
    assert float(real.abs().max()) <= 1e-5 and float(real.abs().max()) > 0.98e-5
    assert float(real.std()) == pytest.approx(1e-5 / 3**0.5, rel=0.05)
    assert not noise["source"][~bert.players.masks[0]].any()

    start = bert.start()
    expected = bert.loss([]) + 0.7 * bert.divergence(symmetric_kl, start) / bert.count
    agrees(bert, R3F(weight=0.7), expected, streamed, start=start[0])


# --------------------------------------------------------------------------------------------------
# R-Drop


@pytest.mark.parametrize("labelled", [True, False])
@in_both_forms
def test_rdrop_compares_two_passes(labelled: bool, streamed: bool) -> None:
    """½(L₁ + L₂) + (α/N) Σ ½(KL + KL), of the two outputs that the model really gave."""
    model, batch = zoo.build("classification", "bert", dropout=0.2)
    if not labelled:
        del batch["labels"]
    outputs: list[Any] = []
    handle = model.register_forward_hook(lambda module, args, output: outputs.append(output))
    value, _, _ = plays(partial(RDrop, weight=0.7), model, batch, streamed=streamed)
    handle.remove()
    first, second = outputs
    assert not torch.equal(first.logits, second.logits)
    expected = 0.7 * symmetric_kl(first.logits, second.logits).sum() / 2 / len(first.logits)
    if labelled:
        expected = expected + (first.loss + second.loss) / 2
    assert torch.allclose(value, expected, rtol=1e-10)
    if not streamed:  # whose graphs are freed
        _, found, _ = plays(partial(RDrop, weight=0.7), model, batch, streamed=False)
        trained = list(model.parameters())
        again = flat(torch.autograd.grad(rdrop_again(model, batch), trained, materialize_grads=True))
        assert error(found, again) < 1e-10


def rdrop_again(model: nn.Module, batch: zoo.Batch) -> Tensor:
    """The objective once more, from the outputs of a second play."""
    outputs: list[Any] = []
    handle = model.register_forward_hook(lambda module, args, output: outputs.append(output))
    torch.manual_seed(0)
    RDrop(weight=0.7)(model, batch)
    handle.remove()
    first, second = outputs
    value = 0.7 * symmetric_kl(first.logits, second.logits).sum() / 2 / len(first.logits)
    return value if first.loss is None else value + (first.loss + second.loss) / 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_rdrop_refuses_a_model_without_dropout(dtype: torch.dtype) -> None:
    model, batch = zoo.build("classification", "bert", dtype=dtype)
    with pytest.raises(ModelError, match="no dropout"):
        RDrop()(model, batch)


@pytest.mark.parametrize("policy", ["shared", "off"])
def test_rdrop_refuses_other_policies(policy: Any) -> None:
    with pytest.raises(SettingError, match=f"dropout='{policy}'.*independent"):
        RDrop(dropout=policy)


# --------------------------------------------------------------------------------------------------
# FreeLB


@on_models
@in_both_forms
@pytest.mark.parametrize("steps", [1, 3])
def test_freelb_averages_the_losses_of_all_its_passes(kind: str, arch: str, streamed: bool, steps: int) -> None:
    """(1/K) Σ_{t<K} L(x + δ_t): no clean term, no α, and δ₀ counts but δ_K does not."""
    passes = Passes(kind, arch)
    delta, values = passes.start(), []
    for _ in range(steps):
        leaves = [d.detach().requires_grad_() for d in delta]
        values.append(passes.loss(leaves))
        g = torch.autograd.grad(values[-1], leaves, retain_graph=True)
        delta = projected([d.detach() + 0.3 * u for d, u in zip(leaves, passes.unit(g), strict=True)], 0.8)
    game = FreeLB(steps=steps, epsilon=0.8, step_size=0.3, weight=5.0)
    expected = torch.stack(values).mean()
    agrees(passes, game, expected, streamed, start=passes.named(passes.start()))


@on_models
@in_both_forms
def test_freelb_as_a_regularizer(kind: str, arch: str, streamed: bool) -> None:
    """L + (α/NK) Σ_{t<K} ℓ_v(δ_t)."""
    passes = Passes(kind, arch)
    delta, total = passes.start(), torch.zeros((), dtype=torch.float64)
    for _ in range(3):
        leaves = [d.detach().requires_grad_() for d in delta]
        value = passes.divergence(kl, leaves)
        total = total + value / 3
        g = torch.autograd.grad(value, leaves, retain_graph=True)
        delta = projected([d.detach() + 0.3 * u for d, u in zip(leaves, passes.unit(g), strict=True)], 0.8)
    game = FreeLB(steps=3, epsilon=0.8, step_size=0.3, weight=0.7, form="regularized")
    expected = passes.loss([]) + 0.7 * total / passes.count
    agrees(passes, game, expected, streamed, start=passes.named(passes.start()))


@pytest.mark.parametrize("form", ["original", "regularized"])
def test_freelb_runs_no_pass_too_many(form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """K passes, and the clean one only where the objective has it; the start is U(−ε, ε)/√(coordinates)."""
    passes = Passes("classification", "bert")
    spy = Spy(monkeypatch)
    plays(partial(FreeLB, form=form, epsilon=2.0), passes.model, passes.batch, streamed=True)
    assert len(spy.perturbed) == 3 and len(spy.passes) == (3 if form == "original" else 4)
    start, coordinates = spy.perturbed[0]["source"], passes.masks[0].sum((1, 2)) * 16
    peaks = start.abs().amax((1, 2)) * coordinates.sqrt()
    assert float(peaks.max()) <= 2.0 and float(peaks.min()) > 1.9
    norms = start.square().sum((1, 2)).sqrt()
    assert torch.allclose(norms, torch.full_like(norms, 2 / 3**0.5), rtol=0.15)


@pytest.mark.parametrize("steps", [0, -1, 1.0, True])
def test_freelb_needs_a_step(steps: Any) -> None:
    with pytest.raises(SettingError, match=rf"steps={steps!r} should be a whole number of at least [01]"):
        FreeLB(steps=steps)


def test_freelb_climbs_whatever_its_weight(bert: Passes, monkeypatch: pytest.MonkeyPatch) -> None:
    """α scales the leader's term, never the follower's steps."""
    spy = Spy(monkeypatch)
    for alpha in (1.0, 1e-3):
        game = FreeLB(form="regularized", weight=alpha, ascent="sgd", step_size=0.01)
        game.backward(bert.model, bert.batch)
    assert all(
        torch.allclose(a["source"], b["source"], rtol=1e-6)
        for a, b in zip(spy.perturbed[:3], spy.perturbed[3:], strict=True)
    )


# --------------------------------------------------------------------------------------------------
# FreeAT


@in_both_forms
@pytest.mark.parametrize("ascent", ["normalized", "sign"])
def test_freeat_moves_delta_once_per_replay(streamed: bool, ascent: Any) -> None:
    """F = L(x + δ); the backward that trains θ also makes δ ← Π(δ + η g/‖g‖), masked."""
    passes = Passes("classification", "bert")
    game = FreeAT(epsilon=0.4, step_size=0.3, ascent=ascent, norm="l2" if ascent == "normalized" else "linf")
    delta = [torch.zeros_like(x) for x in passes.start()]
    for _ in range(game.replays):
        leaves = [d.requires_grad_() for d in delta]
        expected = passes.loss(leaves)
        agrees(passes, game, expected, streamed)
        (g,) = torch.autograd.grad(expected, leaves)
        if ascent == "normalized":
            delta = projected([leaves[0].detach() + 0.3 * passes.unit([g])[0]], 0.4)
        else:
            delta = [(leaves[0].detach() + 0.3 * (g * passes.masks[0]).sign()).clamp(-0.4, 0.4)]
        assert error(game.carried["source"], delta[0]) < 1e-10
        game.after_step()


def test_freeat_moves_only_when_the_model_does(bert: Passes) -> None:
    """An objective that nobody differentiates leaves δ alone, and so does evaluation."""
    game = FreeAT(epsilon=0.4)
    game.backward(bert.model, bert.batch)
    before = game.carried["source"].clone()
    game(bert.model, bert.batch)
    with torch.no_grad():
        game(bert.model, bert.batch)
    assert torch.equal(game.carried["source"], before)


@pytest.mark.parametrize(("rows", "extra"), [(4, 0), (2, 0), (6, 0), (4, 3), (4, -2), (2, -2), (6, 3)])
def test_freeat_carries_delta_over_to_the_next_batch(rows: int, extra: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rows and positions, cropped or padded with zeros, and masked anew."""
    model, batch = zoo.build("classification", "bert")
    other = zoo.build("classification", "bert", seed=3, batch=rows)[1]
    if extra >= 0:
        other = zoo.pad_further(other, extra, model)
        other["attention_mask"][:, 9:] = 1
    else:
        other = {name: x[:, :extra] if x.dim() == 2 else x for name, x in other.items()}
    game = FreeAT(epsilon=5.0, step_size=0.3)
    game.backward(model, batch)
    known = game.carried["source"]
    torch.optim.SGD(model.parameters(), lr=1e-3).step()
    spy = Spy(monkeypatch)
    game.backward(model, other)
    used = spy.perturbed[0]["source"]
    expected = torch.zeros(rows, 9 + extra, 16, dtype=torch.float64)
    shared, length = min(rows, 4), min(9, 9 + extra)
    expected[:shared, :length] = known[:shared, :length]
    assert torch.equal(used, expected * other["attention_mask"].unsqueeze(-1))


def test_freeat_carries_each_microbatch_its_own_rows(bert: Passes) -> None:
    """Two micro-batches of a step move the rows that one batch would move."""
    whole, parts = FreeAT(epsilon=0.4), FreeAT(epsilon=0.4)
    for _ in range(2):
        whole.backward(bert.model, bert.batch)
        whole.after_step()
        for part in zoo.split(bert.batch, 2):
            parts.backward(bert.model, part, normalizer=4)
        parts.after_step()
    assert torch.allclose(parts.carried["source"], whole.carried["source"], rtol=1e-9)


def test_replayed_repeats_each_batch() -> None:
    batches: Iterator[str] = replayed("ab", FreeAT(replays=2).replays_per_batch)
    assert [*batches] == ["a", "a", "b", "b"]
    assert {create(name).replays_per_batch for name in METHODS if name != "freeat"} == {1}


# --------------------------------------------------------------------------------------------------
# SMART


def trained_weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


def nudge(model: nn.Module, seed: int = 0) -> None:
    """What an optimizer's step is to a game: a write to the parameters."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype) if p.requires_grad else None
    optimizer.step()
    optimizer.zero_grad()


@in_both_forms
def test_smart_starts_at_its_anchor(bert: Passes, streamed: bool) -> None:
    """At the first step θ̃ = θ: the proximal term is 0 to the last bit, and so is its gradient."""
    near, _, _ = plays(partial(SMART, proximal_weight=1e6), bert.model, bert.batch, streamed=streamed)
    alone, _, _ = plays(partial(SMART, proximal_weight=0.0), bert.model, bert.batch, streamed=streamed)
    assert torch.equal(near, alone)


@pytest.mark.parametrize(("kind", "arch"), [*MODELS, ("regression", "bert"), ("masked_lm", "bert")])
@pytest.mark.parametrize("frozen", [False, True], ids=["all", "frozen embeddings"])
@in_both_forms
def test_smart_pulls_towards_its_anchor(kind: str, arch: str, frozen: bool, streamed: bool) -> None:
    """μ/N Σ ℓ_s(f(x, θ), f(x, θ̃)), θ̃ recomputed and worn by functional_call; tied weights stay tied."""
    passes = Passes(kind, arch)
    if frozen:
        passes.model.get_input_embeddings().requires_grad_(False)
        passes.trained = [p for p in passes.model.parameters() if p.requires_grad]
    start = passes.named(passes.start())
    game = SMART(proximal_weight=3.0, momentum=0.9)
    game.backward(passes.model, passes.batch)
    anchor = trained_weights(passes.model)
    for step in range(2):
        nudge(passes.model, step)
        game.after_step()
        now = trained_weights(passes.model)
        anchor = {name: 0.1 * now[name] + 0.9 * x for name, x in anchor.items()}
    assert set(game.anchor.weights) == set(anchor)
    assert all(error(game.anchor.weights[name], x) < 1e-12 for name, x in anchor.items())

    value, found, _ = plays(lambda: game, passes.model, passes.batch, streamed=streamed, start=start)
    without = partial(SMART, proximal_weight=0.0)
    rest, rest_gradient, _ = plays(without, passes.model, passes.batch, streamed=streamed, start=start)
    worn = {name: x.clone() for name, x in anchor.items()}
    anchored = functional_call(passes.model, worn, kwargs=passes.batch, tie_weights=True).logits.detach()
    which = symmetric_kl if kind != "regression" else lambda p, q: (p - q).square().sum(-1)
    pull = 3.0 * passes.counted(which, passes.players.logits([]), anchored) / passes.count
    assert torch.allclose(value - rest, pull, rtol=1e-8) and float(pull.detach()) > 0
    assert error(found - rest_gradient, passes.gradient(pull)) < 1e-8


def test_smart_anchor_moves_once_per_optimizer_step(bert: Passes) -> None:
    """Not per micro-batch, not when no step was taken, not at evaluation; and once if it was."""
    game = SMART(momentum=0.9)
    halves = zoo.split(bert.batch, 2)
    before = trained_weights(bert.model)
    for _ in range(2):  # a step that a scaler skipped leaves θ as it is
        for half in halves:
            game.backward(bert.model, half, normalizer=4)
    assert all(torch.equal(game.anchor.weights[name], x) for name, x in before.items())
    for step in range(3):
        nudge(bert.model, step)
        with torch.no_grad():
            game(bert.model, bert.batch)
        now = trained_weights(bert.model)
        before = {name: 0.1 * now[name] + 0.9 * x for name, x in before.items()}
        for half in halves:
            game.backward(bert.model, half, normalizer=4)
            assert all(error(game.anchor.weights[name], x) < 1e-12 for name, x in before.items())
        assert game.clock.step == step + 1


def test_smart_explicit_steps_replace_noticed_ones(bert: Passes) -> None:
    """After `after_step()`, writes to θ no longer count by themselves."""
    game = SMART(momentum=0.9)
    game.backward(bert.model, bert.batch)
    anchor = trained_weights(bert.model)
    nudge(bert.model)
    game.after_step()
    now = trained_weights(bert.model)
    anchor = {name: 0.1 * now[name] + 0.9 * x for name, x in anchor.items()}
    for _ in range(2):
        game.backward(bert.model, bert.batch)
        nudge(bert.model)
        assert all(error(game.anchor.weights[name], x) < 1e-12 for name, x in anchor.items())
    assert game.clock.step == 1


@pytest.mark.parametrize("planned", [False, True])
def test_smart_switches_its_momentum(bert: Passes, planned: bool) -> None:
    """β up to `switch_step`, the later β from there; left to `plan`, after a tenth of the steps."""
    game = SMART(momentum=0.5, later_momentum=0.9, switch_step=None if planned else 2)
    game.plan(20)
    assert (game._planned_switch if planned else game.switch_step) == 2
    game.backward(bert.model, bert.batch)
    anchor = trained_weights(bert.model)
    for step in range(4):
        nudge(bert.model, step)
        game.after_step()
        beta = 0.5 if step < 2 else 0.9
        now = trained_weights(bert.model)
        anchor = {name: (1 - beta) * now[name] + beta * x for name, x in anchor.items()}
        assert all(error(game.anchor.weights[name], x) < 1e-12 for name, x in anchor.items())


def test_smart_gives_the_model_back(bert: Passes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parameters are the same objects after a play, also after a failed one."""
    game = SMART()
    game.backward(bert.model, bert.batch)
    nudge(bert.model)
    before = list(bert.model.parameters())
    game.backward(bert.model, bert.batch)
    assert all(a is b for a, b in zip(before, bert.model.parameters(), strict=True))

    def fail(*args: Any, **kwargs: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("stackelberg.game.round.Round.answer", fail)
    with pytest.raises(ZeroDivisionError):
        game.backward(bert.model, bert.batch)
    assert all(a is b for a, b in zip(before, bert.model.parameters(), strict=True))


# --------------------------------------------------------------------------------------------------
# Checkpoints


def train(game: Game, model: nn.Module, optimizer: Any, batches: list[zoo.Batch], told: bool = False) -> None:
    for batch in batches:
        optimizer.zero_grad()
        game(model, batch).backward()
        optimizer.step()
        if told:
            game.after_step()


@pytest.mark.parametrize("told", [False, True], ids=["noticed", "told"])
@pytest.mark.parametrize("name", METHODS)
def test_resuming_is_bit_identical(name: str, told: bool) -> None:
    """Four steps in a row, or two, a checkpoint saved and loaded as Trainer does, and two: the same θ."""
    model, _ = zoo.build("classification", "bert", dropout=0.2 if name == "rdrop" else 0.0)
    batches = [zoo.build("classification", "bert", seed=seed)[1] for seed in range(4)]

    def fresh() -> tuple[Game, nn.Module, Any]:
        again = copy.deepcopy(model)
        return create(name), again, torch.optim.AdamW(again.parameters(), lr=1e-2)

    torch.manual_seed(0)
    game, straight, optimizer = fresh()
    train(game, straight, optimizer, batches, told)

    torch.manual_seed(0)
    game, first, optimizer = fresh()
    train(game, first, optimizer, batches[:2], told)
    saved = copy.deepcopy((first.state_dict(), optimizer.state_dict(), game.state_dict()))
    game, second, optimizer = fresh()
    for part, state in zip((second, optimizer, game), saved, strict=True):
        part.load_state_dict(state)
    train(game, second, optimizer, batches[2:], told)
    ends = [flat(p.detach() for p in m.parameters()) for m in (second, straight)]
    assert torch.equal(*ends)


def test_saving_does_not_disturb_a_run() -> None:
    """Asking for the state in the middle of a run changes nothing of it."""
    model, batch = zoo.build("classification", "bert")
    ends = []
    for saving in (False, True):
        game, again = SMART(), copy.deepcopy(model)
        optimizer = torch.optim.AdamW(again.parameters(), lr=1e-2)
        for _ in range(3):
            train(game, again, optimizer, [batch])
            if saving:
                game.state_dict()
        ends.append(flat(p.detach() for p in again.parameters()))
    assert torch.equal(*ends)


@pytest.mark.parametrize("name", ["smart", "freeat"])
def test_state_is_plain_tensors(name: str, bert: Passes, tmp_path: Any) -> None:
    """A checkpoint can be read with `weights_only=True`."""
    game = create(name)
    game.backward(bert.model, bert.batch)
    torch.save(game.state_dict(), tmp_path / "game.pt")
    state = torch.load(tmp_path / "game.pt", weights_only=True)
    kept = [value for key, value in state.items() if key != "clock"]
    assert kept and all(part and all(isinstance(x, Tensor) for x in part.values()) for part in kept)


@pytest.mark.parametrize("kind", ["AdamW", "SGD", "Adam-fused", "AdamW-foreach"])
def test_every_optimizer_is_noticed(kind: str, bert: Passes) -> None:
    """Whatever writes the step, the clock counts it once."""
    name, _, how = kind.partition("-")
    optimizer = getattr(torch.optim, name)(bert.model.parameters(), lr=1e-3, **({how: True} if how else {}))
    game = VAT()
    for step in range(3):
        game.backward(bert.model, bert.batch)
        assert game.clock.step == step
        optimizer.step()


# --------------------------------------------------------------------------------------------------
# Schedules


def gradients_over_time(game: Game, passes: Passes, steps: int) -> list[Tensor]:
    """The gradient at each step, θ and the start being kept."""
    found = []
    for _ in range(steps):
        passes.model.zero_grad()
        game.backward(passes.model, passes.batch, start=passes.start()[0])
        found.append(gradient(passes.model))
        game.after_step()
    return found


SCHEDULED = [name for name in METHODS if "start_step" in create(name).settings]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_but_plain_has_a_schedule(name: str) -> None:
    """design.md section 2: schedules for every method."""
    assert {"start_step"} <= set(create(name).settings) or name == "plain"


@pytest.mark.parametrize("name", [name for name in SCHEDULED if name not in ("rdrop", "freeat")])
def test_methods_start_at_their_step(name: str, bert: Passes) -> None:
    """Before `start_step` the plain gradient to the last bit, from there on the method's own."""
    plain = gradients_over_time(Plain(), bert, 1)[0]
    (own,) = gradients_over_time(create(name, weight=0.7), bert, 1)
    found = gradients_over_time(create(name, weight=0.7, start_step=2), bert, 3)
    assert torch.equal(found[0], plain) and torch.equal(found[1], plain)
    assert error(found[2], own) < 1e-12 and error(own, plain) > 1e-3


def test_freeat_starts_at_its_step(bert: Passes) -> None:
    """Before `start_step` nothing is carried; from there on δ grows as in a game that has just begun."""
    plain = gradients_over_time(Plain(), bert, 1)[0]
    own = gradients_over_time(create("freeat"), bert, 2)
    found = gradients_over_time(create("freeat", start_step=2), bert, 4)
    assert torch.equal(found[0], plain) and torch.equal(found[1], plain)
    assert error(found[3], own[1]) < 1e-12 and error(own[1], plain) > 1e-3


@pytest.mark.parametrize("name", ["vat", "salt", "adv", "smart", "r3f"])
def test_weight_is_ramped(name: str, bert: Passes) -> None:
    """α/4, 2α/4, 3α/4, α, α from `start_step` on, where the regularizer's gradient is linear in α."""
    plain = gradients_over_time(Plain(), bert, 1)[0]
    (own,) = gradients_over_time(create(name, weight=0.7), bert, 1)
    found = gradients_over_time(create(name, weight=0.7, ramp=4, start_step=1), bert, 6)
    assert torch.equal(found[0], plain)
    for step, share in enumerate((0.25, 0.5, 0.75, 1.0, 1.0), 1):
        assert error(found[step] - plain, share * (own - plain)) < 1e-9


@pytest.mark.parametrize("name", ["salt", "salt-adv"])
def test_every_amortises_the_interaction(name: str, bert: Passes) -> None:
    """With m = 3: two steps without the interaction and one with three times it; the mean is the game's."""
    (leader,) = gradients_over_time(create(name, weight=0.7, gradient="none"), bert, 1)
    (total,) = gradients_over_time(create(name, weight=0.7), bert, 1)
    assert error(leader, total) > 1e-3
    found = gradients_over_time(create(name, weight=0.7, every=3), bert, 6)
    for step, g in enumerate(found):
        if step % 3:
            assert error(g, leader) < 1e-12
        else:
            assert error(g - leader, 3 * (total - leader)) < 1e-9
    assert error(torch.stack(found).mean(0), total) < 1e-9


def test_salt_without_anticipation_is_vat(bert: Passes) -> None:
    settings: dict[str, Any] = {"weight": 0.7, "steps": 2}
    (ours,) = gradients_over_time(SALT(gradient="none", **settings), bert, 1)
    (vat,) = gradients_over_time(VAT(**settings), bert, 1)
    assert torch.equal(ours, vat)


def test_noise_changes_with_the_step_and_the_example_only(bert: Passes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The start is the same for the same (seed, step, example), in one batch or in two, else different."""
    spy = Spy(monkeypatch)

    def starts(game: Game, batches: list[zoo.Batch]) -> Tensor:
        spy.passes.clear()
        for batch in batches:
            game.backward(bert.model, batch)
        return torch.cat([note["source"] for note in spy.perturbed])

    noise = partial(VAT, steps=0)
    one = starts(noise(), [bert.batch])
    assert torch.equal(starts(noise(), zoo.split(bert.batch, 2)), one)
    later = noise()
    later.after_step()
    assert not torch.equal(starts(later, [bert.batch]), one)
    assert not torch.equal(starts(noise(seed=1), [bert.batch]), one)
    assert not torch.equal(one[0], one[1])


# --------------------------------------------------------------------------------------------------
# The registry


def test_registry_knows_the_methods_of_the_brief() -> None:
    known = ("plain", "adv", "vat", "freeat", "freelb", "smart", "salt", "salt-adv", "r3f", "rdrop")
    assert set(METHODS) >= set(known) and all(METHODS[name].__name__ in stackelberg.__all__ for name in known)
    for name, method in METHODS.items():
        assert method.name == name and method.__doc__ and type(create(name)) is method


def test_new_method_registers_itself() -> None:
    """A class that names itself is in the registry; a helper class is not."""

    class Doubled(Plain):
        name = "doubled"

    try:
        assert METHODS["doubled"] is Doubled and isinstance(create("doubled"), Doubled)
    finally:
        del METHODS["doubled"]


@pytest.mark.parametrize(
    ("name", "settings", "parts"),
    [
        ("slat", {}, ["method='slat'", "did you mean 'salt'"]),
        ("salt", {"epsilom": 1.0}, ["'salt'", "'epsilom'", "did you mean 'epsilon'"]),
        ("vat", {"every": 2}, ["'vat'", "'every'"]),
        ("plain", {"weight": 2}, ["'plain'", "'weight'"]),
        ("r3f", {"steps": 2}, ["'r3f'", "'steps'"]),
        ("rdrop", {"epsilon": 1.0}, ["'rdrop'", "'epsilon'"]),
        ("smart", {"anchor": None}, ["'smart'", "'anchor'"]),
    ],
)
def test_create_refuses_by_name(name: str, settings: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(SettingError) as caught:
        create(name, **settings)
    assert all(part in str(caught.value) for part in parts) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", METHODS)
def test_settings_make_the_same_method_again(name: str) -> None:
    game = create(name, seed=3)
    assert create(name, **game.settings).settings == game.settings


@pytest.mark.parametrize("name", METHODS)
def test_help_explains_every_setting_once(name: str) -> None:
    """`help(SALT)` needs no reading of its bases."""
    lines = (METHODS[name].__doc__ or "").splitlines()
    for setting in create(name).settings:
        assert sum(line.startswith(f"    {setting}: ") for line in lines) == 1, setting


def test_other_libraries_names_are_translated() -> None:
    """α is `weight` here, whatever it is called elsewhere."""
    with pytest.raises(SettingError, match=r"alpha.*called 'weight'"):
        create("salt", alpha=1.0)
    with pytest.raises(SettingError, match="did you mean 'salt'"):
        create("SALT")
