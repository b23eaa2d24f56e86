r"""Tables in files: TSV without quoting (as GLUE's), CSV with RFC 4180's, JSON Lines, and lists in JSON.

Lines end at \n and at nothing else. Python's `splitlines` also ends them at form feeds, U+2028, the NEL that is in MR
and SUBJ, and more; and `csv` merges rows where a quotation mark is left open, as it is in hundreds of GLUE's rows.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stackelberg.decoding import decode
from stackelberg.errors import DataError, nearest

Row = Sequence[Any]  # strings, or what JSON holds
ENDINGS = (".tsv", ".txt", ".csv", ".jsonl", ".json")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows as a file has them.

    Args:
        path: the file.
        columns: names, in the file's order.
        rows: a value for each column; None where a JSON object does not have it.
        numbers: where each row begins in the file.
        unit: what `numbers` counts: lines, or entries of a JSON list.
        skipped: rows left out.
    """

    path: Path
    columns: tuple[str, ...]
    rows: Sequence[Row]
    numbers: Sequence[int]
    unit: str = "line"
    skipped: int = 0

    def place(self, row: int) -> str:
        """Where a row is, to begin an error's sentence with."""
        return f"{self.path}, {self.unit} {self.numbers[row]}"

    def column(self, name: str) -> list[Any]:
        """All values of one column."""
        index = self.index(name)
        return [row[index] for row in self.rows]

    def index(self, name: str) -> int:
        """Which column has that name."""
        if name not in self.columns:
            raise DataError(f"{self.path} has no column {name!r}; {self._columns()}{nearest(name, self.columns)}")
        return self.columns.index(name)

    def where(self, chosen: Callable[[Row], bool]) -> Table:
        """The rows that are chosen, the others counted as skipped."""
        kept = [number for number, row in enumerate(self.rows) if chosen(row)]
        return replace(
            self,
            rows=[self.rows[number] for number in kept],
            numbers=[self.numbers[number] for number in kept],
            skipped=self.skipped + len(self.rows) - len(kept),
        )

    def _columns(self) -> str:
        listed = f"its columns are {', '.join(map(repr, self.columns))}"
        if len(self.columns) == 1 and (marks := [mark for mark in "\t,;|" if mark in self.columns[0]]):
            listed += f" (one column with {marks[0]!r} in its name: .csv is read with commas, .tsv and .txt with tabs)"
        return listed


def read_table(
    path: Path, *, header: Sequence[str] | None = None, key: str | None = None, broken_rows: bool = False
) -> Table:
    """Read a file by what its name ends in: .tsv or .txt, .csv, .jsonl, .json.

    Args:
        path: the file.
        header: the columns' names, of a TSV or CSV file whose first line is already a row.
        key: the entry of a JSON object that the rows are in.
        broken_rows: leave out, and count, rows with a wrong number of fields.
    """
    ending = path.suffix.lower()
    if path.is_file() and ending not in ENDINGS:
        raise DataError(f"{path} ends in {ending or 'nothing'!r}; name it by what it is: {', '.join(ENDINGS)}")
    text = decode(path)
    if ending == ".json":
        return _read_json(path, text, key)
    if ending == ".jsonl":
        return _read_json_lines(path, text)
    records = _csv_records(path, text) if ending == ".csv" else _tsv_records(text)
    return _with_header(path, records, text, header, broken_rows)


def _tsv_records(text: str) -> Iterator[tuple[int, list[str]]]:
    """A line is a row and a tab ends a field, whatever else is in it."""
    lines = text.removesuffix("\n").split("\n")
    if lines[0].endswith("\r"):  # a file from Windows: elsewhere a \r is part of the text
        lines = [line.removesuffix("\r") for line in lines]
    several = "\t" in lines[0]  # in a file of one column an empty line is an empty text
    while several and not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines, 1):
        yield number, line.split("\t")


def _csv_records(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    lines = (line + "\n" for line in text.rstrip("\r\n").split("\n"))
    reader = csv.reader(lines, strict=True)
    number = 1
    with _long_fields():
        try:
            for fields in reader:
                yield number, fields
                number = reader.line_num + 1
        except csv.Error as error:
            raise DataError(
                f"{path}, line {number}: the row that begins here is not CSV ({error}); put quotes around a field "
                "with a comma, a quote or a line break in it, and double the quotes inside"
            ) from error


def _with_header(
    path: Path,
    records: Iterator[tuple[int, list[str]]],
    text: str,
    header: Sequence[str] | None,
    broken_rows: bool,
) -> Table:
    columns = tuple(header or next(records)[1])
    if not any(columns):
        raise DataError(f"{path}, line 1: an empty line where the names of the columns should be; remove it")
    _refuse_twins(f"{path}, line 1", columns)
    rows, numbers, skipped = [], [], 0
    for number, fields in records:
        if len(fields) == len(columns):
            rows.append(fields)
            numbers.append(number)
        elif broken_rows:
            skipped += 1
        else:
            raise DataError(
                f"{path}, line {number}: {_fields(fields)} where "
                f"{'there should be' if header else 'the header has'} {len(columns)} ({', '.join(columns)}); "
                "repair or remove the row"
            )
    if not rows:
        ends = " (its lines end in \\r alone: convert them to \\n)" if "\r" in text and "\n" not in text else ""
        raise DataError(f"{path} has a header and no rows{ends}; add at least one")
    return Table(path, columns, rows, numbers, skipped=skipped)


def _fields(fields: Sequence[str]) -> str:
    if not any(fields):
        return "an empty line"
    return f"{len(fields)} field{'s' if len(fields) > 1 else ''}"


def _read_json_lines(path: Path, text: str) -> Table:
    objects, numbers = [], []
    for number, line in enumerate(text.rstrip().split("\n"), 1):
        place = f"{path}, line {number}"
        objects.append(_object(_parse(line, place), place))
        numbers.append(number)
    return _of_objects(path, objects, numbers, "line")


def _read_json(path: Path, text: str, key: str | None) -> Table:
    whole = _parse(text, str(path))
    unit = "entry"
    if key is not None:
        entries = _object(whole, str(path))
        if key not in entries:
            raise DataError(f"{path} has no entry {key!r}; it has {', '.join(entries)}{nearest(key, entries)}")
        whole, unit = entries[key], f"{key!r} entry"
    if not isinstance(whole, list):
        raise DataError(f"{path} holds {_kind(whole)} where a list of objects is needed; or give one object a line")
    numbers = list(range(1, len(whole) + 1))
    objects = [_object(entry, f"{path}, {unit} {number}") for number, entry in zip(numbers, whole, strict=True)]
    if not objects:
        raise DataError(f"{path} has no rows; add at least one")
    return _of_objects(path, objects, numbers, unit)


def _of_objects(path: Path, objects: Sequence[dict[str, Any]], numbers: Sequence[int], unit: str) -> Table:
    columns = tuple(dict.fromkeys(name for entry in objects for name in entry))
    return Table(path, columns, [[entry.get(name) for name in columns] for entry in objects], numbers, unit)


def _parse(text: str, place: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        _refuse_twins(place, [name for name, _ in pairs])
        return dict(pairs)

    if not text.strip():
        raise DataError(f"{place}: an empty line where a JSON object is needed; remove it")
    try:
        return json.loads(text, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        raise DataError(f"{place}: not JSON ({error.msg}, column {error.colno}); write one object a line") from error
    except (RecursionError, ValueError) as error:  # nested, or a number, beyond Python's limits
        raise DataError(f"{place}: {error}; a row is one flat object") from error


def _object(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f'{place}: {_kind(value)} where an object is needed, as in {{"text": "…", "label": "…"}}')
    return value


def _kind(value: Any) -> str:
    names = {list: "a list", dict: "an object", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _refuse_twins(place: str, columns: Sequence[str]) -> None:
    twins = [name for name, times in Counter(columns).items() if times > 1]
    if twins:
        raise DataError(f"{place}: there is more than one column {', '.join(map(repr, twins))}; rename all but one")


@contextmanager
def _long_fields() -> Iterator[None]:
    """Fields of any length: `csv` stops at 131,072 characters unless told otherwise, for the whole process."""
    before = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(before)
