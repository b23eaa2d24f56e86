"""What each working precision can resolve: guarded sentences, inner scales, warnings, fidelity."""

from __future__ import annotations

import copy
import warnings
from functools import partial

import pytest
import torch

import zoo
from helping import error, gradient, plays
from stackelberg import SALT, VAT, SettingError, create
from stackelberg.game import noise
from stackelberg.game.precision import TRUSTED, InnerScale, movement, unit_rounding
from stackelberg.game.round import Round


def half(dtype: torch.dtype) -> torch.autocast:
    """Autocast on the CPU."""
    return torch.autocast("cpu", dtype)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_movement_counts_rounding_units(precision: str) -> None:
    """A reply that is the clean logits rounded has moved by about one unit; one that really moved, by many."""
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    exact = 3 * torch.randn(512, 1, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(512, 1, dtype=torch.bool)
    rounded, clean = exact.to(dtype).float(), (exact * (1 + 1e-9)).float()
    noise = movement(clean, rounded, mask, unit_rounding(precision, False), distributions=True)
    assert noise.median() < TRUSTED
    moved = movement(
        clean, clean + 0.3 * torch.randn_like(clean), mask, unit_rounding(precision, False), distributions=True
    )
    assert moved.median() > 5 * TRUSTED
    assert (movement(clean, clean, mask, unit_rounding(precision, False), distributions=True) == 0).all()


def test_movement_ignores_padding_and_the_rest_of_the_batch() -> None:
    """A sentence's movement is its own."""
    clean, reply = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    mask = torch.tensor([[True, True, False], [True, True, True]])
    together = movement(clean, reply, mask, unit_rounding("float32", False), True)
    alone = torch.cat(
        [
            movement(clean[i : i + 1], reply[i : i + 1], mask[i : i + 1], unit_rounding("float32", False), True)
            for i in (0, 1)
        ]
    )
    assert torch.allclose(together, alone)
    spoilt = reply.clone()
    spoilt[0, 2] = 1e4
    assert torch.equal(movement(clean, spoilt, mask, unit_rounding("float32", False), True), together)


def test_guarded_sentences_keep_their_step_but_not_their_interaction() -> None:
    """A start that moves no output: SALT gives VAT's gradient, and the report counts every sentence."""
    model, batch = zoo.build("classification", "bert", dtype=torch.float32)
    settings = {"init_std": 1e-12, "seed": 3}
    salt, vat = SALT(**settings), VAT(**settings)
    salt(model, batch).backward()
    mine = gradient(model)
    model.zero_grad()
    vat(model, batch).backward()
    assert salt.report is not None and salt.report.numbers()["guarded"] == 1.0
    assert error(mine, gradient(model)) < 1e-6
    assert salt.report.numbers()["final_norm"] > 0.2  # the step was taken, where the gradient was not exactly 0


def test_settings_below_the_floor_warn_once() -> None:
    """After ten steps, in one sentence that says what to raise."""
    model, batch = zoo.build("classification", "bert", dtype=torch.float32)
    game = SALT(init_std=1e-12)
    with pytest.warns(UserWarning, match="below the rounding noise of float32") as caught:
        for _ in range(14):
            game(model, batch)
    assert len(caught) == 1 and "init_std" in str(caught[0].message)


def test_a_start_larger_than_half_the_ball_warns_once() -> None:
    """‖δ⁰‖/ε above ½ is mostly random."""
    model, batch = zoo.build("classification", "bert", dtype=torch.float32)
    game = SALT(init_radius=0.9)
    with pytest.warns(UserWarning, match="random rather than adversarial") as caught:
        for _ in range(14):
            game(model, batch)
    assert len(caught) == 1


def test_defaults_do_not_warn() -> None:
    """In float32, over the first steps, for every norm and granularity."""
    model, batch = zoo.build("classification", "bert", dtype=torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for norm in ("l2", "linf"):
            for per in ("sentence", "token"):
                game = SALT(norm=norm, per=per)
                for _ in range(12):
                    game(model, batch)


def test_differences_in_half_precision_warn() -> None:
    """They lose the interaction there, and say so; the game still runs."""
    model, batch = zoo.build("classification", "bert", dtype=torch.float32)
    with pytest.warns(UserWarning, match="not faithful in bfloat16"), half(torch.bfloat16):
        SALT(product="differences")(model, batch).backward()
    assert gradient(model).isfinite().all()


def test_float16_scales_the_inner_loss_and_divides_it_back() -> None:
    """A gradient that float16 would flush comes out right, through a scaler in either form."""
    model, batch = zoo.build("classification", "bert", dtype=torch.float32, seed=3)  # whose outputs all move well
    expected = plays(SALT, model, batch, streamed=False)[1]
    for streamed in (False, True):
        model.zero_grad()
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with half(torch.float16):
            if streamed:
                SALT().backward(model, batch, scaler=scaler)
            else:
                loss = SALT()(model, batch)
        if not streamed:
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        found = gradient(model)
        assert found.isfinite().all()
        assert torch.cosine_similarity(found, expected, dim=0) > 0.98


def test_inner_scale_halves_on_overflow_and_moves_nobody() -> None:
    """An overflowing gradient is 0 for that step."""
    scale = InnerScale.at("float16", torch.device("cpu"))
    before = float(scale.value)
    g, finite = scale.unscale({"source": torch.tensor([[[float("inf"), 1.0]]])})
    assert not finite and float(scale.value) == before / 2 and g["source"].eq(0).all()
    g, finite = scale.unscale({"source": torch.tensor([[[before, 2.0]]])})
    assert finite and float(scale.value) == before / 2 and g["source"][0, 0, 0] == 2.0
    assert float(InnerScale.at("bfloat16", torch.device("cpu")).value) == 1.0


@pytest.mark.parametrize("kind", ["classification", "regression", "tokens", "seq2seq"])
@pytest.mark.parametrize("steps", [1, 2])
def test_fidelity_of_float64_is_perfect_and_of_float32_nearly(kind: str, steps: int) -> None:
    """And measuring leaves the model, its mode and its gradients as they were."""
    kind = "token" if kind == "tokens" else kind
    model, batch = zoo.build(kind, zoo.KINDS[kind][0], dtype=torch.float32)
    reference = copy.deepcopy(model).double()
    modes = [module.training for module in model.modules()]
    measured = SALT(steps=steps).fidelity(model, batch, reference=reference)
    assert modes == [module.training for module in model.modules()]
    assert all(p.grad is None for p in model.parameters())
    assert measured.product > 0.999 and measured.direction > 0.99 and 0.3 < measured.start < 0.5
    exact = SALT(steps=steps).fidelity(reference, batch)
    assert exact.product == pytest.approx(1, abs=1e-9) and exact.reached == pytest.approx(1, abs=1e-9)
    assert exact.guarded == 0 and exact.share > 1e-3


def test_fidelity_shows_what_bfloat16_loses() -> None:
    """It is a measurement, not a formality: bfloat16's direction is worse than float32's."""
    model, batch = zoo.build("classification", "bert", dtype=torch.float32)
    single = SALT().fidelity(model, batch)
    with half(torch.bfloat16):
        rough = SALT().fidelity(model, batch)
    assert rough.product < single.product and rough.direction < single.direction
    assert 0.9 < rough.product


def test_bfloat16_parameters_keep_delta_in_float32() -> None:
    """δ is added in float32 and the sum rounded; gradients have the parameters' own type."""
    model, batch = zoo.build("classification", "bert", dtype=torch.bfloat16)
    game = SALT()
    game(model, batch).backward()
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.bfloat16}
    assert game.report is not None and game.report.numbers()["final_norm"] == pytest.approx(1.0, abs=0.3)


def test_products_agree_in_float32() -> None:
    """The three ways to the same vector."""
    model, batch = zoo.build("classification", "bert", dtype=torch.float32)
    found = [
        plays(partial(SALT, product=name), model, batch, streamed=False)[1]
        for name in ("double_backward", "forward_over_reverse", "differences")
    ]
    assert error(found[1], found[0]) < 1e-4 and error(found[2], found[0]) < 0.05


@pytest.mark.parametrize("game", [SALT(gradient="exact"), VAT(), create("salt-adv"), SALT(every=3)])
def test_fidelity_of_every_adversarial_game(game: SALT | VAT) -> None:
    """Whatever the route of the training step, the sweep is what is measured."""
    model, batch = zoo.build("classification", "bert", dtype=torch.float32)
    game.clock.step = 1
    assert game.fidelity(model, batch).product > 0.999
    with pytest.raises(SettingError, match="steps=0"):
        SALT(steps=0).fidelity(model, batch)


def test_noise_is_finite_at_both_ends_of_its_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """One coordinate in 2²⁴ used to be infinite: the largest and the smallest hash must give a number."""
    for bits in (0, 0xFFFFFFFF):
        monkeypatch.setattr(noise, "_scramble", lambda x, bits=bits: torch.full_like(x, bits))
        for kind in ("normal", "uniform"):
            drawn = noise.unit_noise(
                kind, torch.Size([1, 2, 3]), torch.zeros(1, dtype=torch.long), seed=0, step=0, side="s"
            )
            assert drawn.isfinite().all() and drawn.abs().max() < 6


@pytest.mark.parametrize("settings", [{"start_step": 1}, {"every": 2}])
def test_a_step_that_needs_a_second_derivative_has_it(settings: dict[str, int]) -> None:
    """On SDPA without attention dropout, whose fused kernel has none: the kernel follows the step it is in."""
    model, batch = zoo.build("classification", "bert", dtype=torch.float32, attn="sdpa")
    game = SALT(product="auto", **settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            game(model, batch).backward()
            optimizer.step()


def test_span_padding_does_not_guard() -> None:
    """The floor under padded positions is no rounding unit."""
    z = torch.randn(2, 2, 6, generator=torch.Generator().manual_seed(0))
    reply = z + 0.2 * torch.randn(2, 2, 6, generator=torch.Generator().manual_seed(1))
    mask = torch.ones(2, 2, dtype=torch.bool)
    floor = torch.full((2, 2, 3), -1e4)
    padded = movement(
        torch.cat([z, floor], -1), torch.cat([reply, floor], -1), mask, unit_rounding("bfloat16", False), True
    )
    assert torch.allclose(padded, movement(z, reply, mask, unit_rounding("bfloat16", False), True), rtol=1e-4)


def test_games_that_do_not_anticipate_guard_nobody() -> None:
    """VAT has no interaction to leave out, and does not say it does."""
    model, batch = zoo.build("classification", "bert", dtype=torch.float32)
    game = VAT(init_std=1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(13):
            game(model, batch)
    assert game.report is not None and "guarded" not in game.report.numbers()


def test_float16_product_that_overflows_is_left_out() -> None:
    """Weights so large that the product overflows: finite gradients from the first step on, and a lower scale."""
    model, batch = zoo.build("classification", "bert", dtype=torch.float32)
    with torch.no_grad():
        model.classifier.weight.mul_(20)
    game = SALT()
    with half(torch.float16):
        for _ in range(6):
            model.zero_grad()
            loss = game(model, batch)
            loss.backward()
            if gradient(model).isfinite().all():
                break
    assert gradient(model).isfinite().all()


def test_games_that_compare_logits_make_them_in_float32() -> None:
    """Under autocast a logit of a half precision has few digits; the head's own forward comes back afterwards."""
    model, batch = zoo.build("classification", "bert", dtype=torch.float32)
    shares = []
    for precise in (True, False):
        game = SALT(init_std=1e-4)
        with half(torch.bfloat16):
            round = Round(model, batch, None, dropout="shared", second_derivative=True, compares=precise)
            round.clean()
            delta = game.start(round, game.space(round))
            movement = round.divergence("kl", False).watched(delta, round.target)[1]
        assert movement is not None
        spacing = round.target.detach().to(torch.bfloat16).float() == round.target.detach()
        assert bool(spacing.all()) is not precise
        shares.append(float((movement >= TRUSTED).float().mean()))
        assert "forward" not in model.classifier.__dict__
    assert shares[0] > shares[1]
    with half(torch.bfloat16):
        assert torch.equal(create("plain")(model, batch), model(**batch).loss)


def test_fidelity_where_nobody_is_trusted_is_not_a_number() -> None:
    """And no error: there is simply no interaction to compare."""
    model, batch = zoo.build("classification", "bert", dtype=torch.float32)
    measured = SALT(init_std=1e-12).fidelity(model, batch)
    assert measured.guarded == 1.0 and measured.product != measured.product
