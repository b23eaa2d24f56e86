"""The demo: its letters, its folder, and the command from the first call to the last."""

from __future__ import annotations

import io
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoModel, AutoTokenizer

import tiny_demo
import tiny_runs
from stackelberg import cli
from stackelberg.demo import encoder, folder, plan
from stackelberg.demo.letters import DESKS, NEVER_SEEN, WRONG, Letter, judged, learnt
from stackelberg.errors import ModelError, RunError, SettingError
from stackelberg.studies import running
from stackelberg.studies.store import Store

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """What the console script does with these words: exit code, standard output, standard error."""

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["stackelberg", "demo", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


# --------------------------------------------------------------------------------------------------
# Letters


def desks_in(letter: Letter) -> Counter[str]:
    """How many things of each desk a letter names."""
    words = letter.text.split()
    return Counter(desk for desk, things in DESKS.items() for word in words if word in things)


def test_letters_are_the_same_every_time() -> None:
    assert learnt(50, 0) == learnt(50, 0) != learnt(50, 1)
    assert judged(50, 0) == judged(50, 0) != judged(50, 1)


def test_the_desk_is_that_of_the_complaint() -> None:
    """A letter names things of its own desk, and with praise one of another's."""
    for letter in judged(500, 0):
        praises = " , but " in letter.text or " , though " in letter.text
        others = sum((desks_in(letter) - Counter({letter.desk: 2})).values())
        assert others <= praises, letter


def test_some_words_are_for_the_judged_rows_alone() -> None:
    kept_back = {word for things in DESKS.values() for word in things[-NEVER_SEEN:]}
    assert not kept_back & {word for letter in learnt(600, 0) for word in letter.text.split()}
    assert kept_back <= {word for letter in judged(1000, 0) for word in letter.text.split()}


def test_labels_are_wrong_as_often_as_is_said() -> None:
    """In training alone: a letter that names nothing of its desk has another's label, or a misspelt thing."""

    def odd(letters: list[Letter]) -> float:
        return sum(not desks_in(each)[each.desk] for each in letters) / len(letters)

    assert 0.8 * WRONG < odd(learnt(2000, 0)) < 1.1 * WRONG
    assert odd(judged(2000, 0)) < 0.05


# --------------------------------------------------------------------------------------------------
# The folder


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_demo.make_small(monkeypatch)


@pytest.fixture
def home(small: None, tmp_path: Path) -> Path:
    """A demo that was begun."""
    folder.begin(tmp_path / "demo")
    return tmp_path / "demo"


def test_what_is_begun_is_not_begun_again(home: Path) -> None:
    times = {path: path.stat().st_mtime_ns for path in home.rglob("*") if path.is_file()}
    assert {path.name for path in times} >= {"train.tsv", "dev.tsv", "config.json", "tokenizer.json"}
    folder.begin(home)
    assert times == {path: path.stat().st_mtime_ns for path in home.rglob("*") if path.is_file()}


def test_what_a_kill_left_is_finished(home: Path) -> None:
    """After the first of the files, and in the middle of it."""
    shutil.rmtree(home / "model")
    (home / folder.DEV).unlink()
    folder.begin(home)
    assert (home / folder.DEV).is_file() and (home / "model" / "config.json").is_file()
    half = home.parent / "half"
    half.mkdir()
    (half / ".unfinished-model").mkdir()
    folder.begin(half)
    assert sorted(path.name for path in half.iterdir()) == ["letters", "model"]


def test_nothing_of_anybody_elses_is_touched(home: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "thesis.tex").write_text("all of it")
    with pytest.raises(RunError, match="holds no demo; give another --out"):
        folder.begin(theirs)
    assert [path.name for path in theirs.iterdir()] == ["thesis.tex"]
    with pytest.raises(RunError, match="is a file where a folder is needed"):
        folder.begin(theirs / "thesis.tex")
    with (home / folder.TRAIN).open("a") as file:
        file.write("my own letter\trooms\n")
    with pytest.raises(RunError, match="is not as this version's demo writes it"):
        folder.begin(home)


def test_the_encoder_is_as_it_says(home: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(home / "model")
    model = AutoModel.from_pretrained(home / "model")
    vectors = model.get_input_embeddings().weight.detach()
    assert not vectors[tokenizer.pad_token_id].any()
    assert abs(float(vectors[1:].norm(dim=1).mean()) - encoder.LENGTH) < 0.1
    words = (home / folder.TRAIN).read_text().splitlines()[1].split("\t")[0].split()
    assert tokenizer.tokenize(" ".join(words)) == words
    assert tokenizer("nevertheless").input_ids == [2, tokenizer.unk_token_id, 3]
    again = home.parent / "again"
    encoder.write_encoder(again, [line.split("\t")[0] for line in (home / folder.TRAIN).read_text().splitlines()[1:]])
    for name in ("model.safetensors", "tokenizer.json"):  # the same wherever it is made
        assert (again / name).read_bytes() == (home / "model" / name).read_bytes()


# --------------------------------------------------------------------------------------------------
# The study


def test_every_method_plays_with_every_seed(home: Path) -> None:
    study = plan.study_of(home, 2)
    cells = study.cells()
    assert {(cell.method, cell.seed) for cell in cells} == {
        (method, seed) for method in ("plain", "vat", "smart", "freelb", "salt") for seed in (0, 1)
    }
    assert {cell.recipe.model for cell in cells} == {str(home.resolve() / "model")}
    assert "best of six settings" in study.remarks[-1]
    fine_tuning = plan.study_of(home, 1, tiny_runs.model())
    assert {cell.recipe.model for cell in fine_tuning.cells()} == {tiny_runs.model()}
    assert not any(cell.recipe.settings for cell in fine_tuning.cells())
    assert not any("best of six" in said for said in fine_tuning.remarks) and "default" in fine_tuning.remarks[-1]


def test_a_model_may_come_in_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(tiny_runs.model(), tmp_path / "packed_encoder" / "weights")
    (tmp_path / "packed_encoder" / "__init__.py").touch()
    (tmp_path / "packed_encoder" / "weights" / "1_Pooling").mkdir()
    (tmp_path / "packed_encoder" / "weights" / "1_Pooling" / "config.json").write_text("{}")
    monkeypatch.syspath_prepend(tmp_path)
    assert plan.pretrained("packed_encoder") == tmp_path / "packed_encoder" / "weights"


@pytest.mark.parametrize("said", ["no/such/folder", "no_such_package", "json", "__main__"])
def test_a_model_that_is_none(said: str) -> None:
    with pytest.raises(ModelError, match=f"--model '{said}' is no folder, and no installed package with a model in it"):
        plan.pretrained(said)


@pytest.mark.parametrize("seeds", [-1, 0, 1001, 10**12])
def test_seeds_are_counted(home: Path, seeds: int) -> None:
    with pytest.raises(SettingError, match=f"--seeds {seeds} should be from 1 to 1,000"):
        plan.study_of(home, seeds)


# --------------------------------------------------------------------------------------------------
# The command


def test_from_nothing_to_a_report_and_on(
    command: Command, small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table, the report and what to try next; the second call trains nothing and prints the same."""
    out = tmp_path / "my demo"
    code, said, told = command("--out", out, "--seeds", 1)
    assert code == 0, told
    for method in ("plain", "vat", "smart", "freelb", "salt"):
        assert f"\n {method} " in said and f"{method}, seed 0, finished" in told
    assert "ECE" in said and "× plain" in said and "made up by a program" in said
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Letters to a hotel (made up)" in page and page.count("<svg") >= 5
    assert (out / "picture.png").read_bytes().startswith(b"\x89PNG")
    code, again, told = command("--out", out, "--seeds", 1, "--quiet")
    assert (code, again, told) == (0, said, "")
    assert {each.attempts for each in Store(out / "study").results()} == {1}

    tried = [shlex.split(line) for line in said.splitlines() if line.startswith("  stackelberg ")]
    assert [words[1] for words in tried] == ["predict", "doctor", "train"]
    monkeypatch.setattr(sys, "argv", tried[0])  # as it was pasted, though there is a space in the folder's name
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code


def test_it_can_be_stopped(command: Command, small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(running, "run", stopped)
        code, said, told = command("--out", tmp_path / "demo", "--seeds", 1)
    assert (code, said) == (130, "")
    assert told == "stopped; the same command goes on from here\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--seeds", "0"), "--seeds 0 should be from 1 to 1,000"),
        (("--jobs", "0"), "--jobs 0 should be 1 or more"),
        (("--model", "nothing/here"), "--model 'nothing/here' is no folder"),
        (("--out", "a-file"), "a-file is a file where a folder is needed"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    words: tuple[str, ...], sentence: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a-file").touch()
    code, said, told = command(*words)
    assert (code, said) == (2, "") and told.count("\n") == 1
    assert told.startswith("error: ") and sentence in told
    assert [path.name for path in tmp_path.iterdir()] == ["a-file"]  # before anything is written


def test_a_missing_package_is_named_with_the_demos_extra(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    code, _, told = command()
    assert code == 2 and "needs jinja2, which is not installed: pip install 'stackelberg[demo]'" in told


def test_the_time_left_is_counted_down(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console
    from rich.progress import Progress

    from stackelberg.cli import demo as command

    monkeypatch.setattr(command, "monotonic", lambda: 1000.0)
    column = command.time_left()
    with Progress(column, console=Console(file=io.StringIO())) as bar:
        task = bar.add_task("", total=15)
        said = [str(column(bar.tasks[0]))]
        bar.update(task, until=1090.0)
        for now in (1000.0, 1030.0, 1100.0):
            monkeypatch.setattr(command, "monotonic", lambda now=now: now)
            said.append(str(column(bar.tasks[0])))
    assert said == ["", "about 1:30 left", "about 1:00 left", "about 0:00 left"]
