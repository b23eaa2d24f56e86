"""Whatever is wrong with an invocation: exit code 2, one sentence on standard error, soon, and never a traceback."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import random
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from types import FrameType

import pytest

import tiny_runs
import tiny_translation
from malformed import Case, Spoilt, cases, commands
from stackelberg import cli
from stackelberg.nlu.run import Run
from stackelberg.nmt.model import load_model
from stackelberg.nmt.run import TranslationRun
from stackelberg.runs import folder as folder_of

gc.freeze()  # as in test_run.py
LIMIT = 10  # seconds that an invocation may take, on a busy machine
LONGEST = 1500  # letters of a sentence


class TooLong(BaseException):
    """An invocation worked on."""


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> Spoilt:
    home = tmp_path_factory.mktemp("spoilt")
    run = Run.train(tiny_runs.recipe(), home / "run", quiet=True, tensorboard=False)
    return Spoilt(home, run.folder, untrained(home / "translation"))


def untrained(folder: Path) -> Path:
    """A run of translation that looks finished: training one takes longer than fifty refusals."""
    codec = tiny_translation.synthetic(folder.parent, pairs=40).codec
    folder.mkdir()
    folder_of.begin(folder, tiny_translation.recipe(folder.parent), {})
    load_model("tiny", codec).save_pretrained(folder / "model")
    codec.save(folder / "model")
    (folder / folder_of.RESULT).write_text(json.dumps({"dev/sacrebleu": 0.0}))
    assert TranslationRun.open(folder).translator
    return folder


def test_every_command_is_covered(spoilt: Spoilt, tmp_path: Path) -> None:
    names = {each.words for each in commands()}
    assert len(names) >= 12 and {("train",), ("translate",)} <= names
    drawn = cases(spoilt, tmp_path, 500, 0)
    assert {case.words[0] for case in drawn} == {words[0] for words in names}
    assert len({case.wrong for case in drawn}) > 250
    assert [case.words for case in drawn] == [case.words for case in cases(spoilt, tmp_path, 500, 0)]


def test_fifty(spoilt: Spoilt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused(cases(spoilt, tmp_path / "out", 50, seed=0))


@pytest.mark.soak
def test_five_hundred(spoilt: Spoilt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused(cases(spoilt, tmp_path / "out", 500, seed=1))


def test_in_processes_of_their_own(spoilt: Spoilt, tmp_path: Path) -> None:
    """The console script, which imports what it needs itself."""
    draw = random.Random(0)
    for case in draw.sample(cases(spoilt, tmp_path / "out", 60, seed=2), 3):
        words = [sys.executable, "-m", "stackelberg", *case.words]
        done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, timeout=60)
        assert (done.returncode, fault(done.stderr)) == (2, ""), f"{case}\n{done.stderr}"


def refused(these: list[Case]) -> None:
    faults = []
    for case in these:
        code, told, seconds = said(case)
        wrong = "" if code == 2 else f"exit code {code}; "
        wrong += fault(told) + (f"; {seconds:.0f} s" if seconds > LIMIT else "")
        if wrong:
            faults.append(f"{case}\n    {wrong}\n    {told[-600:].strip()}")
    assert not faults, f"{len(faults)} of {len(these)}:\n" + "\n".join(faults)


def fault(told: str) -> str:
    """What standard error is, other than one sentence, before which a command may have said what it begins with."""
    *before, sentence = told.splitlines() or [""]
    if not sentence.startswith("error: ") or not told.endswith("\n"):
        return "no sentence"
    if len(before) > 1 or any("rror" in line for line in before):
        return f"{len(before)} lines before the sentence"
    return f"{len(sentence)} letters" if len(sentence) > LONGEST else ""


def said(case: Case) -> tuple[object, str, float]:
    """What the console script does: exit code, standard error, seconds."""
    err, begun = io.StringIO(), perf_counter()
    argv, sys.argv = sys.argv, ["stackelberg", *case.words]
    try:
        with limited(), warnings.catch_warnings(), contextlib.redirect_stderr(err):
            warnings.simplefilter("default")
            with contextlib.redirect_stdout(io.StringIO()):
                cli.main()
        code: object = "none: main returned"
    except SystemExit as ended:
        code = ended.code
    except (Exception, TooLong) as error:
        code = f"none: {type(error).__name__}: {error}"
    finally:
        sys.argv = argv
    return code, err.getvalue(), perf_counter() - begun


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Whatever takes twice as long as it may is stopped."""

    def stop(which: int, frame: FrameType | None) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(2 * LIMIT)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
