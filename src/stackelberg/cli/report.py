"""`stackelberg report`: what studies and runs show, on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import app


@app.command(epilog="For example: stackelberg report glue-study --out report.html --markdown --figures figures")
def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER...", help="Of studies, of runs, or with such folders in them.")
    ],
    out: Annotated[Path, typer.Option(help="The page; links to runs are relative to where it is.")] = Path(
        "report.html"
    ),
    title: Annotated[str | None, typer.Option(help="Of the page; the study's own, when left out.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Write the same as Markdown beside it.")] = False,
    figures: Annotated[
        Path | None, typer.Option(help="A folder to write every figure into too, as SVG and PNG.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is no report of ours.")] = False,
) -> None:
    """One HTML file of what was trained: what is shown and what is not, tables beside the paper's, cost, figures.

    It needs no network and no script, and can be read on a phone and printed. An earlier report is replaced; any other
    file is not, without --force.
    """
    from ..reports import write_report
    from ._tables import console, say

    written = write_report(folders, out, title=title, with_markdown=markdown, figures=figures, force=force)
    to = console()
    for sentence in written.verdict:
        say(to, sentence)
    say(to, f"written: {written.page}")
    if written.markdown is not None:
        say(to, f"written: {written.markdown}")
    if written.figures:
        say(to, f"written: {len(written.figures)} files of figures in {written.figures[0].parent}")
