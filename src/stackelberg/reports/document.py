"""A report before it is HTML or Markdown: sections of words, tables and pictures, all of plain text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stackelberg.analysis.statistics import Spread

NOTHING = "–"


@dataclass(frozen=True, slots=True)
class Cell:
    """Of a table.

    Args:
        text: as it is to be read.
        best: the best mean of its column, be it luck or not.
        strong: shown to be the best of its column.
        href: of a link, relative to the report.
    """

    text: str
    best: bool = False
    strong: bool = False
    href: str | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """Of a table.

    Args:
        name: above it.
        group: above that, and above its neighbours of the same group.
        number: whether it is read as figures, to the right.
        quoted: whether all of it is quoted from the paper.
    """

    name: str
    group: str = ""
    number: bool = True
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Rows:
    """Of a table, under a heading of their own if they have one."""

    rows: Sequence[Sequence[Cell]]
    heading: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """The first column names the row.

    Args:
        caption: what it is.
        columns: of all rows.
        bodies: the rows.
        notes: under it.
    """

    caption: str
    columns: Sequence[Column]
    bodies: Sequence[Rows]
    notes: Sequence[str] = ()


def compact(table: Table) -> Table:
    """Without the columns that have nothing in them."""
    rows = [row for body in table.bodies for row in body.rows]
    used = [place for place in range(len(table.columns)) if any(row[place].text != NOTHING for row in rows)]
    bodies = [replace(body, rows=[[row[place] for place in used] for row in body.rows]) for body in table.bodies]
    return replace(table, columns=[table.columns[place] for place in used], bodies=bodies)


@dataclass(frozen=True, slots=True)
class Words:
    """Sentences.

    Args:
        sentences: a paragraph, or with `listed` one point each.
        heading: above them.
        listed: whether they are points.
        lead: whether they are what a hurried reader reads.
    """

    sentences: Sequence[str]
    heading: str = ""
    listed: bool = False
    lead: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure of one panel.

    Args:
        name: of its files.
        alt: what is to be seen, for those who do not see it.
        caption: under it.
        draw: makes matplotlib's figure.
    """

    name: str
    alt: str
    caption: str
    draw: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Gallery:
    """Pictures beside each other."""

    heading: str
    about: str
    pictures: Sequence[Picture]


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and what they are."""

    heading: str
    facts: Sequence[tuple[str, str]]


Block = Table | Words | Gallery | Facts


@dataclass(frozen=True, slots=True)
class Section:
    """Of a report.

    Args:
        id: of its place in the page.
        title: above it.
        blocks: what is in it.
    """

    id: str
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True)
class Document:
    """The whole.

    Args:
        title: of the study.
        about: a line below it.
        sections: in the order of reading.
    """

    title: str
    about: str
    sections: Sequence[Section] = field(default=())

    @property
    def pictures(self) -> list[Picture]:
        """Of all sections."""
        blocks = [block for section in self.sections for block in section.blocks]
        return [picture for block in blocks if isinstance(block, Gallery) for picture in block.pictures]


def figure(spread: Spread | None, scale: float = 100.0, digits: int = 1) -> str:
    """A mean with its standard deviation, or a dash."""
    return NOTHING if spread is None else spread.text(scale, digits)
