"""`stackelberg submit`: the zip that the GLUE server takes, from finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import SettingError, one_of
from . import _outputs
from .app import app


@app.command()
def submit(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Finished runs, one a task; MNLI's predicts AX too.")
    ],
    out: Annotated[Path, typer.Option(help="The zip.", callback=_outputs.file)] = Path("glue.zip"),
    fill: Annotated[
        str | None, typer.Option(help="majority: write the training set's most frequent label where there is no run.")
    ] = None,
) -> None:
    """Write the file that gluebenchmark.com scores, checked as the server would."""
    from ..nlu.run import Run
    from ..nlu.submission import FILES, write_submission
    from ..nlu.submitting import server_files

    if fill is not None:
        one_of("--fill", fill, ("majority",))
    if out.suffix != ".zip":
        raise SettingError(f"--out {out} should end in .zip")
    predictions: dict[str, Any] = {}
    made_by: dict[str, Path] = {}
    for folder in runs:
        for name, values in server_files(Run.open(folder), skip_missing=fill is not None):
            if name in predictions:
                raise SettingError(f"{made_by[name]} and {folder} both predict {name}; give one of them")
            predictions[name], made_by[name] = values, folder
    absent = [name for name in FILES if name not in predictions]
    if absent and fill is None:
        raise SettingError(
            f"there is no run for {', '.join(absent)}, and the server takes all eleven files or none; give such runs, "
            "or --fill majority to write one constant label there"
        )
    written = write_submission(out, predictions, missing="refuse" if fill is None else "majority")
    typer.echo(f"{out}: predicted {', '.join(written.predicted) or 'nothing'}")
    if written.filled:
        typer.echo(f"one constant label throughout: {', '.join(written.filled)}")
