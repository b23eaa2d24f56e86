"""Tables in a terminal; where the output is no terminal, as wide as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

WIDE = 200

Cells = tuple[Sequence[str], Sequence[Sequence[str]]]  # header, rows


def console() -> Any:
    """For standard output; text that does not go to a terminal is not broken into lines."""
    from rich.console import Console

    made = Console(highlight=False)
    return made if made.is_terminal else Console(highlight=False, width=WIDE, soft_wrap=True)


def show_table(to: Any, cells: Cells, *, title: str | None = None) -> None:
    """Print a table, `**text**` in bold.

    Args:
        to: as `console` makes it.
        cells: header and rows.
        title: above it.
    """
    to.print(table(cells, title=title))


def table(cells: Cells, *, title: str | None = None) -> Any:
    """The same, for Rich to draw."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    header, rows = cells
    shown = Table(title=title, title_style="bold", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(header):
        shown.add_column(name, justify="left" if place == 0 else "right", overflow="fold")
    for row in rows:
        strong = [len(cell) > 4 and cell.startswith("**") and cell.endswith("**") for cell in row]
        plain = [cell[2:-2] if bold else cell for cell, bold in zip(row, strong, strict=True)]
        shown.add_row(*(Text(cell, style="bold" if bold else "") for cell, bold in zip(plain, strong, strict=True)))
    return shown


def say(to: Any, text: str, style: str = "") -> None:
    """A line as it is, whatever brackets are in it."""
    to.print(text, style=style, markup=False)
