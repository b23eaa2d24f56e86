"""`stackelberg calibrate`: can a model's confidence be trusted?"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from . import _outputs
from .app import app

DIAGRAM = Path("reliability.png")


@app.command(epilog="For example: stackelberg calibrate out/plain/0-* out/salt/0-* --temperature --out diagram.png")
def calibrate(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.")],
    split: Annotated[str | None, typer.Option(help="What to report on; what judged the run, when left out.")] = None,
    bins: Annotated[int, typer.Option(min=1, help="M, of equal size and of equal width.")] = 10,
    temperature: Annotated[
        bool, typer.Option("--temperature", help="Fit a temperature besides, on one half; report on the other.")
    ] = False,
    fit_on: Annotated[str | None, typer.Option(help="Split to fit it on instead of a half.")] = None,
    out: Annotated[
        Path, typer.Option(help="The diagram, .png or .svg; the other is written beside it.", callback=_outputs.file)
    ] = DIAGRAM,
    equal_width: Annotated[bool, typer.Option("--equal-width", help="Bins of equal width in the diagram.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of a table.")] = False,
) -> None:
    """Calibration errors, Brier score and NLL of each run, and a reliability diagram.

    ECE is of the predicted class, over bins of equal size as in the paper, and over bins of equal width.
    """
    from ..analysis.calibrating import calibrations, diagram, table
    from ..analysis.runs import names, open_runs
    from ._tables import console, say, show_table

    opened = open_runs(runs)
    found = calibrations(
        dict(zip(names(opened), opened, strict=True)), split=split, bins=bins, scaled=temperature, fit_on=fit_on
    )
    drawn = diagram(found, out, binning="equal-width" if equal_width else "equal-mass")
    if as_json:
        document = [{"run": each.name, **each.said, **asdict(each.figures)} for each in found]
        typer.echo(json.dumps({"bins": bins, "rows": document, "diagrams": list(map(str, drawn))}, indent=2))
        return
    to = console()
    show_table(to, table(found))
    for remark in dict.fromkeys(remark for each in found for remark in each.remarks):
        say(to, f"· {remark}")
    say(to, f"· reliability diagram: {' and '.join(map(str, drawn))}")
