"""What all passes of a step share: dropout masks, attention kernel, autocast; and what is put back."""

import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

import zoo
from helping import error, gradient, plays
from stackelberg import METHODS, R3F, SALT, VAT, ModelError, create

# starts are given large, so that the ball's surface is met
pytestmark = pytest.mark.filterwarnings("ignore:the start noise is:UserWarning")

MODELS = [(kind, arch) for kind, archs in zoo.KINDS.items() for arch in archs]
POLICIES = ["shared", "off", "independent"]
NO_SDPA, NO_CHECKPOINTING = ("mpnet", "deberta_v2"), ("albert", "mpnet")
in_both_forms = pytest.mark.parametrize("streamed", [False, True], ids=["loss", "streamed"])
under_every_policy = pytest.mark.parametrize("policy", POLICIES)


def checkpointing(model: Any) -> None:
    zoo.checkpointed(model)
    model.disable_input_require_grads()


# --------------------------------------------------------------------------------------------------
# Dropout


@pytest.mark.parametrize(
    ("policy", "how"),
    [("shared", "eager"), ("shared", "sdpa"), ("shared", "checkpointing"), ("off", "eager")],
)
@pytest.mark.parametrize(("kind", "arch"), MODELS)
def test_nothing_perturbed_nothing_diverges(kind: str, arch: str, policy: Any, how: str) -> None:
    """With dropout 0.3 and δ = 0 the divergence is 0.0 to the last bit: every pass sees the same masks."""
    if (how == "sdpa" and arch in NO_SDPA) or (how == "checkpointing" and arch in NO_CHECKPOINTING):
        pytest.skip("transformers does not offer it")
    attn = "sdpa" if how == "sdpa" else "eager"
    model, batch = zoo.build(kind, arch, dropout=0.3, attn=attn, dtype=torch.float32)
    if how == "checkpointing":
        checkpointing(model)
    game = VAT(steps=0, start_noise="zero", dropout=policy, divergence="mse")
    loss = game(model, batch)
    assert game.report is not None and float(game.report.numbers()["divergence"]) == 0.0
    assert torch.equal(loss.detach(), game.report.task_loss)
    loss.backward()
    assert torch.isfinite(gradient(model)).all()


@pytest.mark.parametrize("divergence", ["kl", "symmetric_kl", "half_symmetric_kl", "js", "mse"])
def test_every_divergence_of_nothing_is_nothing(divergence: str) -> None:
    model, batch = zoo.build("classification", "bert", dropout=0.3, dtype=torch.float32)
    game = SALT(steps=0, start_noise="zero", divergence=divergence)
    game.backward(model, batch)
    assert game.report is not None
    found = game.report.numbers()["divergence"]
    assert found == 0.0 if divergence != "js" else abs(found) < 1e-7  # log 2 is rounded


@pytest.mark.parametrize(("kind", "arch"), [("classification", "bert"), ("causal", "gpt2"), ("seq2seq", "bart")])
def test_independent_masks_diverge_by_themselves(kind: str, arch: str) -> None:
    """As R-Drop wants it; two plays from one seed are the same."""
    model, batch = zoo.build(kind, arch, dropout=0.3)
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        game = VAT(steps=0, start_noise="zero", dropout="independent")
        game.backward(model, batch)
        assert game.report is not None
        found.append(game.report.numbers()["divergence"])
    assert found[0] == found[1] > 1e-3


@under_every_policy
def test_dropout_really_differs_by_policy(policy: Any) -> None:
    """The task loss keeps its dropout under every policy: the clean pass is the plain one."""
    model, batch = zoo.build("classification", "bert", dropout=0.3)
    torch.manual_seed(0)
    plain = model(**batch).loss.detach()
    torch.manual_seed(0)
    game = VAT(dropout=policy)
    game.backward(model, batch)
    assert game.report is not None and torch.equal(game.report.task_loss, plain)


@pytest.mark.parametrize(("kind", "arch"), [("classification", "bert"), ("token", "bert"), ("seq2seq", "bart")])
@pytest.mark.parametrize("name", ["salt", "salt-adv"])
@under_every_policy
@in_both_forms
def test_sweep_is_exact_under_dropout(kind: str, arch: str, name: str, policy: str, streamed: bool) -> None:
    """K = 2, dropout 0.2: the products replay each ascent step's own masks."""
    model, batch = zoo.build(kind, arch, dropout=0.2)
    make = partial(create, name, steps=2, epsilon=0.8, step_size=0.5, dropout=policy)
    value, expected, _ = plays(partial(make, gradient="exact"), model, batch, streamed=False)
    again, found, _ = plays(make, model, batch, streamed=streamed)
    leader, constant, _ = plays(partial(make, gradient="none"), model, batch, streamed=streamed)
    assert torch.allclose(again, value, rtol=1e-12) and torch.allclose(leader, value, rtol=1e-12)
    assert error(found, expected) < 1e-9
    assert error(constant, expected) > 1e-4  # the interaction is there to be missed


@pytest.mark.parametrize("name", ["vat", "salt", "adv", "freelb", "smart"])
@pytest.mark.parametrize("policy", ["shared", "off"])
@in_both_forms
def test_recomputed_activations_see_the_same_masks(name: str, policy: str, streamed: bool) -> None:
    """Gradient checkpointing under dropout changes nothing, though recomputation happens in the backward."""
    model, batch = zoo.build("classification", "bert", dropout=0.2, attn="sdpa")
    make = partial(create, name, dropout=policy)
    value, expected, _ = plays(make, model, batch, streamed=streamed)
    checkpointing(model)
    again, found, _ = plays(make, model, batch, streamed=streamed)
    assert torch.allclose(again, value, rtol=1e-12) and error(found, expected) < 1e-10


@pytest.mark.parametrize("name", METHODS)
@in_both_forms
def test_generator_moves_as_in_a_plain_step(name: str, streamed: bool) -> None:
    """After a play the generator is where one plain forward leaves it: adding a game shifts no other draw."""
    if name == "rdrop":
        pytest.skip("draws a second set of masks")
    model, batch = zoo.build("classification", "bert", dropout=0.3)
    torch.manual_seed(0)
    model(**batch)
    expected = torch.get_rng_state()
    plays(partial(create, name), model, batch, streamed=streamed)
    assert torch.equal(torch.get_rng_state(), expected)


# --------------------------------------------------------------------------------------------------
# What is put back


class Failure(Exception):
    pass


def failing_at(model: nn.Module, call: int) -> Any:
    """Make the model raise in its `call`-th pass, counted from 1."""
    calls = 0

    def fail(module: nn.Module, args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            raise Failure

    return model.get_submodule("bert.pooler").register_forward_pre_hook(fail)


FAILURES = [None, 1, 2, 3, 4, 5]  # clean, (reference,) ascent, perturbed, product


@pytest.mark.parametrize("call", FAILURES)
@in_both_forms
def test_modes_are_restored(call: int | None, streamed: bool) -> None:
    """dropout="off" runs passes in evaluation mode; afterwards each module has its own mode again."""
    model, batch = zoo.build("classification", "bert", dropout=0.3)
    model.bert.encoder.layer[0].eval()
    before = {name: module.training for name, module in model.named_modules()}
    play = partial(plays, partial(SALT, dropout="off"), model, batch, streamed=streamed)
    if call is None:
        play()
    else:
        handle = failing_at(model, call)
        with pytest.raises(Failure):
            play()
        handle.remove()
    assert {name: module.training for name, module in model.named_modules()} == before
    assert set(before.values()) == {True, False}


@pytest.fixture
def attention(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[nn.Module]]:
    """An attention called "mine", as a hub kernel is; the calls to it."""
    calls: list[nn.Module] = []

    def mine(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        calls.append(module)
        return sdpa_attention_forward(module, *args, **kwargs)

    AttentionInterface.register("mine", mine)
    AttentionMaskInterface.register("mine", sdpa_mask)
    yield calls
    del AttentionInterface._global_mapping["mine"], AttentionMaskInterface._global_mapping["mine"]


def backends() -> tuple[bool, ...]:
    cuda = torch.backends.cuda
    return cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled()


@pytest.mark.parametrize("call", [None, 1, 2, 3, 4])
@in_both_forms
def test_attention_is_switched_and_restored(call: int | None, streamed: bool, attention: list[nn.Module]) -> None:
    """An unknown kernel is replaced for every pass of a SALT step and given back, also after a failure."""
    model, batch = zoo.build("classification", "bert", attn="mine")
    expected, _ = zoo.build("classification", "bert", attn="eager")
    before = backends()
    if call is None:
        value, found, _ = plays(SALT, model, batch, streamed=streamed)
        same, again, _ = plays(SALT, expected, batch, streamed=streamed)
        assert torch.allclose(value, same) and error(found, again) < 1e-9
    else:
        handle = failing_at(model, call)
        with pytest.raises(Failure):
            plays(SALT, model, batch, streamed=streamed)
        handle.remove()
    assert not attention
    assert model.config._attn_implementation == "mine" == model.bert.config._attn_implementation
    assert backends() == before
    model(**batch)
    assert attention


@pytest.mark.parametrize("make", [VAT, R3F, partial(SALT, product="differences"), partial(SALT, steps=0)])
def test_first_derivatives_keep_the_kernel(make: Any, attention: list[nn.Module]) -> None:
    """What needs no second derivative runs the attention that the user chose, in every pass."""
    model, batch = zoo.build("classification", "bert", attn="mine")
    passes: list[int] = []
    model.bert.pooler.register_forward_pre_hook(lambda module, args: passes.append(1))
    plays(make, model, batch, streamed=False)
    assert len(attention) == 2 * len(passes) > 2  # two layers


def test_unknown_attention_with_checkpointing_is_refused(attention: list[nn.Module]) -> None:
    """Its recomputation happens after the switch back; the sentence names the kernel and what to do."""
    model, batch = zoo.build("classification", "bert", attn="mine")
    checkpointing(model)
    with pytest.raises(ModelError, match=r"'mine'.*checkpointing.*sdpa"):
        SALT()(model, batch)
    assert model.config._attn_implementation == "mine"


# --------------------------------------------------------------------------------------------------
# Autocast


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("kind", "arch"), [("classification", "bert"), ("seq2seq", "bart")])
def test_backward_outside_autocast_is_that_inside(name: str, kind: str, arch: str) -> None:
    """Autocast is off inside `Function.backward` unless it is entered again; then nothing changes.

    A caller who stays inside for the backward has a float32 head's matrix products autocast there, as those of any
    float32 region.
    """
    found: list[Tensor] = []
    # δ⁰ must not be so small that bfloat16 decides about the direction
    settings = {"start_noise": "normal", "init_radius": 1.0} if "init_radius" in create(name).settings else {}
    model, batch = zoo.build(kind, arch, dropout=0.1, dtype=torch.float32)
    for inside in (True, False):
        model.zero_grad()
        torch.manual_seed(0)
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            loss = create(name, **settings)(model, batch)
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        found.append(gradient(model))
    assert error(*found) < (1e-3 if kind == "seq2seq" else 1e-2)


def test_products_run_in_the_precision_of_the_clean_pass() -> None:
    """Every pass of a bfloat16 step computes its linear layers in bfloat16, those of the backward too."""
    model, batch = zoo.build("classification", "bert", dtype=torch.float32)
    seen: list[torch.dtype] = []
    model.bert.encoder.layer[1].output.dense.register_forward_hook(
        lambda module, args, output: seen.append(output.dtype)
    )
    with torch.autocast("cpu", torch.bfloat16):
        loss = SALT(steps=2)(model, batch)
    forward = len(seen)
    loss.backward()
    assert forward == 4 and len(seen) >= 6 and set(seen) == {torch.bfloat16}
    assert not torch.is_autocast_enabled("cpu")


def test_no_autocast_stays_off() -> None:
    """A backward that is run under someone else's autocast still computes in the precision of the forward."""
    model, batch = zoo.build("classification", "bert", dtype=torch.float32)
    seen: list[torch.dtype] = []
    model.bert.encoder.layer[1].output.dense.register_forward_hook(
        lambda module, args, output: seen.append(output.dtype)
    )
    loss = SALT()(model, batch)
    with torch.autocast("cpu", torch.bfloat16):
        loss.backward()
    assert len(seen) >= 4 and set(seen) == {torch.float32}


# --------------------------------------------------------------------------------------------------
# Evaluation


@pytest.mark.parametrize("name", METHODS)
def test_evaluation_is_the_plain_loss(name: str) -> None:
    """With one warning where a gradient could be taken, and none, nor any trace, under no_grad."""
    model, batch = zoo.build("classification", "bert", dropout=0.3)
    game = create(name)
    game.backward(model, batch)
    torch.optim.SGD(model.parameters(), lr=1e-3).step()
    before = (
        game.clock.step,
        game.clock.seen,
        {k: v.clone() for k, v in getattr(game, "carried", {}).items()},
    )
    model.eval()
    expected = model(**batch).loss
    with pytest.warns(UserWarning, match=r"evaluation mode.*model\.train\(\)") as caught:
        loss = game(model, batch)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert torch.equal(loss, expected) and loss.requires_grad
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        assert torch.equal(game(model, batch), expected)
    model.train()
    torch.manual_seed(0)
    expected = model(**batch).loss
    torch.manual_seed(0)
    with torch.no_grad():
        assert torch.equal(game(model, batch), expected)
    assert (game.clock.step, game.clock.seen) == before[:2]
    assert all(torch.equal(game.carried[k], v) for k, v in before[2].items())


@pytest.mark.parametrize("name", METHODS)
def test_streamed_backward_needs_training_mode(name: str) -> None:
    model, batch = zoo.build("classification", "bert")
    model.eval()
    with pytest.raises(ModelError, match=r"training mode.*model\.train\(\)"):
        create(name).backward(model, batch)
    model.train()
    with torch.no_grad(), pytest.raises(ModelError, match="gradients enabled"):
        create(name).backward(model, batch)


def test_evaluation_without_labels_is_refused() -> None:
    model, batch = zoo.build("classification", "bert")
    del batch["labels"]
    model.eval()
    with torch.no_grad(), pytest.raises(ModelError, match="no labels"):
        VAT()(model, batch)
