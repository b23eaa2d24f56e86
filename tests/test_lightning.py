"""A game in Lightning trains as in a loop written by hand, and its state comes and goes with Lightning's own."""

from __future__ import annotations

import copy
import csv
import importlib
import os
import runpy
import sys
from pathlib import Path
from typing import Any, cast

import lightning.pytorch as pl
import pytest
import pytorch_lightning
import torch
import torch.multiprocessing as multiprocessing
from lightning.fabric.plugins.environments.lightning import find_free_network_port
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy, ModelParallelStrategy, SingleDeviceStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler

import zoo
from helping import error, flat
from ranks import shard
from stackelberg import METHODS, Game, ModelError, SettingError, create, replayed
from stackelberg.adapters.lightning import GameCallback, ReplayedLoader, example_numbers
from test_launch import EXAMPLES, learns

pytestmark = [  # Lightning's advice, and its use of torch
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning"),
]

ROWS = 8
Example = dict[str, Tensor]


def problem(dtype: torch.dtype = torch.float64, dropout: float = 0.0, seed: int = 0) -> tuple[nn.Module, list[Example]]:
    model, batch = zoo.build("classification", "bert", batch=ROWS, dtype=dtype, dropout=dropout, seed=seed)
    return model, [{name: field[i] for name, field in batch.items()} for i in range(ROWS)]


class Classifier(pl.LightningModule):
    """What a user has, with `self.game(self.model, ...)` in the place of `self.model(...).loss`."""

    def __init__(self, model: nn.Module, game: Game, numbered: bool = False, **arguments: Any) -> None:
        super().__init__()
        self.model, self.game, self.numbered, self.arguments = model, game, numbered, arguments

    def training_step(self, batch: Example, batch_idx: int) -> Tensor:
        index = example_numbers(self, len(batch["labels"])) if self.numbered else None
        return self.game(self.model, batch, index=index, **self.arguments)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=1e-2)


class Descending(Classifier):
    """Its change in one step is a multiple of its gradient."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=1e-2)


class Watch(pl.Callback):
    """Keeps the report of every batch, and the clock's step in it."""

    def __init__(self) -> None:
        self.figures: list[dict[str, float]] = []

    def on_train_batch_end(self, trainer: Any, module: Any, *rest: Any) -> None:
        self.figures.append(module.game.report.numbers() | {"step": module.game.clock.step})


class Save(pl.Callback):
    """A checkpoint of every epoch."""

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        trainer.save_checkpoint(Path(trainer.default_root_dir) / f"{trainer.current_epoch}.ckpt")


def loader(game: Game, examples: list[Example], size: int = 2, **arguments: Any) -> ReplayedLoader:
    return ReplayedLoader(examples, batch_size=size, replays=game.replays_per_batch, **arguments)


def trainer(folder: Path, *callbacks: pl.Callback, epochs: int = 2, **arguments: Any) -> pl.Trainer:
    arguments = {
        "accelerator": "cpu",
        "log_every_n_steps": 2,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "max_epochs": epochs,
        "default_root_dir": folder,
    } | arguments
    return pl.Trainer(callbacks=[*callbacks], **arguments)


def fit(
    folder: Path, module: Classifier, data: Any, *callbacks: pl.Callback, path: Any = None, **arguments: Any
) -> Tensor:
    """The weights after training."""
    runner = trainer(folder, GameCallback(module.game), *callbacks, **arguments)
    torch.manual_seed(0)
    runner.fit(module, data, ckpt_path=path, weights_only=True)
    return weights(module.model)


def weights(model: nn.Module) -> Tensor:
    return flat(p.detach().clone() for p in model.parameters())


# --------------------------------------------------------------------------------------------------
# Training


@pytest.mark.parametrize("name", sorted(METHODS))
def test_trains_as_a_loop_by_hand(name: str, tmp_path: Path) -> None:
    model, examples = problem(torch.float32, dropout=0.1 if name == "rdrop" else 0.0)
    game = create(name)
    data = DataLoader(examples, batch_size=2)
    optimizer = torch.optim.AdamW((theirs := copy.deepcopy(model)).parameters(), lr=1e-2)
    torch.manual_seed(0)
    game.plan(2 * 4 * game.replays_per_batch)
    for _ in range(2):
        for batch in replayed(data, game.replays_per_batch):
            game(theirs, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    module = Classifier(copy.deepcopy(model), create(name))
    assert torch.equal(fit(tmp_path, module, loader(game, examples)), weights(theirs))
    assert not torch.equal(weights(module.model), weights(model))


def test_bfloat16(tmp_path: Path) -> None:
    model, examples = problem(torch.float32)
    game, theirs = create("salt", init_std=0.01), copy.deepcopy(model)
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-2)
    for batch in DataLoader(examples, batch_size=2):
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):  # as Lightning has it
            loss = game(theirs, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    module = Classifier(model, create("salt", init_std=0.01))
    found = fit(tmp_path, module, loader(game, examples), epochs=1, precision="bf16-mixed")
    assert torch.equal(found, weights(theirs))


@pytest.mark.parametrize("name", ["salt", "freelb", "freeat"])
def test_accumulation_of_equal_batches_is_one_big_batch(name: str, tmp_path: Path) -> None:
    model, examples = problem()
    found = []
    for k in (1, 4):
        module = Descending(copy.deepcopy(model), create(name), numbered=True)
        data = loader(module.game, examples, ROWS // k, accumulate=k)
        found.append(fit(tmp_path, module, data, epochs=2, accumulate_grad_batches=k) - weights(model))
    assert error(found[1], found[0]) < 1e-12


def test_accumulation_of_unequal_batches(tmp_path: Path) -> None:
    """5 + 3 sentences, which Lightning halves: with N = 8 / 2 each sentence has its eighth."""
    model, examples = problem()
    whole = Descending(copy.deepcopy(model), create("salt"), numbered=True)
    parts = Descending(copy.deepcopy(model), create("salt"), numbered=True, normalizer=ROWS / 2)
    expected = fit(tmp_path, whole, loader(whole.game, examples, ROWS), epochs=1) - weights(model)
    found = fit(tmp_path, parts, loader(parts.game, examples, 5), epochs=1, accumulate_grad_batches=2) - weights(model)
    assert error(found, expected) < 1e-12


class Manual(Classifier):
    """Two steps on each batch, gradients by the streamed form."""

    automatic_optimization = False

    def training_step(self, batch: Example, batch_idx: int) -> None:
        optimizer = cast(Any, self.optimizers())
        for _ in range(2):
            optimizer.zero_grad()
            self.game.backward(self.model, batch)
            optimizer.step()


def test_manual_optimization(tmp_path: Path) -> None:
    model, examples = problem()
    automatic, manual = Classifier(copy.deepcopy(model), create("smart")), Manual(model, create("smart"))
    twice = [batch for batch in DataLoader(cast(Any, examples), batch_size=2) for _ in range(2)]
    expected = fit(tmp_path, automatic, DataLoader(cast(Any, twice), batch_size=None), epochs=1)
    found = fit(tmp_path, manual, DataLoader(examples, batch_size=2), epochs=1)
    assert error(found, expected) < 1e-10
    assert manual.game.state_dict()["clock"]["step"] == 8


def test_validation_is_the_plain_loss(tmp_path: Path) -> None:
    losses: list[Tensor] = []

    class Validated(Classifier):
        def validation_step(self, batch: Example, batch_idx: int) -> None:
            losses.append(self.game(self.model, batch))

        def val_dataloader(self) -> Any:
            return DataLoader(problem()[1], batch_size=ROWS)

    model, examples = problem(dropout=0.1)
    module = Validated(model, create("salt"))
    fit(tmp_path, module, loader(module.game, examples), epochs=1)
    with torch.no_grad():
        expected = model.eval()(**next(iter(DataLoader(examples, batch_size=ROWS)))).loss
    assert torch.equal(losses[-1], expected)
    assert module.game.state_dict()["clock"]["step"] == 4


# --------------------------------------------------------------------------------------------------
# Checkpoints


@pytest.mark.parametrize("name", ["plain", "smart", "freeat", "salt"])
def test_resumes_to_the_last_bit(name: str, tmp_path: Path) -> None:
    model, examples = problem(torch.float32)
    module = Classifier(copy.deepcopy(model), create(name))
    expected = fit(tmp_path, module, loader(module.game, examples), Save())

    other = Classifier(problem(torch.float32, seed=1)[0], create(name))
    found = fit(tmp_path, other, loader(other.game, examples), path=tmp_path / "0.ckpt")
    assert torch.equal(found, expected)
    assert same(other.game.state_dict(), module.game.state_dict())


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    return torch.equal(a, b) if isinstance(a, Tensor) else bool(a == b)


@pytest.mark.parametrize("name", ["smart", "freeat", "salt"])
def test_a_new_fit_begins_anew_and_a_longer_one_goes_on(name: str, tmp_path: Path) -> None:
    model, examples = problem(torch.float32)
    callback = GameCallback(game := create(name))
    found = []
    for _ in range(2):
        module = Classifier(copy.deepcopy(model), game)
        runner = trainer(tmp_path, callback, epochs=1)
        runner.fit(module, loader(game, examples))
        found.append(weights(module.model))
    assert torch.equal(found[0], found[1])
    steps = 4 * game.replays_per_batch
    assert game.state_dict()["clock"]["step"] == steps
    runner.fit_loop.max_epochs = 2
    runner.fit(module, loader(game, examples))
    assert game.state_dict()["clock"]["step"] == 2 * steps


@pytest.mark.parametrize("before", ["smart", None])
def test_takes_over_the_step_alone_from_another_run(before: str | None, tmp_path: Path) -> None:
    model, examples = problem()
    game = create(before or "plain")
    first = trainer(tmp_path, *([GameCallback(game)] if before else []), epochs=1)
    first.fit(Classifier(model, game), loader(game, examples))
    first.save_checkpoint(path := tmp_path / "first.ckpt")
    module = Classifier(model, create("salt"))
    with pytest.warns(UserWarning, match="'salt' begins at step 4"):
        fit(tmp_path, module, loader(module.game, examples), path=path)
    assert module.game.state_dict() == {"clock": {"step": 8}}


# --------------------------------------------------------------------------------------------------
# Two processes


class Dealt(Descending):
    """Its examples are dealt out in turn, and in order."""

    def __init__(self, model: nn.Module, game: Game, examples: list[Example], size: int, k: int = 1) -> None:
        super().__init__(model, game, numbered=True)
        self.examples, self.size, self.k = examples, size, k

    def train_dataloader(self) -> ReplayedLoader:
        runner = self.trainer
        sampler = DistributedSampler(cast(Any, self.examples), runner.world_size, runner.global_rank, shuffle=False)
        return loader(self.game, self.examples, self.size, sampler=sampler, accumulate=self.k)


PAIR = {"strategy": "ddp_fork", "devices": 2}


@pytest.mark.parametrize("name", ["salt", "smart", "freeat"])
def test_two_processes_are_one(name: str, tmp_path: Path) -> None:
    """With accumulation."""
    model, examples = problem()
    alone = Dealt(copy.deepcopy(model), create(name), examples, ROWS)
    expected = fit(tmp_path, alone, None) - weights(model)
    shared = Dealt(copy.deepcopy(model), create(name), examples, 2, k=2)
    found = fit(tmp_path, shared, None, accumulate_grad_batches=2, **PAIR) - weights(model)
    assert error(found, expected) < 1e-10


class Sharded(Dealt):
    """Cut up by FSDP2."""

    def configure_model(self) -> None:
        assert self.device_mesh is not None
        shard(self.model, mesh=self.device_mesh["data_parallel"])


def one_of_two(rank: int, folder: Path, port: int, name: str) -> None:
    os.environ |= {"LOCAL_RANK": str(rank), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    model, examples = problem()
    module = Sharded(model, create(name), examples, ROWS // 2)
    runner = trainer(folder, GameCallback(module.game), strategy=ModelParallelStrategy(2, 1), devices=2)
    runner.fit(module)
    whole = flat(cast(Any, p).full_tensor() for p in module.model.parameters())
    torch.save(whole, folder / f"{rank}.pt")


@pytest.mark.parametrize("name", ["salt", "smart"])
def test_two_processes_with_shards_are_one(name: str, tmp_path: Path) -> None:
    model, examples = problem()
    alone = Dealt(copy.deepcopy(model), create(name), examples, ROWS)
    expected = fit(tmp_path, alone, None) - weights(model)
    arguments = (tmp_path, find_free_network_port(), name)
    multiprocessing.start_processes(one_of_two, arguments, nprocs=2, start_method="fork")
    assert error(torch.load(tmp_path / "0.pt").detach() - weights(model), expected) < 1e-10


def test_two_processes_resume_to_the_last_bit(tmp_path: Path) -> None:
    """Each from its own δ."""
    model, examples = problem(torch.float32)
    module = Dealt(model, create("freeat"), examples, 2)
    expected = fit(tmp_path, module, None, Save(), **PAIR)
    saved = torch.load(tmp_path / "0.ckpt", weights_only=True)["callbacks"]["GameCallback"]["states"]
    assert len(saved) == 2 and not same(*saved)

    other = Dealt(problem(torch.float32, seed=1)[0], create("freeat"), examples, 2)
    assert torch.equal(fit(tmp_path, other, None, path=tmp_path / "0.ckpt", **PAIR), expected)
    with pytest.warns(UserWarning, match="by 2 processes, each with a state of its own, and these are 1"):
        fit(tmp_path, other, None, path=tmp_path / "0.ckpt")


def test_replays_survive_the_sampler_that_lightning_puts_in(tmp_path: Path) -> None:
    class Look(pl.Callback):
        def on_train_start(self, trainer: Any, module: Any) -> None:
            data = trainer.train_dataloader
            assert isinstance(data.sampler, DistributedSampler)
            assert (data.replays, data.accumulate, len(data)) == (3, 2, 6)

    model, examples = problem()
    module = Classifier(model, create("freeat"))
    data = loader(module.game, examples, 2, accumulate=2, shuffle=True)
    fit(tmp_path, module, data, Look(), accumulate_grad_batches=2, **PAIR)


# --------------------------------------------------------------------------------------------------
# The library's other name


class Twin(pytorch_lightning.LightningModule):
    """The classifier again."""

    def __init__(self, model: nn.Module, game: Game) -> None:
        super().__init__()
        self.model, self.game = model, game

    def training_step(self, batch: Example, batch_idx: int) -> Tensor:
        return self.game(self.model, batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=1e-2)


@pytest.mark.filterwarnings("ignore::lightning_fabric.utilities.warnings.PossibleUserWarning")
def test_pytorch_lightning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, examples = problem(torch.float32)
    module = Classifier(copy.deepcopy(model), create("smart"))
    expected = fit(tmp_path, module, loader(module.game, examples), Save())
    monkeypatch.setattr(pl, "Trainer", pytorch_lightning.Trainer)
    twin = cast(Any, Twin(copy.deepcopy(model), create("smart")))
    assert torch.equal(fit(tmp_path, twin, loader(twin.game, examples), path=tmp_path / "0.ckpt"), expected)
    assert "game/divergence" in twin.trainer.callback_metrics


# --------------------------------------------------------------------------------------------------
# What is told and logged


def test_logs_means_and_settings(tmp_path: Path) -> None:
    """Of each window of two steps of two micro-batches."""

    class First(CSVLogger):
        """Keeps what it is told first, as TensorBoard does."""

        said: Any = None

        def log_hyperparams(self, params: Any = None) -> None:
            self.said = self.said or params

    model, examples = problem()
    module, watch, logger = Classifier(model, create("salt", weight=0.5)), Watch(), First(tmp_path)
    module.save_hyperparameters({"depth": 2})
    data = DataLoader(examples, batch_size=1)
    fit(tmp_path, module, data, watch, epochs=1, logger=logger, log_every_n_steps=2, accumulate_grad_batches=2)
    with (Path(logger.log_dir) / "metrics.csv").open() as file:
        logged = list(csv.DictReader(file))
    assert [figures["step"] for figures in watch.figures] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [int(row["step"]) for row in logged] == [1, 3]
    for row, window in zip(logged, (watch.figures[:4], watch.figures[4:]), strict=True):
        for name in ("task_loss", "divergence", "final_norm", "guarded"):
            mean = sum(figures[name] for figures in window) / 4
            assert float(row[f"game/{name}"]) == pytest.approx(mean, rel=1e-5)
    assert logger.said == {"depth": 2, "game": {"method": "salt", **module.game.settings}}


def test_asks_the_device_for_figures_only_when_logging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    model, examples = problem()
    module = Classifier(model, create("vat"))
    monkeypatch.setattr(pl.LightningModule, "log_dict", lambda *_, **__: asked.append(1))
    fit(tmp_path, module, DataLoader(examples, batch_size=1), epochs=1, log_every_n_steps=4)
    assert len(asked) == 2


def test_tells_the_length_of_the_training(tmp_path: Path) -> None:
    told: list[int] = []
    model, examples = problem()
    module = Classifier(model, create("plain"))
    module.game.plan = told.append  # type: ignore[method-assign]
    fit(tmp_path, module, DataLoader(examples, batch_size=1), epochs=4, accumulate_grad_batches=2, max_steps=11)
    assert told == [11]
    endless = (batch for batch in DataLoader(examples, batch_size=1))  # of a length that Lightning does not know
    fit(tmp_path, module, endless, epochs=1)
    assert told == [11]


# --------------------------------------------------------------------------------------------------
# Refusals


@pytest.mark.parametrize(
    ("strategy", "sentence"),
    [
        (type("DeepSpeedStrategy", (SingleDeviceStrategy,), {})("cpu"), "DeepSpeedStrategy cannot run"),
        (FSDPStrategy(), r"FSDPStrategy \(FSDP1\) has no second derivative"),
        (DDPStrategy(static_graph=True), "static_graph=False"),
    ],
)
def test_refuses_strategies(strategy: Any, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = trainer(tmp_path, callback := GameCallback(create("salt")))
    monkeypatch.setattr(pl.Trainer, "strategy", strategy)  # some of them ask for a GPU before they are refused
    with pytest.raises(SettingError, match=sentence):
        callback.setup(runner, Classifier(nn.Linear(1, 1), callback.game), "fit")


def test_refuses_what_is_not_played(tmp_path: Path) -> None:
    model, examples = problem()
    module = Classifier(model.eval(), create("salt"))  # as from_pretrained leaves it
    with pytest.warns(UserWarning), pytest.raises(ModelError, match=r"call self\.model\.train\(\)"):
        fit(tmp_path, module, DataLoader(examples, batch_size=2))
    with pytest.raises(SettingError, match="give it the module's game"):
        GameCallback(cast(Any, "salt"))
    with pytest.raises(SettingError, match="add one to its callbacks"):
        trainer(tmp_path).fit(Classifier(model, create("salt"), numbered=True), DataLoader(examples, batch_size=2))


@pytest.mark.parametrize(
    ("name", "data", "k"),
    [
        ("freeat", {}, 1),
        ("freeat", {"replays": 2}, 1),
        ("freeat", {"replays": 3}, 2),
        ("salt", {"replays": 3}, 1),
    ],
)
def test_refuses_a_loader_that_does_not_replay(name: str, data: Any, k: int, tmp_path: Path) -> None:
    model, examples = problem()
    module = Classifier(model, create(name))
    made = (ReplayedLoader if data else DataLoader)(cast(Any, examples), **data)
    with pytest.raises(SettingError, match=rf"method '{name}' plays each batch \d times.*accumulate={k}\)"):
        fit(tmp_path, module, {"a": made}, accumulate_grad_batches=k)  # type: ignore[arg-type]


def test_says_how_to_install_lightning(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "stackelberg.adapters.lightning"
    for missing in [module for module in sys.modules if module.partition(".")[0] == "lightning"]:
        monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match=r"pip install 'stackelberg\[lightning\]'"):
        importlib.import_module(name)


# --------------------------------------------------------------------------------------------------
# The example and the loader


def test_example(capsys: pytest.CaptureFixture[str]) -> None:
    with torch.random.fork_rng():
        runpy.run_path(str(EXAMPLES / "lightning_module.py"))
    learns(capsys.readouterr().out)


@pytest.mark.parametrize(("accumulate", "order"), [(1, "001122"), (2, "01012"), (3, "012012")])
def test_replays_a_steps_batches_together(accumulate: int, order: str) -> None:
    data = ReplayedLoader(list(range(3)), batch_size=1, replays=2, accumulate=accumulate)
    for _ in range(2):
        assert "".join(str(int(batch)) for batch in data) == order
    assert len(data) == len(order)
