"""`stackelberg compare`: several methods, several seeds, one table that says no more than it shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import _outputs
from .app import app

if TYPE_CHECKING:
    from ..analysis.comparison import Comparison
    from ..analysis.playing import Progress

INTERRUPTED = 130  # as a shell has it


@app.command(
    epilog="For example: stackelberg compare --methods plain,vat,salt --task rte --model ./my-model --seeds 5 "
    "--set salt.weight=2.0 epochs=3 --out rte-comparison",
)
def compare(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE] [KEY=VALUE]...", help="A task (rte), a recipe (nmt/multi30k-en-de), and changes to it."
        ),
    ] = None,
    methods: Annotated[str, typer.Option(help="Names, with commas between them.")] = "plain,vat,smart,freelb,salt",
    task: Annotated[str | None, typer.Option(help="A task, with our recipe for it where we have one.")] = None,
    recipe: Annotated[str | None, typer.Option(help="A recipe by name, or a YAML file, instead of RECIPE.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder that the task is in; left out, the hub.")] = None,
    model: Annotated[str | None, typer.Option(help="A folder, or a name on the Hugging Face hub.")] = None,
    seeds: Annotated[str, typer.Option(help="How many (5), or which (3,7,11).")] = "5",
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="METHOD.KEY=VALUE", help="A setting of one method.")
    ] = None,
    baseline: Annotated[str | None, typer.Option(help="What differences are taken from; plain if it plays.")] = None,
    out: Annotated[
        Path, typer.Option(help="Folder of all runs; the same one again goes on.", callback=_outputs.folder)
    ] = Path("comparison"),
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress of each run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of tables.")] = False,
) -> None:
    """Train each method with each seed, then compare: spread, paired differences with intervals, cost, calibration.

    Translation recipes are compared by BLEU on the test set.

    Stopped or killed, the same command goes on where it was; nothing is trained twice. Writes comparison.json and
    comparison.md into the folder.
    """
    from ..analysis.comparison_report import as_data, markdown
    from ..analysis.playing import comparison_of, plan, play, seeds_of
    from ..errors import SettingError, one_of
    from ..nlu.run import Run
    from ..nmt.recipe_file import is_translation
    from ..nmt.run import TranslationRun
    from ..storage import write_whole
    from ._recipes import recipe_among

    names = [name.strip() for name in methods.split(",") if name.strip()]
    if baseline is not None:  # known to be wrong before anything is trained
        one_of("--baseline", baseline, names)
    named, changes = recipe_among(what or [])
    if named is not None and recipe is not None:
        raise SettingError(f"{named!r} and --recipe {recipe!r} are two recipes; give one")
    source = named or recipe or task
    recipes = plan(
        source,
        names,
        seeds_of(seeds),
        overrides=changes,
        settings=set_ or [],
        task=task,
        data=None if data is None else str(data),
        model=model,
    )
    kind: Any = TranslationRun if is_translation(source) else Run
    try:
        played = play(recipes, out, lambda its, folder: kind.train(its, folder, quiet=quiet or as_json), _told)
    except KeyboardInterrupt:
        typer.echo("stopped; the same command goes on from here", err=True)
        raise typer.Exit(INTERRUPTED) from None
    found = comparison_of(played, out, baseline or ("plain" if "plain" in names else names[0]))
    document = json.dumps(as_data(found), indent=2, ensure_ascii=False) + "\n"
    write_whole(out / "comparison.json", document)
    write_whole(out / "comparison.md", markdown(found))
    if as_json:
        typer.echo(document, nl=False)
    else:
        _print(found)


def _told(progress: Progress) -> None:
    left = "" if progress.seconds_left is None else f"; about {_duration(progress.seconds_left)} left"
    typer.echo(
        f"run {progress.number} of {progress.total}: {progress.method}, seed {progress.seed}{left}",
        err=True,
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _print(found: Comparison) -> None:
    from ..analysis.comparison_report import caption, difference_table, method_note, score_table, sentences
    from ._tables import console, say, show_table

    to = console()
    show_table(to, score_table(found), title=found.title)
    if found.pairs:
        show_table(to, difference_table(found), title=caption(found))
    for said in sentences(found):
        say(to, f"· {said}")
    say(to, method_note(found), style="dim")
