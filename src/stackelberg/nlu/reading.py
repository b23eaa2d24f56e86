"""From the rows of a table to examples of a task: texts that are texts, and labels that the task has."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from stackelberg.errors import DataError, nearest
from stackelberg.nlu.examples import Examples
from stackelberg.nlu.table import Table
from stackelberg.nlu.task import Columns, NluTask

MANY_CLASSES = 100  # more, and half as many as rows: not classes


def read_examples(table: Table, task: NluTask, columns: Columns | None = None, *, labelled: bool = True) -> Examples:
    """The examples in a table.

    Args:
        table: as read from a file.
        task: what they are examples of.
        columns: which columns to read, where they are not the task's.
        labelled: whether there must be labels; otherwise they are read if the column is there and filled.
    """
    columns = columns or task.columns
    for name in (columns.text, columns.pair):
        if name is not None:
            table.index(name)
    if labelled and columns.label is not None:
        table.index(columns.label)
    has_labels = columns.label is not None and columns.label in table.columns
    if has_labels and not labelled and all(map(_is_blank, table.column(columns.label or ""))):
        has_labels = False
    if has_labels and task.no_label is not None:
        index = table.index(columns.label or "")
        table = table.where(lambda row: row[index] != task.no_label)
    if not table.rows:
        raise DataError(f"{table.path} has no rows that can be used: {table.skipped} were left out")
    return Examples(
        texts=_texts(table, columns.text),
        pairs=None if columns.pair is None else _texts(table, columns.pair),
        targets=_targets(table, columns.label or "", task) if has_labels else None,
        ids=None if columns.id is None else tuple(map(str, table.column(columns.id))),
        sources=(str(table.path),),
        skipped=table.skipped,
    )


def with_found_labels(task: NluTask, table: Table) -> NluTask:
    """The task with the classes that are in a table, which is the training split's."""
    name = task.columns.label or ""
    found: dict[str, None] = {}
    for row, value in enumerate(table.column(name)):
        found[_label(value, table, row, name)] = None
    if len(found) < 2:
        raise DataError(f"{table.path} has one class only, {next(iter(found))!r}, in its column {name!r}; give two")
    if len(found) > MANY_CLASSES and len(found) > len(table.rows) / 2:
        raise DataError(
            f"{table.path} has {len(found)} different values in {len(table.rows)} rows of its column {name!r}; "
            "if they are scores, say kind='score'"
        )
    return replace(task, labels=sorted_labels(found))


def sorted_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Numbers in order of size, names in alphabetical order."""
    names = list(labels)
    try:
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    except ValueError:
        return tuple(sorted(names))


def _texts(table: Table, name: str) -> tuple[str, ...]:
    values = table.column(name)
    for row, value in enumerate(values):
        if not isinstance(value, str):
            raise DataError(f"{table.place(row)}: {name!r} is {value!r} where a text is needed")
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            # JSON can spell half a character, and no tokenizer takes one
            raise DataError(f"{table.place(row)}: {name!r} has half of a surrogate pair in it, which is no character")
    return tuple(values)


def _targets(table: Table, name: str, task: NluTask) -> tuple[int, ...] | tuple[float, ...]:
    values = table.column(name)
    if task.kind == "score":
        return tuple(_score(value, table, row, name, task) for row, value in enumerate(values))
    index = task.label_index()
    return tuple(_class(value, table, row, name, task, index) for row, value in enumerate(values))


def _class(value: Any, table: Table, row: int, name: str, task: NluTask, index: dict[str, int]) -> int:
    label = _label(value, table, row, name)
    if label not in index:
        raise DataError(
            f"{table.place(row)}: label {label!r} is not one of {task.title}'s, "
            f"which are {_listed(task)}{nearest(label, index)}"
        )
    return index[label]


def _label(value: Any, table: Table, row: int, name: str) -> str:
    if _is_blank(value):
        raise DataError(f"{table.place(row)}: no label in column {name!r}; give one, or remove the row")
    if isinstance(value, bool):
        return str(value).lower()  # as JSON spells it
    if not isinstance(value, str | int | float):
        raise DataError(f"{table.place(row)}: {name!r} is {value!r} where a label is needed")
    return str(value).strip()


def _score(value: Any, table: Table, row: int, name: str, task: NluTask) -> float:
    label = _label(value, table, row, name)
    try:
        score = float(label)
    except ValueError:
        raise DataError(
            f"{table.place(row)}: {label!r} in column {name!r} is not a number, and {task.title} has scores"
        ) from None
    if not math.isfinite(score):
        raise DataError(f"{table.place(row)}: {label!r} in column {name!r} is not a finite number; repair the row")
    if task.bounds is not None and not task.bounds[0] <= score <= task.bounds[1]:
        least, greatest = task.bounds
        raise DataError(
            f"{table.place(row)}: the score {label} is outside {task.title}'s range, {least:g} to {greatest:g}"
        )
    return score


def _is_blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _listed(task: NluTask, most: int = 12) -> str:
    ways: Sequence[Sequence[str]] = (task.labels, *task.spellings)
    spelled = " or ".join(", ".join(way[:most]) + (", …" if len(way) > most else "") for way in ways)
    return spelled
