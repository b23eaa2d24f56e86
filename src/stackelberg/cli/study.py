"""`stackelberg study`: methods × tasks × settings × seeds, on this machine or a Ray cluster."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import SettingError
from .app import app
from .compare import INTERRUPTED

if TYPE_CHECKING:
    from ..studies.running import Told
    from ..studies.store import Store
    from ..studies.study import Study
    from ..studies.summary import Summary


@app.command(
    epilog="For example: stackelberg study glue-dev tasks=[rte,mrpc] seeds=5 data=glue model=./bert-base --jobs 2",
)
def study(
    source: Annotated[
        str | None, typer.Argument(metavar="[STUDY]", help="Ours by name, or a YAML file; none lists ours.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="seeds=5, methods=[plain,salt], tasks=[rte]; a field of every recipe, data=FOLDER; "
            "or of one task's or method's, rte.epochs=5, salt.weight=2.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The study's folder; studies/NAME without.")] = None,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="The smallest size, on made-up data: shows that all runs, nothing else.")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option(help="Runs at once; one, or one a GPU, without.", show_default=False)
    ] = None,
    ray: Annotated[
        str | None, typer.Option(help="Run on a Ray cluster: auto, or its address.", metavar="auto|ADDRESS")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Try failed runs again.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="List the runs, and run nothing.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but the result.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of tables.")] = False,
) -> None:
    """Run a study and print its table.

    Stopped, killed or crashed, the same command goes on where it was, and more seeds, methods or tasks are added to
    what is there; nothing is trained twice. Several such commands may work on one folder at once.
    """
    from ..studies.checking import check
    from ..studies.running import run
    from ..studies.store import Store
    from ..studies.study import Study
    from ..studies.summary import as_data, summarize

    if source is None:
        _list()
        return
    if jobs is not None and jobs < 1:
        raise SettingError(f"--jobs {jobs} should be at least 1")
    name = Path(source).stem if source.endswith((".yaml", ".yml")) else source
    folder = out or Path("studies") / f"{name}{'-smoke' * smoke}"
    asked = Study.load(source, changes or [], smoke=folder / "smoke" if smoke else None)
    if plan:
        _plan(asked, folder)
        return
    store = Store.begin(asked, folder)
    if again:
        store.forgive()
    left = {each.id for each in store.results() if each.state == "waiting"}
    check(asked, [cell for cell in asked.cells() if cell.id in left])
    tell = (lambda told: None) if quiet or as_json else _Teller(asked, store).tell
    try:
        run(asked, store, _crew(asked, store, jobs, ray, say=not (quiet or as_json)), tell)
    except KeyboardInterrupt:
        typer.echo(f"stopped; go on with: {_command()}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    found = summarize(asked, store)
    from ..storage import write_whole

    document = json.dumps(as_data(found), indent=2, ensure_ascii=False) + "\n"
    write_whole(folder / "summary.json", document)
    if as_json:
        typer.echo(document, nl=False)
    else:
        show(found)
    if any(each.what == "submission" for each in asked.shows):
        from ..studies.submitting import write_submissions

        for said in write_submissions(asked, store):
            typer.echo(said, err=True)
    if not as_json:
        typer.echo(f"\nin {folder}; a report of it: stackelberg report {shlex.quote(str(folder))}", err=True)
    if any(each.state == "failed" for each in found.results):
        raise typer.Exit(1)


def show(found: Summary) -> None:
    """Tables and sentences."""
    from ..studies.summary_words import difference_table, method_note, score_table, sentences
    from ._tables import console, say, show_table

    to = console()
    show_table(to, score_table(found), title=found.study.title)
    if found.pairs:
        show_table(to, difference_table(found), title=f"Less {found.baseline}")
    for said in sentences(found):
        say(to, f"· {said}")
    say(to, method_note(found), style="dim")


def _crew(study: Study, store: Store, jobs: int | None, ray: str | None, *, say: bool) -> Any:
    """Who trains."""
    if ray is not None:
        from ..studies.cluster import RayCrew

        return RayCrew(
            store, address=ray, cpus=study.cpus, gpus=study.gpus, jobs=1 if study.alone else jobs,
            measures=study.measures,
        )  # fmt: skip
    from ..studies.local import LocalCrew, cores, visible_gpus

    gpus = visible_gpus() if study.gpus != 0 else ()
    if study.gpus and not gpus:
        raise SettingError(f"gpus={study.gpus:g}, and this machine has none; give gpus=0 to run without")
    most = len(gpus) or 1
    if study.alone and jobs is not None and jobs > most:
        raise SettingError(
            f"--jobs {jobs}: the runs of {study.name} are timed, and two at once on one device would slow each other; "
            f"give at most {most}"
        )
    chosen = jobs or most
    spare = cores() // study.cpus
    if say and not gpus and jobs is None and not study.alone and spare > 1:
        typer.echo(f"one run at a time, on {study.cpus} of {cores()} cores; --jobs {spare} uses them all", err=True)
    return LocalCrew(store, jobs=chosen, cpus=study.cpus, gpus=gpus, measures=study.measures)


class _Teller:
    """A line for all that happens."""

    def __init__(self, study: Study, store: Store) -> None:
        self._store = store
        cells = study.cells()
        done = sum(each.state == "finished" for each in store.results())
        before = f", {done} finished before" if done else ""
        typer.echo(f"{study.title}: {len(cells)} runs{before}, in {store.folder}", err=True)

    def tell(self, told: Told) -> None:
        """One of them."""
        from ..runs.progress import clock
        from ..studies.looking import seconds_left

        if told.what == "waits":
            typer.echo(f"the other runs are being trained by {told.words or 'another process'}; waiting", err=True)
            return
        assert told.cell is not None
        left = seconds_left(self._store.results()) if told.what == "finished" else None
        about = f"; about {clock(left)} left" if left else ""
        words = f": {told.words}" if told.words else ""
        typer.echo(f"[{told.done}/{told.total}] {told.what} {told.cell.name}{words}{about}", err=True)


def _list() -> None:
    """What is shipped."""
    from ..runs.recipe_file import parsed
    from ..studies.study_file import shipped
    from ._tables import console, say, show_table

    to = console()
    rows = [[name, str(parsed(path)["title"])] for name, path in shipped().items()]
    show_table(to, (["study", ""], rows))
    say(to, "stackelberg study NAME --plan lists its runs; --smoke runs its smallest size.", style="dim")


def _plan(study: Study, folder: Path) -> None:
    """Every run."""
    from ._tables import console, say, show_table

    cells = study.cells()
    rows = [[cell.id, cell.method, cell.task, cell.setting, str(cell.seed)] for cell in cells]
    to = console()
    show_table(to, (["id", "method", "task", "setting", "seed"], rows), title=study.title)
    say(to, f"{len(cells)} runs; they would be in {folder / 'runs'}")


def _command() -> str:
    """This one, to give again."""
    return shlex.join(["stackelberg", *sys.argv[1:]])
