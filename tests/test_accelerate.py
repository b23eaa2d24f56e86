"""A game in an Accelerate loop: the weights of a loop by hand, and states that come and go with `save_state`."""

from __future__ import annotations

import copy
import runpy
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch import Tensor, nn
from torch.utils.data import DataLoader

import zoo
from helping import error, flat, gradient
from stackelberg import METHODS, Game, ModelError, create, replayed
from test_launch import EXAMPLES, learns

ROWS = 8


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Accelerate keeps its settings in the process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def problem(dropout: float = 0.0, seed: int = 0) -> tuple[nn.Module, Any]:
    model, batch = zoo.build("classification", "bert", batch=ROWS, dtype=torch.float32, dropout=dropout, seed=seed)
    return model, [{name: field[i] for name, field in batch.items()} for i in range(ROWS)]


def weights(model: nn.Module) -> Tensor:
    return flat(p.detach().clone() for p in model.parameters())


def train(accelerator: Accelerator, game: Game, model: Any, optimizer: Any, data: Any) -> None:
    """One epoch, as in the example."""
    for batch in replayed(data, game.replays_per_batch):
        with accelerator.accumulate(model):
            with accelerator.autocast():
                loss = game(model, batch)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()


def prepared(accelerator: Accelerator, model: nn.Module, examples: Any) -> Any:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return accelerator.prepare(model, optimizer, DataLoader(examples, batch_size=2))


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("name", sorted(METHODS))
def test_trains_as_a_loop_by_hand(name: str, precision: str) -> None:
    """With accumulation, except of what is replayed."""
    model, examples = problem(dropout=0.1)
    game, theirs, ours = create(name), copy.deepcopy(model), create(name)
    accumulate = 1 if game.replays_per_batch > 1 else 2
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-2)
    torch.manual_seed(0)
    for i, batch in enumerate(replayed(DataLoader(examples, batch_size=2), game.replays_per_batch)):
        with torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else nullcontext():
            loss = game(theirs, batch)
        (loss / accumulate).backward()
        if (i + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    accelerator = Accelerator(cpu=True, mixed_precision=precision, gradient_accumulation_steps=accumulate)
    theirs_too, stepper, data = prepared(accelerator, copy.deepcopy(model), examples)
    torch.manual_seed(0)
    train(accelerator, ours, theirs_too, stepper, data)
    assert torch.equal(weights(theirs_too), weights(theirs))
    assert not torch.equal(weights(theirs), weights(model))
    assert ours.state_dict()["clock"] == game.state_dict()["clock"]


def test_accumulation_of_unequal_batches() -> None:
    """5 + 3 sentences, which Accelerate halves: with N = 8 / 2 each sentence has its eighth."""
    model, examples = problem()
    whole = copy.deepcopy(model)
    create("salt")(whole, next(iter(DataLoader(examples, batch_size=ROWS)))).backward()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, game = accelerator.prepare(model), create("salt")
    for batch in DataLoader(examples, batch_size=5):
        with accelerator.accumulate(model):
            accelerator.backward(game(model, batch, normalizer=ROWS / 2))
    assert error(gradient(model), gradient(whole)) < 1e-5


@pytest.mark.parametrize("name", ["plain", "smart", "freeat", "salt"])
def test_resumes_to_the_last_bit(name: str, tmp_path: Path) -> None:
    """With dropout: Accelerate saves the generators' states too."""

    def run(seed: int, epochs: int, save: bool = False, load: bool = False) -> Tensor:
        AcceleratorState._reset_state(reset_partial_state=True)
        accelerator = Accelerator(cpu=True)
        model, optimizer, data = prepared(accelerator, problem(dropout=0.1, seed=seed)[0], problem()[1])
        accelerator.register_for_checkpointing(game := create(name))
        if load:
            accelerator.load_state(str(tmp_path))
        for _ in range(epochs):
            train(accelerator, game, model, optimizer, data)
            if save:
                accelerator.save_state(str(tmp_path))
                save = False
        return weights(model)

    expected = run(seed=0, epochs=2, save=True)
    assert torch.equal(run(seed=1, epochs=1, load=True), expected)
    torch.load(tmp_path / "custom_checkpoint_0.pkl", weights_only=True)


def test_refuses_autocast_that_it_does_not_see() -> None:
    model, examples = problem()
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    model, _, data = prepared(accelerator, model, examples)
    with pytest.raises(ModelError, match=r"with accelerator\.autocast\(\)"):
        create("salt")(model, cast(Any, next(iter(data))))


def test_example(capsys: pytest.CaptureFixture[str]) -> None:
    with torch.random.fork_rng():
        runpy.run_path(str(EXAMPLES / "accelerate_loop.py"))
    learns(capsys.readouterr().out)


@pytest.mark.parametrize("name", ["plain", "smart", "freeat", "salt"])
def test_plain_loop_resumes_to_the_last_bit(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The example without Accelerate, interrupted in its third epoch, with dropout."""

    def run() -> Tensor:
        with torch.random.fork_rng():
            return weights(runpy.run_path(str(EXAMPLES / "plain_loop.py"))["model"])

    def interrupted(state: Any, path: Path) -> None:
        if state["epochs"] == 3:
            raise KeyboardInterrupt
        save(state, path)

    monkeypatch.setattr("stackelberg.SALT", lambda **_: create(name), raising=False)
    expected, save = run(), torch.save
    monkeypatch.setattr("tempfile.mkdtemp", lambda: tmp_path)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(torch, "save", interrupted)
        run()
    assert torch.equal(run(), expected)
