"""Two processes in one run's folder: the second is told in a sentence, and a killed one is in nobody's way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tiny_runs
import tiny_translation
from stackelberg.errors import RunError
from stackelberg.nlu.run import Run
from stackelberg.nmt.run import TranslationRun
from stackelberg.runs import lock
from stackelberg.runs.lock import LOCK, held

HOLDER = """
import sys, time
from pathlib import Path
from stackelberg.runs.lock import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path: Path) -> subprocess.Popen[str]:
    """A process that holds `run`."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_the_second_process_is_told_and_a_killed_one_forgotten(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    try:
        told = rf"process {holder.pid} on .* is training in {folder}; wait for it"
        with pytest.raises(RunError, match=told):
            Run.train(tiny_runs.recipe(), folder, quiet=True, tensorboard=False)
        with pytest.raises(RunError, match=told):
            TranslationRun.train(tiny_translation.recipe(tmp_path), folder, quiet=True, tensorboard=False)
        assert [path.name for path in folder.iterdir()] == [LOCK]
    finally:
        holder.kill()
        holder.communicate()
    assert (folder / LOCK).is_file()  # which is nobody's now
    (folder / ".unfinished-x").write_text("half a rec")
    run = Run.train(tiny_runs.recipe(), folder, quiet=True, tensorboard=False)
    assert run.figures["steps"] == 2 and not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_a_finished_run_is_returned_whoever_holds_it(tmp_path: Path) -> None:
    first = Run.train(tiny_runs.recipe(), tmp_path / "run", quiet=True, tensorboard=False)
    with held(tmp_path / "run"):
        assert Run.train(tiny_runs.recipe(), tmp_path / "run").figures == first.figures


def test_a_run_that_another_process_finished_meanwhile_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Run.train(tiny_runs.recipe(), tmp_path / "run", quiet=True, tensorboard=False)
    answers = iter([False, True])  # not finished when it was first looked at, finished once the lock was had
    monkeypatch.setattr("stackelberg.nlu.run.is_finished", lambda *_: next(answers))
    before = (tmp_path / "run" / "model" / "config.json").stat().st_mtime_ns
    assert Run.train(tiny_runs.recipe(), tmp_path / "run", quiet=True).figures == first.figures
    assert (tmp_path / "run" / "model" / "config.json").stat().st_mtime_ns == before


def test_a_folder_that_was_made_in_vain_is_removed_and_others_are_kept(tmp_path: Path) -> None:
    for kept in (False, True):
        with pytest.raises(ValueError, match="no reason"), held(tmp_path / "run"):
            if kept:
                (tmp_path / "run" / "recipe.yaml").write_text("task: rte")
            raise ValueError("no reason")
        assert (tmp_path / "run").is_dir() is kept
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["recipe.yaml"]


def test_the_processes_of_one_job_do_not_refuse_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with held(tmp_path / "run"):
        with pytest.raises(RunError, match="is training in"), held(tmp_path / "run"):
            pass
        monkeypatch.setenv("RANK", "1")
        with held(tmp_path / "run"):
            pass
        assert (tmp_path / "run" / LOCK).is_file()


def test_a_lock_that_its_holder_removed_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, tries = lock.fcntl.flock, 0

    def flock(descriptor: int, how: int) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:  # the other process is done between opening and locking
            (tmp_path / "run" / LOCK).unlink()
        own(descriptor, how)

    monkeypatch.setattr(lock.fcntl, "flock", flock)
    with held(tmp_path / "run"):
        assert tries == 2 and (tmp_path / "run" / LOCK).read_text().startswith(f"process {os.getpid()} on ")


def test_where_there_are_no_locks_nothing_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(descriptor: int, how: int) -> None:
        raise OSError(95, "Operation not supported")

    with monkeypatch.context() as patched:
        patched.setattr(lock.fcntl, "flock", flock)
        with held(tmp_path / "run"), held(tmp_path / "run"):
            pass
    monkeypatch.setattr(lock, "fcntl", None)  # Windows
    with held(tmp_path / "run"), held(tmp_path / "run"):
        assert not (tmp_path / "run").exists()
