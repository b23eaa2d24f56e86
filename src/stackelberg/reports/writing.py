"""Reports as files: the page, the same in Markdown, and the figures by themselves."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from stackelberg.analysis.figure_style import styled
from stackelberg.analysis.reliability_diagram import ENDINGS, save_figure
from stackelberg.extras import need
from stackelberg.reports.document import Document, Words
from stackelberg.reports.errors import ReportError
from stackelberg.reports.evidence import gather
from stackelberg.reports.html import GENERATOR, html
from stackelberg.reports.markdown import markdown
from stackelberg.reports.report import document_of
from stackelberg.reports.svg import inline
from stackelberg.storage import unwritable, write_whole

OURS = "<!-- stackelberg report -->"  # ends a Markdown report, so that it is known as one
HEAD = 4096  # bytes in which a page says what wrote it


@dataclass(frozen=True, slots=True)
class Written:
    """What was written.

    Args:
        page: the HTML file.
        markdown: beside it, if it was wanted.
        figures: files of the figures, if they were wanted.
        document: what is in them.
    """

    page: Path
    markdown: Path | None
    figures: tuple[Path, ...]
    document: Document

    @property
    def verdict(self) -> list[str]:
        """What is shown, in words."""
        blocks = [block for block in self.document.sections[0].blocks if isinstance(block, Words)]
        return [sentence for block in blocks for sentence in block.sentences]


def write_report(
    folders: Sequence[Path | str],
    out: Path | str = "report.html",
    *,
    title: str | None = None,
    with_markdown: bool = False,
    figures: Path | str | None = None,
    force: bool = False,
) -> Written:
    """Write a report on studies and runs.

    Args:
        folders: of studies, of runs, or with such folders in them.
        out: the page; links to runs are relative to where it is.
        title: of the report; the study's own, or the first folder's name, when None.
        with_markdown: write the same as Markdown beside it.
        figures: a folder to write every figure into too, as SVG and PNG.
        force: overwrite what is no report of ours.
    """
    out = Path(out)
    beside = out.with_suffix(".md") if with_markdown else None
    into = None if figures is None else Path(figures)
    _check_places(out, beside, into, force=force)
    for module in ("jinja2", "matplotlib", "yaml"):
        need(module)
    document = document_of(gather([Path(folder) for folder in folders], title), out)
    drawn, files = _draw(document, into)
    write_whole(out, html(document, drawn))
    if beside is not None:
        said = {name: _relative(path, beside) for name, path in files.items()}
        write_whole(beside, f"{markdown(document, said)}\n{OURS}\n")
    paths = tuple(path.with_suffix(ending) for path in files.values() for ending in ENDINGS)
    return Written(out, beside, paths, document)


def _check_places(out: Path, beside: Path | None, figures: Path | None, *, force: bool) -> None:
    if out.suffix.lower() not in (".html", ".htm"):
        raise ReportError(f"{out} should end in .html; Markdown is written beside it with --markdown")
    for path in (out, *([] if beside is None else [beside])):
        if not path.parent.is_dir():
            raise ReportError(f"{path.parent} is not a folder, and {path.name} should be written there; make it first")
        if path.is_dir():
            raise ReportError(f"{path} is a folder where a file should be written; give another --out")
        if path.exists() and not force and not _is_ours(path):
            raise ReportError(f"{path} exists and is no report of stackelberg; give another --out, or --force")
    if (wrong := unwritable(out.parent)) is not None:
        raise ReportError(f"{out} cannot be written: {wrong}; give another --out")
    if figures is not None and (wrong := unwritable(figures)) is not None:
        raise ReportError(f"{figures} cannot be written: {wrong}; give another --figures")


def _is_ours(path: Path) -> bool:
    content = path.read_bytes()
    if path.suffix.lower() == ".md":
        return content.rstrip().endswith(OURS.encode())
    return f'name="generator" content="{GENERATOR}'.encode() in content[:HEAD]


def _draw(document: Document, into: Path | None) -> tuple[dict[str, str], dict[str, Path]]:
    """Each figure for the page, and as files if they are wanted."""
    drawn: dict[str, str] = {}
    files: dict[str, Path] = {}
    with styled():
        for number, picture in enumerate(document.pictures, 1):
            figure = picture.draw()
            drawn[picture.name] = inline(figure, name=f"figure-{number}", alt=picture.alt)
            if into is not None:
                files[picture.name] = into / f"{number:02}-{_file_name(picture.name)}.svg"
                for ending in ENDINGS:
                    save_figure(figure, files[picture.name].with_suffix(ending))
    return drawn, files


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.=+-]+", "-", name).strip("-.")[:80] or "figure"


def _relative(path: Path, beside: Path) -> str:
    return quote(Path(os.path.relpath(path.absolute(), beside.absolute().parent)).as_posix())
