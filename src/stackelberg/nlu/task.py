"""What a task of language understanding is, as data: its labels, its metrics, and where its rows are found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["classes", "score"]
Rows = Literal["all", "originals", "dev_ids", "not_dev_ids"]


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of the columns that a row's texts and label are in.

    Args:
        text: the first text.
        pair: the second one, of a task on pairs.
        label: the class or the score; None where a file has none.
        id: what the source numbers its rows by, where rows of two files must be matched.
    """

    text: str
    pair: str | None = None
    label: str | None = "label"
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """One file that a split is read from.

    Args:
        names: file names in the task's folder, tried in order; `*` stands for anything.
        columns: its columns, where they are not the task's.
        header: the columns' names, of a file whose first line is already a row.
        key: the entry of a JSON object that the rows are in.
        rows: which of its rows: `all`; the `originals` that AdvGLUE's rows were made from; those whose pair of ids
            is in MRPC's `dev_ids.tsv` (`dev_ids`), or is not (`not_dev_ids`).
    """

    names: tuple[str, ...]
    columns: Columns | None = None
    header: tuple[str, ...] | None = None
    key: str | None = None
    rows: Rows = "all"


Parts = tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Hub:
    """Where a task is on the Hugging Face hub.

    Args:
        path: the dataset.
        config: its configuration.
        splits: ours to the hub's; several are joined.
        columns: as the hub names them.
        revision: of the dataset; the hub's default when None.
    """

    path: str
    config: str | None
    splits: Mapping[str, tuple[str, ...]]
    columns: Columns
    revision: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class NluTask:
    """A task of language understanding.

    Args:
        name: what it is asked for by: `rte`.
        title: what it is called in tables: `RTE`.
        kind: `classes`, or one real `score`.
        columns: as its files usually name them.
        metrics: names in `stackelberg.nlu.metrics`, in the order in which papers report them.
        labels: names of the classes; a target is an index into them.
        spellings: other ways to write the labels, each a tuple in the order of `labels`.
        bounds: least and greatest score.
        no_label: what stands for the label of a row that its makers could not agree on; such rows are left out and
            counted.
        broken_rows: whether the published file is known to hold rows with a wrong number of fields, which are left
            out and counted. Anywhere else such a row is an error.
        folders: names its folder goes by.
        splits: for each split the ways to find it, in order; a way is the files that make up the split.
        rows: how many rows each split has as published: fewer means a subset.
        hub: where it is on the hub.
        evaluation: the splits whose mean is the task's score.
    """

    name: str
    title: str
    kind: Kind
    columns: Columns
    metrics: tuple[str, ...]
    labels: tuple[str, ...] = ()
    spellings: tuple[tuple[str, ...], ...] = ()
    bounds: tuple[float, float] | None = None
    no_label: str | None = None
    broken_rows: bool = False
    folders: tuple[str, ...] = ()
    splits: Mapping[str, tuple[Parts, ...]] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    hub: Hub | None = None
    evaluation: tuple[str, ...] = ("dev",)

    @property
    def has_pairs(self) -> bool:
        """Whether a row has two texts."""
        return self.columns.pair is not None

    @property
    def outputs(self) -> int:
        """How many outputs a model's head needs: one a class, or one for a score."""
        return len(self.labels) if self.kind == "classes" else 1

    def label_index(self) -> dict[str, int]:
        """Every spelling of every label, to the label's index."""
        ways = (self.labels, *self.spellings)
        return {spelling: index for way in ways for index, spelling in enumerate(way)}
