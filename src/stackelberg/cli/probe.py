"""`stackelberg probe`: what a fine-tuned encoder still knows of other tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from . import _outputs
from .app import app

if TYPE_CHECKING:
    from ..analysis.frozen import Pooling


@app.command(
    epilog="For example: stackelberg probe out/plain/0-* out/salt/0-* --tasks cr,mr,trec --data glue --pooling mean",
)
def probe(
    models: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs, or that models are saved in.")
    ],
    tasks: Annotated[str, typer.Option(help="Names, or files with a text and a label column.")] = (
        "cr,mr,subj,trec,mrpc"
    ),
    data: Annotated[Path | None, typer.Option(help="Folder that the named tasks are in; left out, the hub.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many draws of the rows.")] = 10,
    pooling: Annotated[str, typer.Option(help="What stands for a row: its first token, or the mean of all.")] = "first",
    max_length: Annotated[int, typer.Option(min=4, help="Tokens that rows are cut to.")] = 128,
    text: Annotated[str, typer.Option(help="A file's column of the text.")] = "text",
    pair: Annotated[str | None, typer.Option(help="A file's column of the second text.")] = None,
    label: Annotated[str, typer.Option(help="A file's column of the class.")] = "label",
    out: Annotated[
        Path,
        typer.Option(help="Folder for figures and the features of models that are no runs.", callback=_outputs.folder),
    ] = Path("probing"),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of a table.")] = False,
) -> None:
    """Fit linear heads on frozen hidden states: accuracy for each seed, and a violin plot as in the paper.

    Runs that differ in their seed alone share a violin. Features are computed once for each model and task.
    """
    from ..analysis.frozen import POOLINGS
    from ..analysis.probing import probing_task
    from ..analysis.probing_report import Subject, document, figure, probe_all, remarks, subjects, table
    from ..analysis.reliability_diagram import save_figure
    from ..errors import one_of
    from ..storage import write_whole
    from ._tables import console, say, show_table

    one_of("--pooling", pooling, POOLINGS)
    way = cast("Pooling", pooling)
    chosen = [
        probing_task(name.strip(), data, text=text, pair=pair, label=label) for name in tasks.split(",") if name.strip()
    ]

    def told(subject: Subject, title: str) -> None:
        typer.echo(f"{subject.folder}: {title}", err=True)

    models_of = subjects(models, out / "features")
    found = probe_all(models_of, chosen, seeds=seeds, pooling=way, max_length=max_length, report=told)
    drawn = [out / "probing.png", out / "probing.svg"]
    for path in drawn:
        save_figure(figure(found, chosen), path)
    write_whole(out / "probing.json", json.dumps(document(found, chosen, pooling), indent=2) + "\n")
    if as_json:
        typer.echo((out / "probing.json").read_text(encoding="utf-8"), nl=False)
        return
    to = console()
    show_table(to, table(found, chosen), title="accuracy (%) of linear heads on frozen hidden states")
    for remark in remarks(found, chosen, pooling):
        say(to, f"· {remark}")
    say(to, f"· {' and '.join(map(str, drawn))}; every accuracy is in {out / 'probing.json'}")
