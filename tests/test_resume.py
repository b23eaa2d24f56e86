"""Runs that were killed go on from their last whole checkpoint, and end as if nothing had happened."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from stackelberg import SALT, AdversarialTrainer, SettingError, create
from stackelberg.adapters import checkpoints
from training import arguments, built, trained, weights

METHODS = ("plain", "smart", "freeat", "salt")
STEPS = 8
SETTINGS: dict[str, Any] = {
    "max_steps": STEPS,
    "optim": "adamw_torch",
    "learning_rate": 1e-3,
    "lr_scheduler_type": "linear",
    "save_strategy": "steps",
    "save_steps": 1,
    "save_total_limit": 2,
    "per_device_train_batch_size": 3,
    "gradient_accumulation_steps": 2,
}


def run(method: str, folder: Path) -> Tensor:
    """From the beginning or the last checkpoint to the end, with dropout; the weights."""
    model, rows = built(rows=18, dropout=0.1, dtype=torch.float32)
    trainer = AdversarialTrainer(model, arguments(folder, **SETTINGS), train_dataset=rows, game=create(method))
    trainer.train(resume_from_checkpoint=any(folder.glob("checkpoint-*")) or None)
    return weights(model)


def in_a_child(method: str, folder: Path, seconds: float | None) -> bool:
    """The run in a process of its own, killed after so long; whether it reached its end, in `folder`/end.pt."""

    def child() -> None:
        # What the test's own process has set up for its terminal is not the child's to use.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        warnings.simplefilter("ignore")
        torch.save(run(method, folder), folder / "end.pt")
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=child)  # which has torch imported already
    process.start()
    process.join(seconds)
    if process.is_alive():
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    assert process.exitcode in (0, -signal.SIGKILL), process.exitcode
    return process.exitcode == 0


def survives(method: str, folder: Path, kills: int) -> None:
    """Killed that often at random points, the run ends with the same bits."""
    began = time.perf_counter()
    assert in_a_child(method, folder / "whole", None)
    length = time.perf_counter() - began
    expected = torch.load(folder / "whole" / "end.pt", weights_only=True)
    killed, attempt = 0, 0
    while killed < kills:
        broken = folder / f"broken-{attempt}"
        attempt += 1
        broken.mkdir()
        while not (broken / "end.pt").exists():
            spare = killed < kills and not in_a_child(method, broken, random.uniform(0.02, length))
            killed += spare
            if killed >= kills and not (broken / "end.pt").exists():
                assert in_a_child(method, broken, None)
        assert torch.equal(torch.load(broken / "end.pt", weights_only=True), expected)
        shutil.rmtree(broken)


@pytest.fixture(autouse=True)
def folders(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()


@pytest.mark.parametrize("method", METHODS)
def test_killed_twice(method: str, tmp_path: Path) -> None:
    survives(method, tmp_path, kills=2)


@pytest.mark.soak
@pytest.mark.parametrize("method", METHODS)
def test_killed_twenty_times(method: str, tmp_path: Path) -> None:
    survives(method, tmp_path, kills=20)


# --------------------------------------------------------------------------------------------------
# Whole checkpoints and torn ones


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder with checkpoints 1, 2 and 3."""
    folder: Path = tmp_path_factory.mktemp("finished")
    model, rows = built(rows=12, dtype=torch.float32)
    trained(AdversarialTrainer, folder, model, rows, {"game": SALT()}, save_strategy="steps", save_steps=1)
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def tear(checkpoint: Path, how: str) -> str:
    """Spoil a checkpoint; what is said of it."""
    if how == "cut":
        (checkpoint / "optimizer.pt").write_bytes((checkpoint / "optimizer.pt").read_bytes()[:100])
        return "optimizer.pt has 100 bytes instead of"
    if how == "missing":
        (checkpoint / "model.safetensors").unlink()
        return "model.safetensors is missing"
    checkpoints.unseal(checkpoint)
    if how == "unfinished":
        (checkpoint / "trainer_state.json").unlink()
        return "it has no trainer_state.json"
    (checkpoint / "trainer_state.json").write_text('{"epoch": ')
    return "it holds a list that is not JSON"


@pytest.mark.parametrize("how", ["cut", "missing", "unfinished", "half a state"])
def test_a_torn_checkpoint_is_passed_over(how: str, folder: Path) -> None:
    said = tear(folder / "checkpoint-3", how)
    with pytest.warns(UserWarning, match="checkpoint-3 was not written to its end") as caught:
        assert checkpoints.last_whole(folder) == str(folder / "checkpoint-2")
    assert said in str(caught[0].message)
    with pytest.raises(SettingError, match=r"checkpoint-3: .*; resume from .*checkpoint-2$"):
        checkpoints.refuse_torn(folder / "checkpoint-3")


def test_training_goes_on_from_the_one_before(folder: Path) -> None:
    tear(folder / "checkpoint-3", "cut")
    model, rows = built(rows=12, dtype=torch.float32)
    trainer = AdversarialTrainer(model, arguments(folder, max_steps=4), train_dataset=rows, game=SALT())
    with pytest.warns(UserWarning, match="is passed over"):
        trainer.train(resume_from_checkpoint=True)
    assert [entry["step"] for entry in trainer.state.log_history if "loss" in entry] == [1, 2, 3, 4]
    assert trainer.game.clock.step == 3  # the fourth is not noticed before there is a fifth


def test_without_a_whole_checkpoint_the_run_begins_anew(folder: Path) -> None:
    for step in (1, 2, 3):
        tear(folder / f"checkpoint-{step}", "missing")
    with warnings.catch_warnings(record=True, action="always") as caught:
        assert checkpoints.last_whole(folder) is None
    said = [str(warning.message) for warning in caught]
    assert len(said) == 4 and "so the run begins anew" in said[-1]
    with pytest.raises(SettingError, match="leave resume_from_checkpoint out for a new run"):
        checkpoints.refuse_torn(folder / "checkpoint-2")


def test_where_there_is_nothing_to_resume(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="holds no checkpoint"):
        checkpoints.last_whole(tmp_path / "nowhere")
    with pytest.raises(SettingError, match="checkpoint-9: it is not there"):
        checkpoints.refuse_torn(tmp_path / "checkpoint-9")


def test_the_stock_trainers_checkpoint_is_whole_without_a_seal(folder: Path) -> None:
    """Its state is the last it writes. The game begins at its step."""
    (folder / "checkpoint-3" / "sealed.json").unlink()
    (folder / "checkpoint-3" / "game.pt").unlink()
    with warnings.catch_warnings(action="error"):
        assert checkpoints.last_whole(folder) == str(folder / "checkpoint-3")
    game = SALT()
    with pytest.warns(UserWarning, match="holds no state of a game; 'salt' begins at step 3"):
        checkpoints.restore(folder / "checkpoint-3" / "game.pt", game, 3)
    assert game.state_dict() == {"clock": {"step": 3}}


def test_another_methods_state_is_not_loaded(folder: Path) -> None:
    with pytest.warns(UserWarning, match="was written by method 'salt'; 'smart' begins at step 3"):
        checkpoints.restore(folder / "checkpoint-3" / "game.pt", smart := create("smart"), 3)
    assert smart.state_dict() == {"clock": {"step": 3}, "anchor": {}}


def test_older_checkpoints_go_after_the_new_one_is_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that there is a whole one at every moment."""
    folder = tmp_path / "run"
    seal, left = checkpoints.seal, []

    def watched(checkpoint: Path) -> None:
        left.append(sorted(path.name for path in folder.glob("checkpoint-*")))
        seal(checkpoint)

    monkeypatch.setattr(checkpoints, "seal", watched)
    model, rows = built(rows=12, dtype=torch.float32)
    settings = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 1}
    trained(AdversarialTrainer, folder, model, rows, {"game": SALT()}, max_steps=2, **settings)
    assert left == [["checkpoint-1"], ["checkpoint-1", "checkpoint-2"]]
    assert [path.name for path in folder.glob("checkpoint-*")] == ["checkpoint-2"]
    assert checkpoints.flaw(folder / "checkpoint-2") is None


def test_checkpoints_hold_no_pickles_of_ours(folder: Path) -> None:
    """The game's state loads with weights_only, and what is said of it is JSON."""
    saved = torch.load(folder / "checkpoint-3" / "game.pt", weights_only=True)
    assert saved == {"method": "salt", "state": {"clock": {"step": 3}}}
    assert json.loads((folder / "checkpoint-3" / "stackelberg.json").read_text())["method"] == "salt"
