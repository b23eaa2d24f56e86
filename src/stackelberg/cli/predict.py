"""`stackelberg predict`: labels and probabilities for any file with texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import SettingError
from . import _outputs
from .app import app


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A finished run's folder.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Rows to predict on: .tsv, .csv, .jsonl or .json.")],
    out: Annotated[
        Path | None, typer.Option(help="A .tsv or .jsonl file; TSV on standard output without.", callback=_outputs.file)
    ] = None,
    text: Annotated[str | None, typer.Option(help="The column of the text, if not the task's.")] = None,
    pair: Annotated[str | None, typer.Option(help="... of the second text.")] = None,
) -> None:
    """Predict on a file, a line for each of its rows, in their order."""
    from ..nlu.files import read_file
    from ..nlu.predictions import as_json_lines, as_tsv
    from ..nlu.run import Run
    from ..nlu.task import Columns
    from ..storage import write_whole

    if out is not None and out.suffix not in (".tsv", ".jsonl"):
        raise SettingError(f"--out {out} ends in {out.suffix or 'nothing'!r}; name it .tsv or .jsonl")
    trained = Run.open(run)
    own = trained.task.columns
    if pair is not None and own.pair is None:
        raise SettingError(f"--pair {pair}: {trained.task.title} has one text a row; leave it out")
    # labels are not looked at: a file may have none, or others
    examples = read_file(file, trained.task, columns=Columns(text or own.text, pair or own.pair, label=None))
    found = trained.predict(examples)
    written = as_json_lines if out is not None and out.suffix == ".jsonl" else as_tsv
    content = written(trained.task, found)
    if out is None:
        typer.echo(content, nl=False)
    else:
        write_whole(out, content)
        typer.echo(f"{len(examples):,} predictions in {out}", err=True)
