"""`stackelberg robustness`: what is left of a model's accuracy on rows made to mislead it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .app import app

if TYPE_CHECKING:
    from ..analysis.attack import AttackFigures
    from ..nlu.run import Run


@app.command(epilog="For example: stackelberg robustness out/plain/0-* out/salt/0-* --data glue")
def robustness(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.")],
    data: Annotated[Path | None, typer.Option(help="Folder that ANLI and AdvGLUE are in; left out, the hub.")] = None,
    attack: Annotated[
        str | None, typer.Option(help="Attack the dev split by TextAttack instead: textfooler, …")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Of the dev split, to attack.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Of the rows that are attacked, and of the attack.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of tables.")] = False,
) -> None:
    """Accuracy on ANLI and AdvGLUE of runs whose task fits: MNLI, SNLI, ANLI; SST-2, QQP, QNLI, RTE.

    With --attack, accuracy before and under an attack by TextAttack, a package of its own.
    """
    from ..analysis.robustness import measure_robustness, trials
    from ..analysis.robustness_report import document, remarks, tables
    from ..analysis.runs import kinds, open_runs
    from ._tables import console, say, show_table

    opened = open_runs(runs)
    if attack is not None:
        _attack(opened, attack, rows, seed, as_json)
        return
    prepared = [trials(run.task, data) for run in opened]  # whatever is lacking is said before anything is computed
    found = []
    for kind, run, rows_of_it in zip(kinds(opened), opened, prepared, strict=True):

        def told(title: str, run: Run = run) -> None:
            typer.echo(f"{run.folder}: {title}", err=True)

        its = measure_robustness(run.classifier, rows_of_it, precision=run.recipe.precision, report=told)
        found.append((kind, run, its))
    if as_json:
        typer.echo(json.dumps(document(found), indent=2))
        return
    to = console()
    for title, table in tables(found).items():
        show_table(to, table, title=title)
    for remark in remarks(found):
        say(to, f"· {remark}")


def _attack(runs: list[Run], name: str, rows: int, seed: int, as_json: bool) -> None:
    from dataclasses import asdict

    from ..analysis.attack import attack
    from ..analysis.runs import names
    from ._tables import console, show_table

    found: list[tuple[str, AttackFigures]] = []
    for label, run in zip(names(runs), runs, strict=True):
        examples = run.data[run.judged_by[0]]
        found.append((label, attack(run.classifier, run.task, examples, name=name, rows=rows, seed=seed)))
    if as_json:
        typer.echo(json.dumps([{"run": label, **asdict(its)} for label, its in found], indent=2))
        return
    header = ["run", "rows", "accuracy", f"under {name}", "given way", "queries a row"]
    cells = []
    for label, its in found:
        given_way = f"{its.right - its.held} of {its.right}"
        shares = [f"{its.accuracy:.1%}", f"{its.under_attack:.1%}"]
        cells.append([label, str(its.rows), *shares, given_way, f"{its.queries:.0f}"])
    show_table(console(), (header, cells))
