"""A document as Markdown, to be put into another one."""

from __future__ import annotations

import re
from collections.abc import Mapping

from stackelberg.reports.document import Block, Cell, Column, Document, Facts, Gallery, Table, Words

MARKS = re.compile(r"([\\`*_{}\[\]<>#|~&$!])")


def markdown(document: Document, files: Mapping[str, str]) -> str:
    """The whole.

    Args:
        document: what to say.
        files: for each picture's name the file it is in, relative to the document; none where none was written.
    """
    parts = [f"# {_escaped(document.title)}", _escaped(document.about)]
    for section in document.sections:
        parts.append(f"## {_escaped(section.title)}")
        parts += [_block(block, files) for block in section.blocks]
    return "\n\n".join(part for part in parts if part) + "\n"


def _block(block: Block, files: Mapping[str, str]) -> str:
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Words):
        heading = [f"### {_escaped(block.heading)}"] * bool(block.heading)
        said = [_escaped(sentence) for sentence in block.sentences]
        if block.listed:
            return "\n\n".join([*heading, "\n".join(f"- {each}" for each in said)])
        return "\n\n".join([*heading, *(f"**{each}**" if block.lead else each for each in said)])
    if isinstance(block, Facts):
        return "\n\n".join(
            [
                f"### {_escaped(block.heading)}",
                "\n".join(f"- {_escaped(name)}: {_escaped(value)}" for name, value in block.facts),
            ]
        )
    return _gallery(block, files)


def _table(table: Table) -> str:
    lines = [[_heading(column) for column in table.columns]]
    lines.append(["---:" if column.number else "---" for column in table.columns])
    for body in table.bodies:
        if body.heading:
            lines.append([f"**{_escaped(body.heading)}**", *[""] * (len(table.columns) - 1)])
        lines += [[_cell(cell) for cell in row] for row in body.rows]
    drawn = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return "\n\n".join([f"### {_escaped(table.caption)}", drawn, *map(_escaped, table.notes)])


def _heading(column: Column) -> str:
    name = f"{column.group}, {column.name}" if column.group else column.name
    return f"*{_escaped(name)} (quoted)*" if column.quoted else _escaped(name)


def _cell(cell: Cell) -> str:
    text = _escaped(cell.text)
    if cell.href:
        return f"[{text}](<{cell.href}>)"
    text = f"<u>{text}</u>" if cell.best else text
    return f"**{text}**" if cell.strong else text


def _gallery(gallery: Gallery, files: Mapping[str, str]) -> str:
    pictures = [
        f"![{_escaped(picture.alt)}](<{files[picture.name]}>)"
        if picture.name in files
        else f"- {_escaped(picture.alt)}"
        for picture in gallery.pictures
    ]
    return "\n\n".join([f"### {_escaped(gallery.heading)}", _escaped(gallery.about), "\n".join(pictures)])


def _escaped(text: str) -> str:
    """Every sign that Markdown, or HTML in it, would take for its own; a line stays a line."""
    return MARKS.sub(r"\\\1", " ".join(text.split())).replace("\\<", "&lt;").replace("\\&", "&amp;")
