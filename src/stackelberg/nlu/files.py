"""A user's own files: CSV, TSV or JSON Lines with a text, perhaps a second one, and a label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from stackelberg.errors import DataError
from stackelberg.nlu.examples import Examples, TaskData
from stackelberg.nlu.reading import read_examples, with_found_labels
from stackelberg.nlu.table import read_table
from stackelberg.nlu.task import Columns, Kind, NluTask

METRICS: Mapping[Kind, tuple[str, ...]] = {"classes": ("accuracy",), "score": ("pearson", "spearman")}


def load_files(
    files: Mapping[str, Path | str],
    *,
    text: str = "text",
    pair: str | None = None,
    label: str = "label",
    kind: Kind = "classes",
    labels: Sequence[str] | None = None,
    metrics: Sequence[str] | None = None,
    name: str | None = None,
) -> TaskData:
    """A task made of files, one a split. Splits whose name begins with `test` need no labels.

    Args:
        files: `{"train": "a.csv", "dev": "b.csv"}`; the endings say how they are read.
        text: the column of the first text.
        pair: the column of the second text, if there is one.
        label: the column of the class or score.
        kind: `classes` or `score`.
        labels: the classes, in the order of the model's outputs; those of the training file when None.
        metrics: what to report; accuracy, or both correlations, when None.
        name: of the task; the folder's when None.
    """
    if not files:
        raise DataError('no files were given; give at least {"train": "train.csv"}')
    paths = {split: Path(path) for split, path in files.items()}
    first = next(iter(paths.values()))
    name = name or first.resolve().parent.name or first.stem
    task = NluTask(
        name=name,
        title=name,
        kind=kind,
        columns=Columns(text, pair, label),
        metrics=tuple(metrics or METRICS[kind]),
        labels=_given(labels),
        evaluation=tuple(split for split in paths if split.startswith("dev")) or (next(reversed(paths)),),
    )
    tables = {split: read_table(path) for split, path in paths.items()}
    if kind == "classes" and not task.labels:
        if "train" not in tables:
            raise DataError(f"the classes of {name} are not known: give labels=…, or a train file to find them in")
        tables["train"].index(text)  # a file read in the wrong way lacks this one too, and it is the first to look for
        task = with_found_labels(task, tables["train"])
    return TaskData(
        task,
        {split: read_examples(table, task, labelled=not split.startswith("test")) for split, table in tables.items()},
    )


def read_file(path: Path | str, task: NluTask, *, columns: Columns | None = None) -> Examples:
    """Rows of one file to predict on: labels are read if they are there.

    Args:
        path: the file; its ending says how it is read.
        task: what the rows are examples of.
        columns: the file's, where they are not the task's.
    """
    task = replace(task, no_label=None)  # no row may be left out: predictions go beside the file's rows
    return read_examples(read_table(Path(path)), task, columns, labelled=False)


def _given(labels: Sequence[str] | None) -> tuple[str, ...]:
    names = tuple(str(label) for label in labels or ())
    if labels is not None and len(set(names)) < 2:
        raise DataError(f"labels={list(names)} must name at least two classes")
    if len(set(names)) < len(names):
        raise DataError(f"labels={list(names)} names a class twice")
    return names
