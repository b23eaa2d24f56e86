"""Runs: the same numbers whether a run was interrupted, killed, cut into micro-batches or dealt to two processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from stackelberg.cli import app
from stackelberg.errors import RunError, SettingError
from stackelberg.nmt.batches import tensors
from stackelberg.nmt.model import load_model
from stackelberg.nmt.plan import Plan
from stackelberg.nmt.processes import Processes
from stackelberg.nmt.run import TranslationRun
from stackelberg.nmt.significance import bootstrap
from stackelberg.nmt.stepping import Stepping
from stackelberg.nmt.training import Training, make_game
from stackelberg.nmt.weights import averaged
from stackelberg.runs.interruption import Interrupted
from tiny_translation import recipe, synthetic


def train(home: Path, name: str = "run", **changes: Any) -> TranslationRun:
    return TranslationRun.train(recipe(home, **changes), home / name, quiet=True, tensorboard=False)


def weights(run: TranslationRun) -> dict[str, torch.Tensor]:
    return load_file(run.model_folder / "model.safetensors")


def same(one: TranslationRun, other: TranslationRun) -> bool:
    ours, theirs = weights(one), weights(other)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def distance(one: TranslationRun, other: TranslationRun) -> float:
    """‖θ − θ′‖ / ‖θ‖."""
    ours, theirs = (torch.cat([x.flatten() for _, x in sorted(weights(run).items())]) for run in (one, other))
    return float((ours - theirs).norm() / ours.norm())


def interrupt(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Fail after a step, as a machine might."""
    own = Training._count

    def count(self: Training, done: Any) -> None:
        own(self, done)
        if self.progress.step == step:
            raise RuntimeError("the power went off")

    monkeypatch.setattr(Training, "_count", count)


def test_a_run_leaves_what_it_says(tmp_path: Path) -> None:
    run = train(tmp_path, average=2)
    names = {path.name for path in run.folder.iterdir()}
    assert names == {
        "corpus", "metrics.jsonl", "model", "recipe.yaml", "result.json", "translations", "versions.json",
    }  # fmt: skip
    assert {"test/tokenized_bleu", "test/sacrebleu", "test/chrf", "dev/loss", "steps", "tokens_per_second"} <= set(
        run.figures
    )
    assert run.scores("test")["sacrebleu"].signature.startswith("nrefs:1")
    assert len(run.translations("dev")) == 200 and (run.model_folder / "stackelberg.json").is_file()
    assert "pipeline_tag: translation" in (run.model_folder / "README.md").read_text()
    records = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records if "dev/bleu" in r] == [4, 8] and any("averaged/bleu" in r for r in records)
    again = train(tmp_path, average=2)  # is there already
    assert again.figures == run.figures and TranslationRun.open(run.folder).figures == run.figures
    with pytest.raises(RunError, match=r"holds a run of another recipe .*seed is 0 there and 1 here"):
        train(tmp_path, average=2, seed=1)
    with pytest.raises(RunError, match="is no run"):
        TranslationRun.open(tmp_path)


@pytest.mark.parametrize("method", ["plain", "salt", "freeat"])
def test_an_interrupted_run_goes_on_to_the_same_bits(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"method": method, "dropout": 0.1, "save_every": 3, "average": 2, "choose": "loss"}
    whole = train(tmp_path, "whole", **changes)
    with monkeypatch.context() as patched:
        interrupt(patched, 5)
        with pytest.raises(RuntimeError, match="power"):
            train(tmp_path, "cut", **changes)
    checkpoint = tmp_path / "cut" / "checkpoints" / "checkpoint-3"
    assert (checkpoint / "sealed.json").is_file()
    with pytest.raises(RunError, match="is not finished"):
        TranslationRun.open(tmp_path / "cut")
    cut = train(tmp_path, "cut", **changes)
    assert same(whole, cut) and cut.figures["test/chrf"] == whole.figures["test/chrf"]
    steps = [json.loads(line)["step"] for line in (cut.folder / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps)


def test_who_asks_a_run_to_stop_finds_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"dropout": 0.1, "average": 2}
    whole = train(tmp_path, "whole", **changes)
    own = Training._count

    def count(self: Training, done: Any) -> None:
        own(self, done)
        self.interruption.requested = self.progress.step == 6

    with monkeypatch.context() as patched:
        patched.setattr(Training, "_count", count)
        with pytest.raises(Interrupted):
            train(tmp_path, "cut", **changes)
    assert (tmp_path / "cut" / "checkpoints" / "checkpoint-6" / "sealed.json").is_file()
    assert same(whole, train(tmp_path, "cut", **changes))


def test_a_torn_checkpoint_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = train(tmp_path, "whole", dropout=0.1, save_every=2)
    with monkeypatch.context() as patched:
        interrupt(patched, 7)
        with pytest.raises(RuntimeError):
            train(tmp_path, "cut", dropout=0.1, save_every=2)
    home = tmp_path / "cut" / "checkpoints"
    (newest,) = home.glob("checkpoint-*")
    (newest / "optimizer.pt").write_bytes(b"torn")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        its = recipe(tmp_path, dropout=0.1, save_every=2)
        cut = TranslationRun.train(its, tmp_path / "cut", tensorboard=False)  # from the beginning
    assert "optimizer.pt has 4 bytes instead of" in capsys.readouterr().err
    assert same(whole, cut)


def test_a_killed_process_is_gone_on_with(tmp_path: Path) -> None:
    changes = {"dropout": 0.1, "save_every": 5, "max_steps": 40, "evaluate_every": 40}
    whole = train(tmp_path, "whole", **changes)
    (tmp_path / "recipe.yaml").write_text(recipe(tmp_path, **changes).to_yaml())
    command = [
        sys.executable,
        "-m",
        "stackelberg",
        "train",
        str(tmp_path / "recipe.yaml"),
        "--out",
        str(tmp_path / "cut"),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([*command, "--no-tensorboard", "-q"], env=environment, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not list((tmp_path / "cut" / "checkpoints").glob("checkpoint-*/sealed.json")):
        assert process.poll() is None, process.communicate()[1].decode()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "cut" / "result.json").exists()
    cut = train(tmp_path, "cut", **changes)
    assert same(whole, cut)


@pytest.mark.parametrize("method", ["plain", "salt"])
@pytest.mark.parametrize("reduction", ["tokens", "sentences"])
def test_micro_batches_are_one_batch(method: str, reduction: str, tmp_path: Path) -> None:
    settings = {"epsilon": 0.1, "reduction": reduction} if method == "salt" else {}
    prepared = synthetic(tmp_path)
    plan = Plan(prepared.cache, seed=0, batch_tokens=300, max_tokens=120, most=3)
    micro = next(m for m, _ in plan.steps() if len({batch.shape for batch in m}) > 1)
    rows = np.concatenate([batch.rows for batch in micro])
    long = max(b.shape.source for b in micro), max(b.shape.target for b in micro)
    moved = []
    for parts in ([(b.rows, b.shape.source, b.shape.target) for b in micro], [(rows, *long)]):
        torch.manual_seed(0)
        model = load_model("tiny", prepared.codec, dropout=0.0).train()
        game = make_game(recipe(tmp_path, method=method, settings=settings), model)
        stepping = Stepping(
            game, model, torch.optim.SGD(model.parameters(), lr=0.1), clip=0.0, precision="float32",
            processes=Processes(0, 1, torch.device("cpu")),
        )  # fmt: skip
        batches = [tensors(prepared.cache, *part, prepared.codec.tokenizer.pad_token_id) for part in parts]
        stepping(batches, [], sum(map(plan.target_tokens, micro)), len(rows))
        moved.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(moved[0], moved[1], rtol=0, atol=2e-6)


def test_two_processes_are_one(tmp_path: Path) -> None:
    changes = {
        "method": "salt", "settings": {"epsilon": 0.1}, "max_steps": 3, "evaluate_every": 3,
        "batch_tokens": 500, "dropout": 0.0, "save_every": 2,
    }  # fmt: skip
    alone = train(tmp_path, "alone", **changes)
    (tmp_path / "recipe.yaml").write_text(recipe(tmp_path, **changes).to_yaml())
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0",
        "-m", "stackelberg", "train", str(tmp_path / "recipe.yaml"), "--out", str(tmp_path / "two"), "-q",
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, "--no-tensorboard"], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    two = TranslationRun.open(tmp_path / "two")
    other = train(tmp_path, "other", **{**changes, "settings": {"epsilon": 0.1, "seed": 5}})
    # Adam's first steps make much of what rounding leaves; other noise than the whole step's would show
    assert 100 * distance(alone, two) < distance(alone, other)


def test_early_stopping_and_the_mean(tmp_path: Path) -> None:
    run = train(tmp_path, max_steps=30, evaluate_every=1, patience=2, learning_rate=1e-9, average=3, choose="bleu")
    assert run.figures["steps"] == 3 and run.figures["best_step"] == 1 and run.figures["averaged"] == 3


def test_the_mean_of_weights(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    for number in range(3):
        save_file({"w": torch.full((2,), float(number))}, tmp_path / f"{number}.safetensors")
    assert averaged([tmp_path / f"{number}.safetensors" for number in range(3)])["w"].tolist() == [1.0, 1.0]


def test_runs_are_compared_on_the_same_sentences(tmp_path: Path) -> None:
    first, second = train(tmp_path, "a"), train(tmp_path, "b", seed=1)
    found = bootstrap([first, second], samples=50)
    assert found[str(first.folder)].p is None and 0 <= (found[str(second.folder)].p or 0) <= 1
    assert found[str(first.folder)].score == pytest.approx(first.figures["test/tokenized_bleu"])


def test_a_run_goes_on_from_a_trained_model(tmp_path: Path) -> None:
    first = train(tmp_path, "first")
    second = train(tmp_path, "second", model=str(first.model_folder), dropout=None, max_steps=2, evaluate_every=2)
    assert len(second.translator.codec.tokenizer) == len(first.translator.codec.tokenizer)
    assert second.translator.codec.form.target == "bb"


def test_settings_that_do_not_go_with_the_model_are_told_first(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="max_length=1025, but tiny has 1024 positions"):
        train(tmp_path, max_length=1025, max_tokens=2000)
    with pytest.raises(SettingError, match="precision='float16' needs a GPU"):
        train(tmp_path, "half", precision="float16")
    with pytest.raises(SettingError, match="its languages are aa and bb"):
        train(tmp_path, "languages", source="en")


def test_the_command_trains_and_tells(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(recipe(tmp_path, max_steps=2, evaluate_every=2).to_yaml())
    out = str(tmp_path / "run")
    told = CliRunner().invoke(app, ["train", str(tmp_path / "recipe.yaml"), "--out", out, "--no-tensorboard", "-q"])
    assert told.exit_code == 0, told.exception
    assert "aa–bb, tiny: plain, seed 0" in told.stdout and "tok:none" in told.stdout
    said = CliRunner().invoke(app, ["train", str(tmp_path / "recipe.yaml"), "--out", out, "-q", "--json"])
    assert json.loads(said.stdout)["steps"] == 2


def test_the_made_up_language_is_learned(tmp_path: Path) -> None:
    changes = {"synthetic": 2000, "merges": 200, "batch_tokens": 600, "max_tokens": 640, "warmup": 50}
    run = train(tmp_path, max_steps=250, evaluate_every=250, beam=4, **changes)
    assert run.figures["test/tokenized_bleu"] > 60


@pytest.mark.soak
@pytest.mark.parametrize("method", ["plain", "salt"])
def test_the_tiny_recipe_learns_in_two_minutes(method: str, tmp_path: Path) -> None:
    from stackelberg.nmt.recipe import TranslationRecipe

    its = TranslationRecipe.load("nmt/tiny", method=method, cache=str(tmp_path / "cache"))
    begun = time.monotonic()
    run = TranslationRun.train(its, tmp_path / "run", quiet=True, tensorboard=False)
    assert run.figures["test/tokenized_bleu"] > 60
    assert time.monotonic() - begun < 120
