"""The commands train, evaluate, predict and submit, as they are typed."""

from __future__ import annotations

import gc
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tiny_runs
from stackelberg import cli
from stackelberg.nlu import submission
from stackelberg.nlu.run import Run

gc.freeze()  # as in test_run.py
Command = Callable[..., tuple[int, str, str]]
USUAL = ("--batch-size", "4", "--max-length", "16", "--max-steps", "2", "--no-tensorboard")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """What the console script does with these words: exit code, standard output, standard error."""

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["stackelberg", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def sst2(*more: object) -> tuple[object, ...]:
    return ("train", "sst-2", "--data", tiny_runs.data(), "--model", tiny_runs.model(), *USUAL, *more)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Run.train(tiny_runs.recipe(), tmp_path_factory.mktemp("run") / "done", quiet=True).folder


# --------------------------------------------------------------------------------------------------
# train


def test_a_task_by_one_command(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = command(*sst2("--method", "salt", "--set", "epsilon=0.5", "--set", "steps=2", "seed=7"))
    assert code == 0
    assert "SST-2, dev: salt, seed 7" in out and re.search(r"accuracy +\d+\.\d\d\n", out) and "10 bins of equal" in out
    assert "negative 50.0%" in err and "step 2/2" in err and "dev " in err and "left" in err
    (folder,) = (tmp_path / "runs").iterdir()
    run = Run.open(folder)
    assert folder.name == f"sst-2-salt-seed7-{run.recipe.key()[:8]}" and f"in runs/{folder.name}" in out
    assert run.recipe.settings == {"weight": 1.0, "epsilon": 0.5, "steps": 2} and run.recipe.weight_decay == 0.01
    again = command(*sst2("--method", "salt", "--set", "epsilon=0.5", "--set", "steps=2", "seed=7"))
    assert again == (0, out, "")  # nothing is trained twice


def test_files_of_ones_own_quietly_as_json(command: Command, tmp_path: Path) -> None:
    own = ("--train", tiny_runs.own_file(), "--text", "review", "--label", "verdict", "--model", tiny_runs.model())
    code, out, err = command("train", *own, *USUAL, "--method", "vat", "--quiet", "--json", "--out", tmp_path / "run")
    assert code == 0 and err == ""
    found = json.loads(out)
    assert found["folder"] == str(tmp_path / "run") and 0 <= found["accuracy"] <= 1 and found["steps"] == 2


def test_a_recipe_file_and_the_paper_form(command: Command, tmp_path: Path) -> None:
    code, _, err = command(*sst2("--form", "paper", "--out", tmp_path / "run"))
    assert code == 0 and "warning: the paper does not say the weight α" in err
    recipe = Run.open(tmp_path / "run").recipe
    assert recipe.form == "paper" and recipe.betas == (0.9, 0.98) and recipe.settings["steps"] == 2
    assert json.loads((tmp_path / "run" / "model" / "config.json").read_text())["classifier_dropout"] == 0.1
    path = tmp_path / "mine.yaml"
    path.write_text(tiny_runs.recipe(method="plain").to_yaml())
    code, out, _ = command("train", path, "--seed", 3, "--out", tmp_path / "other", "--quiet")
    assert code == 0 and "plain, seed 3" in out


WRONG: list[tuple[tuple[object, ...], str]] = [
    (("train", "rtee"), "did you mean 'rte'"),
    (("train", "rte", "glue/mrpc"), "'rte' and 'glue/mrpc' are two recipes"),
    (("train",), "nothing to train on"),
    (("train", "rte", "epoch=3"), "did you mean 'epochs'"),
    (("train", "rte", "--method", "slat"), "did you mean 'salt'"),
    (("train", "rte", "--set", "epsilon=0"), "epsilon=0 should be a number above 0"),
    (("train", "rte", "--set", "epsilon"), "should be key=value"),
    (("train", "rte", "--batch-size", "0"), "batch_size=0 should be"),
    (("train", "nowhere.yaml"), "nowhere.yaml is not there"),
    (("train", "sst-2", "--data", "/nowhere"), "/nowhere is not a folder"),
    (sst2("--model", "/nowhere"), "model='/nowhere' is not a folder"),
    (("train", "sts-b", *sst2()[2:], "--set", "divergence=kl"), "divergence='kl' compares distributions"),
    (("train", "--train", "no.csv"), "no.csv is not there"),
    (("evaluate", "/nowhere"), "/nowhere is no run"),
    (("predict", "/nowhere", "x.tsv"), "/nowhere is no run"),
    (("predict", "/nowhere", "x.tsv", "--out", "x.doc"), "name it .tsv or .jsonl"),
    (("submit", "/nowhere"), "/nowhere is no run"),
    (("submit", "/nowhere", "--out", "glue.tar"), "should end in .zip"),
    (("submit", "/nowhere", "--fill", "most"), "--fill='most' is not known"),
]


@pytest.mark.parametrize(("words", "sentence"), WRONG, ids=[sentence for _, sentence in WRONG])
def test_what_is_wrong_is_one_sentence(
    words: tuple[object, ...], sentence: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = command(*words)
    assert code == 2 and out == "" and sentence in err
    assert err.startswith("error: ") and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_another_recipe(command: Command, done: Path) -> None:
    code, _, err = command(*sst2("--out", done))
    assert code == 2 and "holds a run of another recipe" in err and "give another --out" in err


def test_a_missing_package_is_the_command_that_installs_it(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    code, _, err = command("train", "rte")
    assert code == 2 and err.count("\n") == 1 and "pip install 'stackelberg[nlu]'" in err


def test_ctrl_c_says_how_to_go_on_and_that_works(tmp_path: Path) -> None:
    """A process of its own, its terminal's Ctrl-C, and the command that it prints."""
    words = [str(word) for word in (*sst2(), "--max-steps", 4000, "--out", tmp_path / "a run")]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    seen = []
    with subprocess.Popen(
        [sys.executable, "-m", "stackelberg", *words], stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        for line in process.stderr or ():
            seen.append(line)
            if line.startswith("salt on"):
                time.sleep(1.5)
                process.send_signal(signal.SIGINT)
    assert process.returncode == 130, seen
    assert "stopping after this step" in "".join(seen)
    goes_on = seen[-1].partition("go on with: ")[2]
    assert "Traceback" not in "".join(seen) and "--no-tensorboard" in goes_on
    assert len(list((tmp_path / "a run" / "checkpoints").glob("checkpoint-*"))) == 1
    again = shlex.split(goes_on)
    assert again[:2] == ["stackelberg", "train"] and Path(again[2]) == tmp_path / "a run" / "recipe.yaml"
    assert again[3:5] == ["--out", str(tmp_path / "a run")]


def test_ctrl_c_before_and_after_training_begins(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(recipe: Any, folder: Path, **flags: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "train", stopped)
    code, _, err = command(*sst2("--out", tmp_path / "run"))
    assert code == 130 and "nothing was trained yet" in err
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text("task: rte\n")
    code, _, err = command(*sst2("--out", tmp_path / "run", "--keep-checkpoints"))
    assert code == 130 and "--no-tensorboard --keep-checkpoints" in err


# --------------------------------------------------------------------------------------------------
# evaluate, predict, submit


def test_evaluate(command: Command, done: Path) -> None:
    code, out, _ = command("evaluate", done)
    assert code == 0 and "SST-2, dev: 9 rows" in out and "ece" in out
    code, out, _ = command("evaluate", done, "--split", "train", "--split", "dev", "--json")
    found = json.loads(out)
    assert found["train"]["rows"] == 24
    assert found["dev"]["accuracy"] == Run.open(done).figures["accuracy"]
    code, out, _ = command("evaluate", done, "--data", tiny_runs.data(), "--json")
    assert json.loads(out) == {"dev": found["dev"]}
    code, out, _ = command("evaluate", done, "--data", Path(tiny_runs.data(), "SST-2", "dev.tsv"), "--json")
    assert json.loads(out) == {"dev.tsv": found["dev"]}
    for words, sentence in (
        (("--split", "test"), "has no labels to evaluate on"),
        (("--split", "devv"), "did you mean 'dev'"),
        (("--data", Path(tiny_runs.data(), "SST-2", "test.tsv")), "has no labels to evaluate on"),
    ):
        code, _, err = command("evaluate", done, *words)
        assert code == 2 and sentence in err and err.count("\n") == 1


def test_predict(command: Command, done: Path, tmp_path: Path) -> None:
    texts = ["a film great", "dull dull", "the plot was awful, and so on"]
    csv, jsonl = tmp_path / "rows.csv", tmp_path / "rows.jsonl"
    csv.write_text("n,sentence\n" + "".join(f'{n},"{text}"\n' for n, text in enumerate(texts)))
    jsonl.write_text("".join(json.dumps({"words": text, "label": "none of ours"}) + "\n" for text in texts))
    code, out, err = command("predict", done, csv)
    lines = [line.split("\t") for line in out.rstrip("\n").split("\n")]
    assert code == 0 and err == "" and lines[0] == ["prediction", "p(negative)", "p(positive)"] and len(lines) == 4
    code, out, err = command("predict", done, jsonl, "--text", "words", "--out", tmp_path / "said.jsonl")
    said = [json.loads(line) for line in (tmp_path / "said.jsonl").read_text().splitlines()]
    assert code == 0 and out == "" and "3 predictions" in err
    for line, entry in zip(lines[1:], said, strict=True):
        assert entry["prediction"] == line[0] == max(entry["probabilities"], key=entry["probabilities"].get)
        assert list(entry["probabilities"].values()) == [float(value) for value in line[1:]]
    code, _, err = command("predict", done, jsonl)
    assert code == 2 and "has no column 'sentence'" in err
    code, _, err = command("predict", done, csv, "--pair", "n")
    assert code == 2 and "has one text a row" in err


def test_submit(command: Command, done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = {name: (5 if name in ("SST-2", "RTE", "STS-B") else 3) for name in submission.FILES}
    files = {name: submission.TestFile(**_changed(file, short[name])) for name, file in submission.FILES.items()}
    monkeypatch.setattr(submission, "FILES", files)  # test sets as short as ours
    stsb = Run.train(tiny_runs.recipe(task="sts-b"), tmp_path / "sts-b", quiet=True).folder
    out = tmp_path / "glue.zip"
    code, said, err = command("submit", done, stsb, "--out", out)
    assert code == 2 and "there is no run for CoLA, MRPC" in err and "--fill majority" in err and not out.exists()
    code, said, _ = command("submit", done, stsb, "--out", out, "--fill", "majority")
    assert code == 0 and "predicted SST-2, STS-B" in said and "throughout: CoLA, MRPC" in said
    with zipfile.ZipFile(out) as archive:
        lines = archive.read("SST-2.tsv").decode().split("\n")
        scores = archive.read("STS-B.tsv").decode().split("\n")
    found, _, _ = Run.open(done).probabilities("test")
    assert lines == ["index\tprediction", *(f"{n}\t{row.argmax()}" for n, row in enumerate(found)), ""]
    assert [re.fullmatch(r"\d\t\d\.\d{3}", line) is not None for line in scores[1:-1]] == [True] * 5
    code, _, err = command("submit", done, done, "--out", out, "--fill", "majority")
    assert code == 2 and "both predict SST-2" in err
    mnli = Run.train(tiny_runs.recipe(task="mnli"), tmp_path / "mnli", quiet=True).folder
    code, _, err = command("submit", mnli, "--out", out, "--fill", "majority")
    assert code == 2 and "no split 'test_matched'" in err
    own = tiny_runs.recipe(train=tiny_runs.own_file(), text="review", label="verdict")
    code, _, err = command("submit", Run.train(own, tmp_path / "own", quiet=True).folder, "--out", out)
    assert code == 2 and "no task of the GLUE server" in err


def _changed(file: submission.TestFile, rows: int) -> dict[str, Any]:
    names = ("name", "task", "split", "spelling", "constant")
    return {**{name: getattr(file, name) for name in names}, "rows": rows}
