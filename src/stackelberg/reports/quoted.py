"""Figures that the paper prints, to stand beside those of a study; every one is marked as quoted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from stackelberg.extras import need

AVERAGE = "average"
ECE = "ece"


@dataclass(frozen=True, slots=True)
class Quoted:
    """One figure, or several that the paper separates by a slash: as it is printed, times 100."""

    text: str

    @property
    def mean(self) -> float:
        """What the paper's averages are made of."""
        values = [float(part) for part in self.text.split("/")]
        return sum(values) / len(values)


@dataclass(frozen=True, slots=True)
class QuotedTable:
    """One of the paper's tables, or what the captions of one of its figures say.

    Args:
        name: by which code calls it.
        label: in the paper's source.
        place: its number in the paper.
        title: what it is of.
        about: what must be known to read it.
        split: that it is of.
        model: that was trained.
        measures: of each task or corpus.
        methods: by method, as this package names it, the figure of each task; of `average` too where there is one.
    """

    name: str
    label: str
    place: str
    title: str
    about: str
    split: str
    model: str
    measures: Mapping[str, str]
    methods: Mapping[str, Mapping[str, Quoted]]

    def figure(self, method: str, task: str) -> Quoted | None:
        """None where the paper has none."""
        return self.methods.get(method, {}).get(task)


@cache
def source() -> str:
    """The paper."""
    return str(_said()["source"])


@cache
def tables() -> Mapping[str, QuotedTable]:
    """All of them, by name; the first that has a task and a split is the one that methods are compared by."""
    return {
        name: QuotedTable(
            name=name,
            **{field: value for field, value in table.items() if field != "methods"},
            methods={
                method: {task: Quoted(figure) for task, figure in row.items()}
                for method, row in table["methods"].items()
            },
        )
        for name, table in _said()["tables"].items()
    }


def table_of(task: str, split: str) -> QuotedTable | None:
    """The table that has a task's figures on a split, or None."""
    return next((each for each in tables().values() if task in each.measures and each.split == split), None)


@cache
def _said() -> Any:
    yaml = need("yaml")
    text = (files("stackelberg.reports") / "paper.yaml").read_text(encoding="utf-8")
    return yaml.load(text, Loader=yaml.BaseLoader)  # figures as they are printed: BaseLoader makes texts alone
