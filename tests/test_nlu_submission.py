"""The zip that the GLUE server takes, and what it would not take."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stackelberg.nlu import SubmissionError, check_submission, find_task, submission_problems, write_submission
from stackelberg.nlu import submission as module

# as published: https://gluebenchmark.com/tasks
ROWS = {
    "CoLA": 1063,
    "SST-2": 1821,
    "MRPC": 1725,
    "QQP": 390965,
    "STS-B": 1379,
    "MNLI-m": 9796,
    "MNLI-mm": 9847,
    "QNLI": 5463,
    "RTE": 3000,
    "WNLI": 146,
    "AX": 1104,
}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test sets of three rows, so that a test need not write QQP's 390,965."""
    monkeypatch.setattr(module, "FILES", {name: replace(file, rows=3) for name, file in module.FILES.items()})


def everything(rows: int = 3) -> dict[str, list[float]]:
    return {name: [0, 1, 1][:rows] if name != "STS-B" else [-0.2, 2.71828, 6.0][:rows] for name in ROWS}


def test_the_official_test_sets() -> None:
    assert {name: file.rows for name, file in module.FILES.items()} == ROWS
    for file in module.FILES.values():
        task = find_task(file.task)
        assert len(file.spelling) == len(task.labels)
        assert set(file.spelling) <= set(task.label_index()) and (file.constant in file.spelling or not file.spelling)
        assert [task.label_index()[label] for label in file.spelling] == list(range(len(file.spelling)))


def test_all_eleven_files_as_the_server_wants_them(tmp_path: Path) -> None:
    """At full size, from arrays as a model gives them."""
    random = np.random.default_rng(0)
    predictions = {
        name: random.integers(0, len(file.spelling), file.rows) if file.spelling else random.normal(2.5, 2, file.rows)
        for name, file in module.FILES.items()
    }
    written = write_submission(tmp_path / "glue.zip", predictions)
    assert written.filled == () and set(written.predicted) == set(ROWS)
    with zipfile.ZipFile(tmp_path / "glue.zip") as archive:
        assert sorted(archive.namelist()) == sorted(f"{name}.tsv" for name in ROWS)
        rte = archive.read("RTE.tsv").decode().split("\n")
        scores = [float(line.split("\t")[1]) for line in archive.read("STS-B.tsv").decode().splitlines()[1:]]
    assert rte[0] == "index\tprediction" and rte[-1] == "" and len(rte) == 3002
    labels = ("entailment", "not_entailment")
    assert rte[1:-1] == [f"{index}\t{labels[label]}" for index, label in enumerate(predictions["RTE"])]
    assert min(scores) == 0.0 and max(scores) == 5.0
    assert np.abs(np.array(scores) - np.clip(predictions["STS-B"], 0, 5)).max() <= 0.0005


def test_the_same_predictions_are_the_same_file(short: None, tmp_path: Path) -> None:
    for name in ("a.zip", "b.zip"):
        write_submission(tmp_path / name, everything())
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.read("STS-B.tsv") == b"index\tprediction\n0\t0.000\n1\t2.718\n2\t5.000\n"
        assert archive.read("CoLA.tsv") == b"index\tprediction\n0\t0\n1\t1\n2\t1\n"
        assert archive.read("AX.tsv") == b"index\tprediction\n0\tentailment\n1\tneutral\n2\tneutral\n"


def test_missing_tasks_are_refused_or_filled_by_name(short: None, tmp_path: Path) -> None:
    path = tmp_path / "one.zip"
    with pytest.raises(SubmissionError, match=r"no predictions for CoLA, .*WNLI, AX.*missing='majority'"):
        write_submission(path, {"RTE": [0, 1, 1]})
    assert not path.exists()
    written = write_submission(path, {"RTE": [0, 1, 1]}, missing="majority")
    assert written.predicted == ("RTE",) and set(written.filled) == set(ROWS) - {"RTE"}
    check_submission(path)
    with zipfile.ZipFile(path) as archive:
        assert archive.read("QQP.tsv") == b"index\tprediction\n0\t0\n1\t0\n2\t0\n"
        assert archive.read("RTE.tsv").count(b"not_entailment") == 2


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("RTE", [0, 1], r"RTE has 2 predictions and its official test set has 3 rows"),
        ("RTE", [0, 1, 2], r"RTE, row 2: the prediction is 2 .* 0 to 1 for entailment, not_entailment"),
        ("RTE", [0, 0.5, 1], r"RTE, row 1: the prediction is 0\.5"),
        ("RTE", ["entailment"] * 3, r"RTE, row 0: the prediction is 'entailment' where the index"),
        ("RTE", [0, float("nan"), 1], r"RTE, row 1"),
        ("STS-B", [1.0, float("nan"), 1.0], r"STS-B, row 1: the prediction is nan"),
        ("MNLI", [0, 1, 1], r"no file 'MNLI', .*did you mean 'MNLI-m'"),
    ],
)
def test_wrong_predictions_are_refused(short: None, tmp_path: Path, name: str, values: list[float], words: str) -> None:
    with pytest.raises(SubmissionError, match=words):
        write_submission(tmp_path / "x.zip", {**everything(), name: values})
    assert not (tmp_path / "x.zip").exists()


def test_an_unknown_way_to_fill_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SubmissionError, match="refuse or majority"):
        write_submission(tmp_path / "x.zip", {}, missing="zeros")  # type: ignore[arg-type]


Edit = Callable[[dict[str, bytes]], object]


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda files: files.pop("AX.tsv"), ["AX.tsv missing"]),
        (lambda files: files.update({"README.md": b""}), ["README.md not wanted"]),
        (lambda files: files.update({"glue/RTE.tsv": files.pop("RTE.tsv")}), ["RTE.tsv missing", "in no folder"]),
        (lambda files: files.update({"QNLIv2.tsv": files.pop("QNLI.tsv")}), ["QNLI.tsv missing", "QNLIv2.tsv"]),
        (lambda files: files.update({"RTE.tsv": b"0\tentailment\n"}), ["RTE.tsv begins with '0\\tentailment'"]),
        (lambda files: files.update({"RTE.tsv": b"index,prediction\n"}), ["header 'index\\tprediction'"]),
        (lambda files: files.update({"RTE.tsv": b"\xff\xfe"}), ["RTE.tsv is not UTF-8"]),
        (
            lambda files: files.update({"RTE.tsv": files["RTE.tsv"] + b"3\tentailment\n"}),
            ["RTE.tsv has 4 rows where the test set has 3"],
        ),
        (
            lambda files: files.update(
                {"RTE.tsv": b"index\tprediction\n1\tentailment\n0\tentailment\n2\tentailment\n"}
            ),
            ["RTE.tsv, line 2: index '1' where 0 is next", "line 3: index '0'"],
        ),
        (
            lambda files: files.update({"RTE.tsv": files["RTE.tsv"].replace(b"0\tentailment", b"0\t1")}),
            ["line 2: prediction '1' where the server takes entailment, not_entailment"],
        ),
        (
            lambda files: files.update({"RTE.tsv": files["RTE.tsv"].replace(b"\n", b"\r\n")}),
            ["RTE.tsv begins with 'index\\tprediction\\r'"],
        ),
        (
            lambda files: files.update({"STS-B.tsv": files["STS-B.tsv"].replace(b"5.000", b"5.001")}),
            ["STS-B.tsv, line 4: prediction '5.001' where the server takes a number from 0 to 5"],
        ),
        (
            lambda files: files.update({"STS-B.tsv": files["STS-B.tsv"].replace(b"5.000", b"nan")}),
            ["prediction 'nan'"],
        ),
        (
            lambda files: files.update({"CoLA.tsv": files["CoLA.tsv"].replace(b"0\t0", b"0\t0\t0")}),
            ["CoLA.tsv, line 2: 3 fields where there should be 2"],
        ),
    ],
)
def test_an_existing_zip_is_validated(short: None, tmp_path: Path, edit: Edit, words: list[str]) -> None:
    path = tmp_path / "glue.zip"
    write_submission(path, everything())
    assert submission_problems(path) == []
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    edit(files)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    problems = "; ".join(submission_problems(path))
    assert [word for word in words if word not in problems] == [], problems
    with pytest.raises(SubmissionError, match="is not what the GLUE server takes"):
        check_submission(path)


def test_files_that_are_no_zip(tmp_path: Path) -> None:
    (tmp_path / "text.zip").write_text("index\tprediction\n")
    assert "cannot be read as a zip" in submission_problems(tmp_path / "text.zip")[0]
    assert "text.zip" in submission_problems(tmp_path / "none.zip")[0]


def test_a_file_that_is_wrong_throughout_says_so_briefly(short: None, tmp_path: Path) -> None:
    path = tmp_path / "glue.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("RTE.tsv", "index\tprediction\n" + "x\ty\n" * 500)
    problems = submission_problems(path)
    assert "and 495 more lines of RTE.tsv" in problems and len(problems) < 10
