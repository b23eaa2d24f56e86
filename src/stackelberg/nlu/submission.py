"""The zip that the GLUE server accepts: eleven files, each `index` and `prediction` for every row of a test set."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stackelberg.decoding import listing
from stackelberg.errors import SubmissionError, nearest
from stackelberg.nlu.catalogue import find_task
from stackelberg.nlu.task import NluTask
from stackelberg.storage import write_whole

HEADER = "index\tprediction"
BEGINNING = (1980, 1, 1, 0, 0, 0)  # the zip format's first day, so that equal predictions are an equal file
MOST_PROBLEMS = 5  # listed of one kind in one file
NLI = ("entailment", "neutral", "contradiction")
BINARY = ("0", "1")


@dataclass(frozen=True, slots=True)
class TestFile:
    """One file of a submission.

    Args:
        name: the server's, without `.tsv`.
        task: in the catalogue.
        split: of that task.
        rows: of the official test set.
        spelling: how the server writes the task's labels, in the task's order; none for a score.
        constant: written for every row where a task is filled in: the most frequent label of the training set, or its
            mean score. RTE, QNLI and MNLI are all but balanced; AX has no training set.
    """

    __test__ = False  # not a test, whatever pytest makes of its name

    name: str
    task: str
    split: str
    rows: int
    spelling: tuple[str, ...]
    constant: str


FILES: Mapping[str, TestFile] = {
    file.name: file
    for file in (
        TestFile("CoLA", "cola", "test", 1063, BINARY, "1"),
        TestFile("SST-2", "sst-2", "test", 1821, BINARY, "1"),
        TestFile("MRPC", "mrpc", "test", 1725, BINARY, "1"),
        TestFile("QQP", "qqp", "test", 390965, BINARY, "0"),
        TestFile("STS-B", "sts-b", "test", 1379, (), "2.701"),
        TestFile("MNLI-m", "mnli", "test_matched", 9796, NLI, "contradiction"),
        TestFile("MNLI-mm", "mnli", "test_mismatched", 9847, NLI, "contradiction"),
        TestFile("QNLI", "qnli", "test", 5463, ("entailment", "not_entailment"), "entailment"),
        TestFile("RTE", "rte", "test", 3000, ("entailment", "not_entailment"), "entailment"),
        TestFile("WNLI", "wnli", "test", 146, BINARY, "0"),
        TestFile("AX", "ax", "test", 1104, NLI, "entailment"),
    )
}


@dataclass(frozen=True, slots=True)
class Submission:
    """What was written.

    Args:
        path: the zip.
        predicted: files with a model's predictions.
        filled: files with one constant throughout, because there were no predictions and filling was asked for.
    """

    path: Path
    predicted: tuple[str, ...]
    filled: tuple[str, ...]


def write_submission(
    path: Path | str,
    predictions: Mapping[str, Sequence[float]],
    *,
    missing: Literal["refuse", "majority"] = "refuse",
) -> Submission:
    """Write the zip, and check it as the server would.

    Args:
        path: of the zip.
        predictions: for each file, by the server's name (`MNLI-mm`), the class of every row, as an index into the
            task's labels, or its score, in the order of the test set. Scores are clipped to 0–5.
        missing: what to do about files without predictions: `refuse`, or write the most frequent label of the training
            set (`majority`) in every row, which is how a single task gets a score from the server. Those files are
            named in what is returned.
    """
    path = Path(path)
    if missing not in ("refuse", "majority"):
        raise SubmissionError(f"missing={missing!r} is not known; choose refuse or majority")
    for name in predictions:
        if name not in FILES:
            raise SubmissionError(f"the server takes no file {name!r}, only {', '.join(FILES)}{nearest(name, FILES)}")
    absent = tuple(name for name in FILES if name not in predictions)
    if absent and missing == "refuse":
        raise SubmissionError(
            f"there are no predictions for {', '.join(absent)}, and the server takes all eleven files or none; "
            "predict them, or say missing='majority' to fill them with one constant label"
        )
    contents = {
        name: [file.constant] * file.rows if name in absent else _written(file, predictions[name])
        for name, file in FILES.items()
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, values in contents.items():
            lines = [HEADER, *(f"{index}\t{value}" for index, value in enumerate(values)), ""]
            entry = zipfile.ZipInfo(f"{name}.tsv", BEGINNING)
            archive.writestr(entry, "\n".join(lines), zipfile.ZIP_DEFLATED)
    write_whole(path, buffer.getvalue())
    check_submission(path)
    return Submission(path, tuple(name for name in FILES if name in predictions), absent)


def check_submission(path: Path | str) -> None:
    """Refuse a zip that the server would not take, with everything that is wrong with it."""
    problems = submission_problems(path)
    if problems:
        raise SubmissionError(f"{path} is not what the GLUE server takes: {'; '.join(problems)}")


def submission_problems(path: Path | str) -> list[str]:
    """All that is wrong with a zip: names, headers, numbers of rows, their order, values. Nothing: it is valid."""
    path = Path(path)
    if not path.is_file():
        return [f"it is not there ({listing(path.parent)})"]
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            problems = _name_problems(names)
            for name in FILES:
                if names.count(f"{name}.tsv") == 1:
                    problems += _file_problems(FILES[name], archive.read(f"{name}.tsv"))
    except (zipfile.BadZipFile, RuntimeError, OSError) as error:  # a RuntimeError is a password
        return [f"it cannot be read as a zip ({error})"]
    return problems


def _written(file: TestFile, values: Sequence[float]) -> list[str]:
    task: NluTask = find_task(file.task)
    if len(values) != file.rows:
        raise SubmissionError(
            f"{file.name} has {len(values):,} predictions and its official test set has {file.rows:,} rows; "
            f"predict on all of {task.title}'s {file.split} split, in its order"
        )
    if task.kind == "score":
        return [_score(file, row, float(value)) for row, value in enumerate(values)]
    return [_label(file, row, value) for row, value in enumerate(values)]


def _score(file: TestFile, row: int, value: float) -> str:
    if not math.isfinite(value):
        raise SubmissionError(f"{file.name}, row {row}: the prediction is {value}; a score must be finite")
    return f"{min(max(value, 0.0), 5.0):.3f}"


def _label(file: TestFile, row: int, value: float) -> str:
    try:
        index = int(value)
    except (OverflowError, TypeError, ValueError):
        index = -1
    if index != value or not 0 <= index < len(file.spelling):
        raise SubmissionError(
            f"{file.name}, row {row}: the prediction is {value!r} where the index of a class is needed, "
            f"0 to {len(file.spelling) - 1} for {', '.join(find_task(file.task).labels)}"
        )
    return file.spelling[index]


def _name_problems(names: Sequence[str]) -> list[str]:
    wanted = [f"{name}.tsv" for name in FILES]
    problems = []
    absent = [name for name in wanted if name not in names]
    if absent:
        problems.append(f"{', '.join(absent)} missing")
    twice = [name for name in wanted if names.count(name) > 1]
    if twice:
        problems.append(f"{', '.join(twice)} there twice")
    others = sorted(set(names) - set(wanted))
    if others:
        folders = " (files must be at the top of the zip, in no folder)" if any("/" in name for name in others) else ""
        problems.append(f"{', '.join(others[:MOST_PROBLEMS])} not wanted{folders}")
    return problems


def _file_problems(file: TestFile, content: bytes) -> list[str]:
    name = f"{file.name}.tsv"
    try:
        lines = content.decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError:
        return [f"{name} is not UTF-8"]
    if lines[0] != HEADER:
        return [f"{name} begins with {lines[0][:40]!r} where the header {HEADER!r} is needed"]
    problems = []
    if len(lines) - 1 != file.rows:
        problems.append(f"{name} has {len(lines) - 1:,} rows where the test set has {file.rows:,}")
    wrong = []
    for row, line in enumerate(lines[1:]):
        fields = line.split("\t")
        if len(fields) != 2:
            wrong.append(f"{name}, line {row + 2}: {len(fields)} fields where there should be 2")
        elif fields[0] != str(row):
            wrong.append(f"{name}, line {row + 2}: index {fields[0]!r} where {row} is next")
        elif not _is_allowed(file, fields[1]):
            allowed = ", ".join(file.spelling) or "a number from 0 to 5"
            wrong.append(f"{name}, line {row + 2}: prediction {fields[1]!r} where the server takes {allowed}")
    more = [f"and {len(wrong) - MOST_PROBLEMS} more lines of {name}"] if len(wrong) > MOST_PROBLEMS else []
    return [*problems, *wrong[:MOST_PROBLEMS], *more]


def _is_allowed(file: TestFile, value: str) -> bool:
    if file.spelling:
        return value in file.spelling
    try:
        return 0 <= float(value) <= 5
    except ValueError:
        return False
