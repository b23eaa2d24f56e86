"""Compiled layers and captured steps, as far as a CPU can show them; `test_gpu.py` has the rest.

A recording is imitated: its function runs again at every replay, watched for what a real recording could not do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import zoo
from helping import error, gradient
from stackelberg import METHODS, SALT, VAT, Game, Plain, SettingError, create
from stackelberg.game import capture, speed
from stackelberg.game.capture import Input, Static, _as_if_capturing, _static
from stackelberg.game.casts import Casts
from stackelberg.game.layers import CompiledLayers, repeated_layers
from stackelberg.game.masks import Tape
from stackelberg.game.purpose import meant_for
from stackelberg.game.replay import _apart
from stackelberg.game.twice import Once, Split, Twice, as_is, inductor

RECORDABLE = [name for name in METHODS if name != "freeat"]
KINDS = [("classification", "bert"), ("regression", "mpnet"), ("causal", "llama"), ("seq2seq", "marian")]
# What a recorded step must not do: look at a value on the device, or make a tensor of a number on the host.
FORBIDDEN = {
    torch.ops.aten._local_scalar_dense.default: "looks at a value",
    torch.ops.aten.lift_fresh.default: "makes a tensor of a number",
    torch.ops.aten.nonzero.default: "has a shape that depends on values",
    torch.ops.aten.equal.default: "looks at values",
}


class Watch(TorchDispatchMode):
    """Fails on what cannot be recorded."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in FORBIDDEN and not all(x.dim() == 0 and x.dtype == torch.int64 for x in args if torch.is_tensor(x)):
            raise AssertionError(f"a recorded step {FORBIDDEN[func]}")
        return func(*args, **(kwargs or {}))


class Imitation:
    """A `Recording` without a GPU."""

    made = 0

    def __init__(
        self, function: Callable[[Static], Tensor], inputs: Mapping[str, Input], device: Any, pool: Any
    ) -> None:
        self.inputs = {name: _static(x, device) for name, x in inputs.items()}
        self.function = function
        self.bytes, self.pool = 0, None
        Imitation.made += 1
        with _as_if_capturing():
            function(self.inputs)  # the run before the recording

    def replay(self, inputs: Mapping[str, Input]) -> Tensor:
        for name, x in inputs.items():
            self.inputs[name].copy_(x) if isinstance(x, Tensor) else self.inputs[name].fill_(x)
        with pytest.MonkeyPatch.context() as patch, _as_if_capturing(), Watch():
            patch.setattr(capture, "_in_use", lambda: True)
            patch.setattr(capture, "_is_capturing", lambda: True)
            return self.function(self.inputs)


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Imitation]]:
    """Everything of mode="graph" but the graph."""
    if transformers.__version__.startswith("5.17"):
        pytest.skip("there, eager attention makes a tensor of a number at each pass; such a step is not captured")
    Imitation.made = 0
    monkeypatch.setattr(speed, "Recording", Imitation)
    monkeypatch.setattr(speed.Speed, "can_capture", lambda self, device: True)
    yield Imitation


def game_of(name: str, mode: str, **settings: Any) -> Game:
    """A game that runs its graphs as they are: what is tested is how they are cut, not how they are compiled."""
    made = create(name, mode=mode, **settings)
    made.speed.compiler = as_is
    return made


def played(game: Game, model: nn.Module, batch: Any, **arguments: Any) -> tuple[Tensor, Tensor]:
    """(F, gradient)."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(0)
    loss = game(model, batch, **arguments)
    loss.backward()
    return loss.detach(), gradient(model)


# --------------------------------------------------------------------------------------------------
# Compiled layers


@pytest.mark.parametrize(("kind", "arch"), KINDS)
@pytest.mark.parametrize("name", ["salt", "smart", "freelb", "salt-adv"])
def test_compiled_layers_change_nothing(kind: str, arch: str, name: str) -> None:
    """Objective and gradient of the eager game, to rounding."""
    model, batch = zoo.build(kind, arch)
    settings = {"steps": 2} if name.startswith("salt") else {}
    value, expected = played(game_of(name, "eager", **settings), model, batch)
    game = game_of(name, "compiled", **settings)
    compiled, found = played(game, model, batch)
    layers = game.speed.of(model).layers
    assert layers.operations and not layers.refused, layers.refused
    assert error(compiled, value) < 1e-12 and error(found, expected) < 1e-10


def test_weights_are_cast_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """All passes share one cast of each weight that is multiplied, and the gradient is the eager game's."""
    model, batch = zoo.build("classification", "bert", dtype=torch.float32, seed=3)
    asked: dict[int, list[Tensor]] = {}

    def of(casts: Casts, weight: Tensor, dtype: torch.dtype) -> Tensor:
        asked.setdefault(id(weight), []).append(once(casts, weight, dtype))
        return asked[id(weight)][-1]

    once = Casts.of
    monkeypatch.setattr(Casts, "of", of)
    game = game_of("salt", "compiled", steps=2)
    with torch.autocast("cpu", torch.bfloat16):
        _, expected = played(game_of("salt", "eager", steps=2), model, batch)
        assert not asked
        _, found = played(game, model, batch)
    assert not game.speed.of(model).layers.refused
    linear = [m for layer in game.speed.of(model).layers.layers for m in layer.modules() if isinstance(m, nn.Linear)]
    assert set(asked) == {id(p) for m in linear for p in m.parameters()}
    assert all(len(given) > 4 and len({id(x) for x in given}) == 1 for given in asked.values())
    assert torch.cosine_similarity(found, expected, dim=0) > 0.999
    game(model, batch)  # in float32, where there is nothing to cast
    assert all(x.dtype == torch.bfloat16 for given in asked.values() for x in given)


def test_a_weight_that_moved_within_a_step_is_cast_again() -> None:
    casts, weight = Casts(), nn.Parameter(torch.ones(2))
    first = casts.of(weight, torch.bfloat16)
    assert casts.of(weight, torch.bfloat16) is first
    with torch.no_grad():
        weight.mul_(2)
    assert casts.of(weight, torch.bfloat16).tolist() == [2.0, 2.0] and first.tolist() == [1.0, 1.0]


def test_gradients_of_a_recorded_update_can_be_changed_in_place() -> None:
    """Autograd may give two parameters one tensor, and one of another layout than its parameter."""
    a, b, c = (nn.Parameter(torch.ones(2, 3)) for _ in range(3))
    shared, turned = torch.ones(2, 3), torch.ones(3, 2).t()
    found = _apart([a, b, c, a], [shared, shared, turned, None])
    assert found[0] is shared and found[1] is not shared and found[3] is None
    assert all(g is None or g.stride() == (3, 1) for g in found)
    assert torch.equal(found[1], shared) and torch.equal(found[2], turned)  # type: ignore[arg-type]


def test_equal_layers_are_compiled_once() -> None:
    """Two layers of BERT and three kinds of passes: three operations. ModernBERT's layers differ."""
    for arch, expected in (("bert", 3), ("modernbert", 6)):
        model, batch = zoo.build("classification", arch)
        game = game_of("salt", "compiled")
        played(game, model, batch)
        assert len(game.speed.of(model).layers.operations) == expected


def test_layers_come_back() -> None:
    """Outside a step a model's layers are its own again, also after an error."""
    model, batch = zoo.build("classification", "bert")
    game = game_of("salt", "compiled")
    played(game, model, batch)
    with pytest.raises(Exception, match=r"inputs_embeds|input_ids"):
        game(model, {"labels": batch["labels"]})
    assert not any("forward" in module.__dict__ for module in model.modules())


@pytest.mark.parametrize("name", ["vat", "salt"])
def test_masks_are_worn_by_every_pass(name: str) -> None:
    """With dropout, δ = 0 gives a divergence of exactly 0, and steps draw masks of their own."""
    model, batch = zoo.build("classification", "bert", dropout=0.3)
    game = game_of(name, "compiled", steps=0, start_noise="zero")
    values = []
    for _ in range(3):
        values.append(float(game(model, batch).detach()))
        assert game.report is not None and float(game.report.divergence) == 0.0
    assert len(set(values)) == 3


def test_masks_keep_their_share() -> None:
    """A mask leaves 1 − p of its coordinates, scaled so that the mean is kept."""
    tape = Tape()
    x = torch.ones(400, 500)
    with tape.worn():
        first = nn.functional.dropout(x, 0.3)
    with tape.worn():
        assert torch.equal(nn.functional.dropout(x, 0.3), first)
        assert torch.equal(nn.functional.dropout(x, 0.3, training=False), x)
    assert abs(float((first > 0).float().mean()) - 0.7) < 0.01 and abs(float(first.mean()) - 1) < 0.01


def test_dropout_gradient_is_that_of_the_masks() -> None:
    """With the masks of one tape, compiled and plain passes of SALT agree; differences check neither by itself."""
    model, batch = zoo.build("classification", "bert", dropout=0.2)
    exact = game_of("salt", "compiled", product="double_backward")
    by_differences = game_of("salt", "compiled", product="differences", radius_of_differences=1e-4)
    assert error(played(by_differences, model, batch)[1], played(exact, model, batch)[1]) < 1e-5


@pytest.mark.parametrize(("causal", "scale", "groups"), [(True, None, 2), (False, 0.3, 1)])
def test_plain_attention_is_that_of_torch(causal: bool, scale: float | None, groups: int) -> None:
    """The attention of a tape: causal, scaled, masked, with grouped keys."""
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, h, 5, 4, dtype=torch.float64, generator=draw) for h in (4, 4 // groups, 4 // groups))
    mask = None if causal else torch.rand(2, 1, 5, 5, generator=draw) > 0.3
    mask = None if mask is None else mask | torch.eye(5, dtype=torch.bool)
    attend = partial(nn.functional.scaled_dot_product_attention, is_causal=causal, scale=scale, enable_gqa=groups > 1)
    with Tape().worn(), meant_for("product"):
        ours = attend(q, k, v, attn_mask=mask)
    assert error(ours, attend(q, k, v, attn_mask=mask)) < 1e-7  # its softmax is in float32 at the least


def test_models_that_draw_otherwise_are_played_eagerly(recwarn: pytest.WarningsRecorder) -> None:
    """A random number that passes would not share: said once, and the step is the eager one."""

    model, batch = zoo.build("classification", "bert")
    model.bert.embeddings.register_forward_hook(lambda m, a, out: out + 0 * torch.rand(1).item())
    game = game_of("vat", "compiled")
    _, found = played(game, model, batch)
    assert game.speed.mode == "eager" and any("mode='eager'" in str(w.message) for w in recwarn)
    assert error(found, played(game_of("vat", "eager"), model, batch)[1]) < 1e-12


def test_layers_that_cannot_be_traced_run_as_they_are() -> None:
    """DeBERTa's layers make tensors of their own: no compiled operation, the same gradient."""
    model, batch = zoo.build("classification", "deberta_v2")
    game = game_of("salt", "compiled")
    _, found = played(game, model, batch)
    assert game.speed.of(model).layers.refused
    assert error(found, played(game_of("salt", "eager"), model, batch)[1]) < 1e-10


def test_an_operation_is_differentiated_twice() -> None:
    """Against autograd, for a function with every kind of input; compiled for real."""

    def function(x: Any) -> list[Tensor]:
        weight, inputs, mask = x
        return [torch.where(mask, (inputs @ weight).tanh(), 0.0), inputs.square().sum(-1)]

    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(4, 4, dtype=torch.float64, generator=draw, requires_grad=True)
    inputs = torch.randn(3, 4, dtype=torch.float64, generator=draw)
    mask = torch.rand(3, 4, generator=draw) > 0.4
    u, w = torch.randn(2, 3, 4, dtype=torch.float64, generator=draw)
    twice = Twice.of(function, [weight, inputs, mask], [False, True, False], [True, True, False], inductor)
    once = Once(Split.of(function, [weight, inputs, mask], [True, True, False], inductor))
    found = []
    for call in (function, twice, once):
        x = inputs.clone().requires_grad_()
        first, second = call([weight, x, mask])
        value = (first * w).sum() + (second * first.sum(-1)).sum()
        if call is once:
            assert error(torch.cat([g.flatten() for g in torch.autograd.grad(value, [weight, x])]), found[0][0]) < 1e-12
            continue
        plain = torch.autograd.grad(value, [weight, x], retain_graph=True) if call is function else ()
        g = torch.autograd.grad(value, x, create_graph=True)[0]
        product = torch.autograd.grad((g * u).sum(), [weight, x])
        found.append([torch.cat([g.flatten() for g in part]) for part in (plain, product) if part])
    assert error(found[1][0], found[0][1]) < 1e-12


def test_repeated_layers_are_the_outermost() -> None:
    """T5's blocks hold lists of their own."""
    model, _ = zoo.build("seq2seq", "t5")
    assert {type(layer).__name__ for layer in repeated_layers(model)} == {"T5Block"}
    assert len(CompiledLayers(model).layers) == 4


# --------------------------------------------------------------------------------------------------
# Captured steps


@pytest.mark.parametrize("name", RECORDABLE)
def test_a_recorded_step_is_the_eager_one(name: str, recording: type[Imitation]) -> None:
    """Loss, gradient, figures and noise of step after step, from one recording."""
    model, batch = zoo.build("classification", "bert", dropout=0.1 if name == "rdrop" else 0.0)
    eager, graph = game_of(name, "compiled"), game_of(name, "graph")
    for _ in range(3):
        value, expected = played(eager, model, batch)
        replayed, found = played(graph, model, batch)
        if name != "rdrop":  # which has drawn more masks by now
            assert error(replayed, value) < 1e-6 and error(found, expected) < 1e-10
        assert eager.report is not None and graph.report is not None
        assert graph.report.numbers().keys() == eager.report.numbers().keys()
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(0.999)  # an optimizer's step, as far as clocks can tell
    assert recording.made == 1
    assert graph.clock.step == eager.clock.step == 2


def test_recordings_are_made_for_shapes_routes_and_settings(recording: type[Imitation]) -> None:
    """Another length, another route (`every`), another setting: another recording; the same again: none."""
    model, batch = zoo.build("classification", "bert")
    game = game_of("salt", "graph", every=2)
    short = {name: x[:, :7] if x.dim() > 1 else x for name, x in batch.items()}
    for given in (batch, short, batch, short):
        played(game, model, given)
    assert recording.made == 2
    game.after_step()
    played(game, model, batch)
    assert recording.made == 3
    game.weight = 0.5
    lighter, _ = played(game, model, batch)
    assert recording.made == 4
    eager = game_of("salt", "eager", weight=0.5, every=2)
    eager.after_step()
    played(eager, model, batch)  # the step's first micro-batch
    assert error(lighter, played(eager, model, batch)[0]) < 1e-6


def test_auto_records_what_comes_often(recording: type[Imitation], monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, it neither captures nor compiles. Shapes are counted apart, and a whole step is captured no later."""
    monkeypatch.setattr(speed, "PATIENCE", 3)
    model, batch = zoo.build("classification", "bert")
    shorter = {name: x[:, :-1] if x.dim() == 2 else x for name, x in batch.items()}
    game = game_of("salt", "auto")
    for given, made in ((batch, 0), (shorter, 0), (batch, 0), (batch, 1), (shorter, 0), (shorter, 1)):
        before = recording.made
        played(game, model, given)
        assert recording.made - before == made
        assert bool(game.speed.of(model).layers.operations) == (recording.made > 0)
    whole = game_of("salt", "auto")
    assert [whole.step(model, batch, lambda: torch.zeros(())) is not None for _ in range(4)] == [False] * 4
    for _ in range(2):
        whole(model, batch)
    assert whole.step(model, batch, lambda: torch.zeros(())) is not None


def test_gradients_wait_for_their_backward(recording: type[Imitation]) -> None:
    """Two losses before one backward: the second replay does not overwrite the first one's gradients."""
    model, batch = zoo.build("classification", "bert")
    other = {**batch, "input_ids": batch["input_ids"].flip(0), "attention_mask": batch["attention_mask"].flip(0)}
    graph, eager = game_of("salt", "graph"), game_of("salt", "compiled")
    found = []
    for game in (graph, eager):
        model.zero_grad()
        (game(model, batch) + 3 * game(model, other)).backward()
        found.append(gradient(model))
    assert error(*found) < 1e-10


def test_recorded_steps_accumulate(recording: type[Imitation]) -> None:
    """`.grad` is added to; micro-batches with a normalizer are the batch."""
    model, batch = zoo.build("classification", "bert", batch=4)
    game = game_of("salt", "graph")
    _, whole = played(game, model, batch, index=torch.arange(4))
    model.zero_grad()
    for part, index in zip(zoo.split(batch, 2), torch.arange(4).chunk(2), strict=True):
        game.backward(model, part, normalizer=4, index=index)
    assert error(gradient(model), whole) < 1e-10


def test_alpha_ramps_in_a_recording(recording: type[Imitation]) -> None:
    """α is an input of the recording."""
    model, batch = zoo.build("classification", "bert")
    graph, eager = game_of("vat", "graph", ramp=3), game_of("vat", "eager", ramp=3)
    for _ in range(4):
        assert error(played(graph, model, batch)[0], played(eager, model, batch)[0]) < 1e-6
        graph.after_step()
        eager.after_step()
    assert recording.made == 1


@pytest.mark.parametrize(
    ("game", "why"),
    [
        (lambda: game_of("freeat", "graph"), "carried"),
        (lambda: game_of("salt", "graph", gradient="exact"), "exact"),
        (lambda: game_of("salt", "graph", product="forward_over_reverse"), "forward_over_reverse"),
        (lambda: game_of("vat", "graph", recompute=True), "recompute"),
    ],
)
def test_what_cannot_be_recorded_is_said(game: Callable[[], Game], why: str, recording: type[Imitation]) -> None:
    """One warning that names the reason, and the gradient all the same."""
    model, batch = zoo.build("classification", "bert")
    chosen = game()
    with pytest.warns(UserWarning, match=why):
        played(chosen, model, batch)
    played(chosen, model, batch)
    assert recording.made == 0


def test_on_a_cpu(caplog: pytest.LogCaptureFixture) -> None:
    """`auto` says what it chose in the log, `graph` warns, `eager` says nothing; all play."""
    model, batch = zoo.build("classification", "bert")
    with caplog.at_level(logging.INFO, "stackelberg"):
        played(VAT(), model, batch)
        played(VAT(mode="eager"), model, batch)
    assert len(caplog.records) == 1 and "need a GPU" in caplog.text
    with pytest.warns(UserWarning, match="need a GPU"):
        played(Plain(mode="graph"), model, batch)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(SettingError, match="mode='fast'"):
        SALT(mode="fast")  # type: ignore[arg-type]


def test_a_parameter_without_a_gradient_keeps_none(recording: type[Imitation]) -> None:
    """Also where its gradient comes out of a recording."""
    model, batch = zoo.build("classification", "bert")
    model.spare = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    played(game_of("salt", "graph"), model, batch)
    assert model.spare.grad is None


def test_nothing_is_asked_of_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build for GPUs on a machine without one: the driver's answer would be an error."""

    def no_device() -> bool:
        raise RuntimeError("no CUDA-capable device is detected")

    monkeypatch.setattr(capture, "_is_capturing", no_device)
    assert not capture.capturing()


def test_a_number_drawn_for_layer_drop_is_shared() -> None:
    """Marian draws one for each layer in some versions of transformers, even where none is dropped."""

    class Drawing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.rand([])

    tape, x = Tape(), torch.ones(3)
    with tape.worn():
        first = [Drawing()(x), Drawing()(x)]
    with tape.worn():
        second = [Drawing()(x), Drawing()(x)]
    assert all(map(torch.equal, first, second)) and not torch.equal(*first)


def test_models_that_drop_layers_are_played_eagerly() -> None:
    """Which layers a recording has left out, it would leave out for good."""
    model, batch = zoo.build("seq2seq", "marian")
    model.model.encoder.layerdrop = 0.1
    game = SALT(mode="compiled")
    with pytest.warns(UserWarning, match="plays with mode='eager': the model drops whole layers at random"):
        game(model, batch)
