"""Rows in memory: columns that cannot change, and the splits of a task."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any

from stackelberg.errors import DataError, nearest
from stackelberg.nlu.task import NluTask

Targets = tuple[int, ...] | tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Examples:
    """Rows, column by column.

    Args:
        texts: the first text of every row.
        pairs: the second one, of a task on pairs.
        targets: indices into the task's labels, or scores; None where there are no labels.
        ids: what the source numbers its rows by, if it does and if that matters.
        sources: the files, or the hub's names, that the rows came from.
        skipped: how many rows of the sources were left out by the task's own rules.
    """

    texts: tuple[str, ...]
    pairs: tuple[str, ...] | None = None
    targets: Targets | None = None
    ids: tuple[str, ...] | None = None
    sources: tuple[str, ...] = ()
    skipped: int = 0

    def __post_init__(self) -> None:
        for column in (self.pairs, self.targets, self.ids):
            if column is not None and len(column) != len(self.texts):
                raise DataError(f"columns of {len(self.texts)} and {len(column)} rows cannot stand side by side")

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, indices: Iterable[int]) -> Examples:
        """Some of the rows, in the order given."""
        chosen = list(indices)

        def of(column: tuple[Any, ...] | None) -> Any:
            return None if column is None else tuple(column[i] for i in chosen)

        return Examples(
            of(self.texts) or (), of(self.pairs), of(self.targets), of(self.ids), self.sources, self.skipped
        )


def join(parts: Sequence[Examples]) -> Examples:
    """The rows of several files, one after another."""
    if len(parts) == 1:
        return parts[0]

    def of(columns: Sequence[tuple[object, ...] | None]) -> tuple[object, ...] | None:
        there = [column for column in columns if column is not None]
        if there and len(there) != len(columns):
            raise DataError(f"{parts[0].sources[0]} and what is joined to it do not have the same columns")
        return tuple(chain.from_iterable(there)) if there else None

    return Examples(
        of([part.texts for part in parts]) or (),  # type: ignore[arg-type]
        of([part.pairs for part in parts]),  # type: ignore[arg-type]
        of([part.targets for part in parts]),  # type: ignore[arg-type]
        of([part.ids for part in parts]),  # type: ignore[arg-type]
        tuple(chain.from_iterable(part.sources for part in parts)),
        sum(part.skipped for part in parts),
    )


def hold_out(examples: Examples, share: float = 0.1, *, seed: int = 0) -> tuple[Examples, Examples]:
    """Cut rows in two: what is kept and what is held out, with the classes in the same proportions.

    Args:
        examples: rows with labels.
        share: of each class, to hold out; at least one row of a class that has two.
        seed: the same seed cuts the same way.
    """
    if not 0 < share < 1:
        raise DataError(f"share={share} must be between 0 and 1")
    if examples.targets is None:
        raise DataError("rows without labels cannot be cut by class; give rows that have labels")
    groups: dict[float, list[int]] = {}
    for row, target in enumerate(examples.targets):
        groups.setdefault(target if isinstance(target, int) else 0.0, []).append(row)
    shuffled = random.Random(seed)
    held: set[int] = set()
    for key in sorted(groups):
        rows = groups[key]
        shuffled.shuffle(rows)
        held.update(rows[: max(round(share * len(rows)), min(1, len(rows) - 1))])
    everything = range(len(examples))
    return examples.take(row for row in everything if row not in held), examples.take(sorted(held))


class TaskData(Mapping[str, Examples]):
    """The splits of a task, by name: `data["train"]`.

    Args:
        task: what they are examples of.
        splits: the rows of each.
    """

    def __init__(self, task: NluTask, splits: Mapping[str, Examples]) -> None:
        self.task = task
        self._splits = MappingProxyType(dict(splits))

    def __getitem__(self, split: str) -> Examples:
        if split not in self._splits:
            raise MissingSplitError(
                f"{self.task.title} has no split {split!r} here; it has {', '.join(self._splits)}"
                f"{nearest(split, self._splits)}"
            )
        return self._splits[split]

    def __iter__(self) -> Iterator[str]:
        return iter(self._splits)

    def __len__(self) -> int:
        return len(self._splits)

    def __repr__(self) -> str:
        return f"TaskData({self.task.title}: {', '.join(f'{split} {len(self[split]):,}' for split in self)})"

    def subsets(self) -> dict[str, tuple[int, int]]:
        """The splits that are not as published: rows here, rows published. Figures made on them say so."""
        counts = {split: (len(self[split]), self.task.rows[split]) for split in self if split in self.task.rows}
        return {split: (here, published) for split, (here, published) in counts.items() if here != published}


class MissingSplitError(DataError, KeyError):
    """A split was asked for that is not there."""

    __str__ = Exception.__str__  # a KeyError shows its message in quotes
