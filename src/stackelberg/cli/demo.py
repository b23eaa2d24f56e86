"""`stackelberg demo`: five methods on a small made-up task, in about two minutes, without a network or a GPU."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from .app import app
from .compare import INTERRUPTED

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

    from ..studies.running import Told
    from ..studies.store import Store

NEEDED = ("accelerate", "jinja2", "matplotlib", "scipy", "sklearn", "tokenizers", "transformers", "yaml")


@app.command(epilog="For example: stackelberg demo --seeds 5 --out my-demo")
def demo(
    out: Annotated[Path, typer.Option(help="Its folder; the same one again goes on.")] = Path("stackelberg-demo"),
    seeds: Annotated[int, typer.Option(help="How often every method is trained.")] = 3,
    model: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="A pretrained encoder instead of the small untrained one: much slower."),
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Runs at once; one a core without.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Nothing but the result.")] = False,
) -> None:
    """Compare plain, VAT, SMART, FreeLB and SALT on a small made-up task, and write a report.

    What it prints is what came out, on data that a program made: it shows how the library is used, not which method is
    best. Stopped, the same command goes on where it was; a finished one prints its table again.
    """
    _check(jobs)
    from ..analysis.comparison_report import score_table, sentences
    from ..analysis.figure_style import styled
    from ..analysis.reliability_diagram import save_figure
    from ..demo.folder import MODEL, PICTURE, REPORT, STUDY, begin
    from ..demo.outcome import comparison
    from ..demo.picture import picture
    from ..demo.plan import pretrained, study_of
    from ..reports import write_report
    from ..studies.local import LocalCrew, cores, visible_gpus
    from ..studies.running import run
    from ..studies.store import Store
    from ._tables import console, say, show_table

    study = study_of(out, seeds, model)
    begin(out)
    store = Store.begin(study, out / STUDY)
    gpus = () if model is None else visible_gpus()  # for the small one a GPU would only be slower
    at_once = jobs or len(gpus) or cores()
    crew = LocalCrew(store, jobs=at_once, cpus=study.cpus, gpus=gpus, measures={})
    try:
        with _progress(store, quiet) as told:
            run(study, store, crew, told)
    except KeyboardInterrupt:
        typer.echo("stopped; the same command goes on from here", err=True)
        raise typer.Exit(INTERRUPTED) from None
    found = comparison(store, seeds)
    to = console()
    show_table(to, score_table(found), title=study.title)
    for said in (*sentences(found), *study.remarks):
        say(to, f"· {said}")
    write_report([out / STUDY], out / REPORT)
    with styled():
        save_figure(picture(found, study.title), out / PICTURE)
    for line in _next(store, out, out / MODEL if model is None else pretrained(model)):
        to.print(line, markup=False, soft_wrap=True)  # in one piece, for copying


def _check(jobs: int | None) -> None:
    from ..errors import SettingError, needs

    if jobs is not None and jobs < 1:
        raise SettingError(f"--jobs {jobs} should be 1 or more")
    for package in NEEDED:
        with needs(package, extra="demo"):
            __import__(package)


def time_left() -> ProgressColumn:
    """The time until a task is over, as it was reckoned when a run began last, counted down."""
    from rich.progress import ProgressColumn, Task
    from rich.text import Text

    from ..runs.progress import clock

    class TimeLeft(ProgressColumn):
        def render(self, task: Task) -> Text:
            until = task.fields.get("until")
            return Text("" if until is None else f"about {clock(max(until - monotonic(), 0.0))} left")

    return TimeLeft()


@contextmanager
def _progress(store: Store, quiet: bool) -> Iterator[Callable[[Told], None]]:
    """A bar on standard error, with the time left; lines where it is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from ..runs.progress import clock
    from ..studies.looking import seconds_left

    to = Console(stderr=True, highlight=False, quiet=quiet, soft_wrap=True)
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("runs"),
        TimeElapsedColumn(),
        time_left(),
    )
    with Progress(*columns, console=to, disable=quiet or not to.is_terminal) as bar:
        task = bar.add_task("", total=None)

        def told(news: Told) -> None:
            bar.update(task, completed=news.done, total=news.total)
            seconds = seconds_left(store.results()) if news.what == "begun" else None
            about = "" if seconds is None else f"about {clock(seconds)} left"
            if seconds is not None:
                bar.update(task, until=monotonic() + seconds)
            name = "" if news.cell is None else f"{news.cell.method}, seed {news.cell.seed}, "
            said = f"{name}{news.what}"
            if news.words or not to.is_terminal:
                its = [f"{news.done} of {news.total} runs", said, news.words, about]
                to.print("; ".join(part for part in its if part), markup=False)

        yield told


def _next(store: Store, out: Path, model: Path) -> list[str]:
    """Where the report is, and commands that work from here."""
    from ..demo.folder import DEV, REPORT
    from ..demo.outcome import first_run

    salt = first_run(store, "salt")
    commands = [["stackelberg", "predict", str(salt), str(out / DEV)]] if salt else []
    commands += [
        ["stackelberg", "doctor", str(model)],
        ["stackelberg", "train", "--train", "YOUR.tsv", "--model", "YOUR-MODEL", "--method", "salt"],
    ]
    return [
        "",
        f"The report: {(out / REPORT).resolve()}",
        "What to try next:",
        *(f"  {shlex.join(command)}" for command in commands),
    ]
