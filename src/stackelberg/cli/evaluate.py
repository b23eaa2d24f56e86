"""`stackelberg evaluate`: a finished run's metrics and calibration on any labelled split or file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .app import app


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A finished run's folder.")],
    split: Annotated[
        list[str] | None, typer.Option(help="Which; those that judged the run without. May be given again.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Another folder with the task, or a file of labelled rows.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, fractions.")] = False,
) -> None:
    """Print a run's metrics and calibration."""
    from ..errors import SettingError
    from ..nlu.files import read_file
    from ..nlu.judging import of_split
    from ..nlu.loading import load
    from ..nlu.run import Run
    from ..runs.records import finite
    from .figures import shown

    trained = Run.open(run)
    found: dict[str, dict[str, float]] = {}
    rows: dict[str, int] = {}
    if data is None:
        for name in split or trained.judged_by:
            found[name] = trained.evaluate(name)
            rows[name] = len(trained.probabilities(name)[0])
    else:
        if data.is_dir() and trained.recipe.task is None:
            raise SettingError(f"--data {data}: this run is of files of your own; give a file")
        if data.is_dir():
            splits = load(trained.task, data)
            there = {name: splits[name] for name in split or trained.task.evaluation}
        else:
            there = {data.name: read_file(data, trained.task)}
        for name, examples in there.items():
            if examples.targets is None:
                raise SettingError(f"{examples.sources[0]} has no labels to evaluate on")
            found[name] = of_split(trained.task, trained.predict(examples), examples.targets)
            rows[name] = len(examples)
    if as_json:
        typer.echo(json.dumps({name: {"rows": rows[name], **finite(each)} for name, each in found.items()}, indent=2))
        return
    for name, each in found.items():
        typer.echo("\n".join([f"{trained.task.title}, {name}: {rows[name]:,} rows", *shown(each)]))
