"""A document as one HTML file that needs nothing else: no request, no script, styles in it, figures as SVG."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.resources import files
from itertools import groupby
from typing import Any

from stackelberg.extras import need
from stackelberg.reports.document import Column, Document, Gallery, Table, Words

GENERATOR = "stackelberg report"  # in the page, so that a report of ours is known as one


def html(document: Document, drawn: Mapping[str, str]) -> str:
    """The page. Every text is escaped; the figures are SVG, which has escaped its own.

    Args:
        document: what to say.
        drawn: for each picture's name, its SVG.
    """
    jinja = need("jinja2")
    home = files("stackelberg.reports")
    style = (home / "report.css").read_text(encoding="utf-8")
    environment = jinja.Environment(autoescape=True, undefined=jinja.StrictUndefined)
    environment.tests |= {
        "table_block": lambda block: isinstance(block, Table),
        "words_block": lambda block: isinstance(block, Words),
        "gallery_block": lambda block: isinstance(block, Gallery),
    }
    safe = need("markupsafe").Markup
    page = environment.from_string((home / "report.html.j2").read_text(encoding="utf-8"))
    return str(
        page.render(
            document=document,
            drawn={name: safe(picture) for name, picture in drawn.items()},
            spans=_spans,
            style=safe(style),
            style_hash=f"sha256-{base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()}",
            generator=f"{GENERATOR} {version('stackelberg')}",
        )
    )


def _spans(columns: Sequence[Column]) -> list[tuple[str, int, Any]]:
    """Groups of neighbours with their widths, a column without a group by itself; nothing where none has one."""
    if not any(column.group for column in columns):
        return []
    found: list[tuple[str, int, Any]] = []
    for group, its in groupby(columns, key=lambda column: column.group):
        members = list(its)
        found += [(group, len(members), members[0])] if group else [("", 1, column) for column in members]
    return found
