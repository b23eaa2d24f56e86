"""Tasks in a local folder, in the layouts that they are published in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from stackelberg.decoding import listing
from stackelberg.errors import DataError
from stackelberg.nlu.examples import Examples, TaskData, join
from stackelberg.nlu.reading import read_examples
from stackelberg.nlu.table import Table, read_table
from stackelberg.nlu.task import Columns, NluTask, Part

MRPC_IDS = ("#1 ID", "#2 ID")
ORIGINAL = "original_"


def load_folder(task: NluTask, folder: Path, splits: Sequence[str] | None = None) -> TaskData:
    """The splits of a task that a folder has.

    Args:
        task: from the catalogue.
        folder: the task's own, or the one that holds a folder for each task.
        splits: those that must be there, and no others; whatever is there when None.
    """
    home = _home(task, folder)
    found = {split: _read_split(task, split, home) for split in splits or task.splits if split in task.splits}
    absent = [split for split in splits or () if found.get(split) is None]
    if absent:
        raise DataError(
            f"{task.title} has no {', no '.join(absent)} in {home}, where it would be {_sought(task, absent)}; "
            f"{listing(home)}"
        )
    there = {split: examples for split, examples in found.items() if examples is not None}
    if not there:
        raise DataError(
            f"{home} holds neither a folder {' or '.join(task.folders)} nor a file of {task.title} "
            f"({_sought(task, task.splits)}); {listing(home)}"
        )
    return TaskData(task, there)


def _home(task: NluTask, folder: Path) -> Path:
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; {listing(folder.parent)}")
    names = {name.lower() for name in task.folders}
    inside = [entry for entry in sorted(folder.iterdir()) if entry.is_dir() and entry.name.lower() in names]
    return inside[0] if inside else folder


def _read_split(task: NluTask, split: str, home: Path) -> Examples | None:
    for parts in task.splits[split]:
        paths = [_find(part, home) for part in parts]
        here = [path for path in paths if path is not None]
        if here and len(here) < len(parts):
            lacking = [part.names[0] for part, path in zip(parts, paths, strict=True) if path is None]
            raise DataError(f"{home} has {here[0].name} but not {', '.join(lacking)}, and {split} is made of both")
        if here:
            return join([_read_part(task, split, part, path) for part, path in zip(parts, here, strict=True)])
    return None


def _find(part: Part, home: Path) -> Path | None:
    for name in part.names:
        found = sorted(home.glob(name))
        if len(found) > 1:
            raise DataError(
                f"{home} has {', '.join(path.name for path in found)}, and any could be {name!r}; "
                "leave one of them there"
            )
        if found:
            return found[0]
    return None


def _read_part(task: NluTask, split: str, part: Part, path: Path) -> Examples:
    columns = part.columns or task.columns
    table = read_table(path, header=part.header, key=part.key, broken_rows=task.broken_rows)
    if part.rows == "originals":
        table = _originals(table, columns)
    elif part.rows != "all":
        table = _by_dev_ids(table, part.rows == "dev_ids")
    return read_examples(table, task, columns, labelled=not split.startswith("test"))


def _originals(table: Table, columns: Columns) -> Table:
    """AdvGLUE's rows before the attack; the rows that were written from nothing are left out."""
    texts = [name for name in (columns.text, columns.pair) if name is not None]
    before = {name: table.columns.index(ORIGINAL + name) for name in texts if ORIGINAL + name in table.columns}
    table = table.where(lambda row: any(row[index] is not None for index in before.values()))
    rows = []
    for row in table.rows:
        restored = list(row)
        for name, index in before.items():
            if row[index] is not None:
                restored[table.index(name)] = row[index]
        rows.append(restored)
    return replace(table, rows=rows)


def _by_dev_ids(table: Table, listed: bool) -> Table:
    """Microsoft publishes train and dev as one file; the pairs of ids that GLUE took for dev are in another."""
    path = table.path.parent / "dev_ids.tsv"
    if not path.exists():
        raise DataError(
            f"{table.path} holds train and dev together, and {path.name}, which tells them apart, is not beside it; "
            "get GLUE's mrpc_dev_ids, or use GLUE's train.tsv and dev.tsv"
        )
    ids = {tuple(row) for row in read_table(path, header=MRPC_IDS).rows}
    first, second = (table.index(name) for name in MRPC_IDS)
    chosen = table.where(lambda row: ((row[first], row[second]) in ids) is listed)
    return replace(chosen, skipped=table.skipped)  # the others are in the other split, not lost


def _sought(task: NluTask, splits: Iterable[str]) -> str:
    ways = [parts for split in splits for parts in task.splits.get(split, ())]
    return " or ".join(dict.fromkeys(name for parts in ways for part in parts for name in part.names)) or "nowhere"
