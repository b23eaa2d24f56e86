"""`stackelberg train`: from a task's name, a recipe or a file to a run folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ._recipes import recipe_among
from .app import app

KEY = 8  # letters of a recipe's key in a folder's name
INTERRUPTED = 130  # what a shell reports of a command that Ctrl-C ended


@app.command()
def train(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE] [KEY=VALUE]...", help="A task (rte), a recipe (glue/rte, my.yaml), and changes to it."
        ),
    ] = None,
    train_file: Annotated[
        str | None, typer.Option("--train", help="Your own training rows: .csv, .tsv or .jsonl.")
    ] = None,
    dev_file: Annotated[
        str | None, typer.Option("--dev", help="Rows that choose the best model; held out of --train without.")
    ] = None,
    test_file: Annotated[str | None, typer.Option("--test", help="Rows to predict on later.")] = None,
    text: Annotated[str | None, typer.Option(help="Your files' column of the text.")] = None,
    pair: Annotated[str | None, typer.Option(help="... of the second text, if there is one.")] = None,
    label: Annotated[str | None, typer.Option(help="... of the label.")] = None,
    kind: Annotated[str | None, typer.Option(help="What your labels are: classes or score.")] = None,
    data: Annotated[str | None, typer.Option(help="Folder that the task is in; the hub without.")] = None,
    model: Annotated[str | None, typer.Option(help="Folder, or name on the hub.")] = None,
    method: Annotated[str | None, typer.Option(help="plain, salt, vat, smart, freelb, ...")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the method: weight=2.0.")
    ] = None,
    form: Annotated[str | None, typer.Option(help="tuned (ours) or paper (word for word).")] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything that is drawn.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the training rows.")] = None,
    max_steps: Annotated[int | None, typer.Option(help="Optimizer steps, instead of epochs.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows at once.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="At its highest.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Tokens that rows are cut to.")] = None,
    precision: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; one in runs/ without.")] = None,
    tensorboard: Annotated[bool, typer.Option(help="Write for TensorBoard.")] = True,
    keep_checkpoints: Annotated[
        bool, typer.Option("--keep-checkpoints", help="Keep them when the run is finished.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but the result.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON.")] = False,
) -> None:
    """Fine-tune a model with adversarial regularization.

    stackelberg train rte --data .data/nlu --model my/encoder --method salt

    A run that was interrupted goes on when the same command is given again; one that is finished is not made twice.
    """
    from ..nlu.recipe import Recipe
    from ..nlu.run import Run
    from ..nmt.recipe import TranslationRecipe
    from ..nmt.recipe_file import is_translation
    from ..nmt.run import TranslationRun
    from ..runs.folder import RECIPE, resuming
    from ._translation import result as result_of_translation

    source, overrides = recipe_among(what or [])
    given: dict[str, Any] = {
        "train": train_file,
        "dev": dev_file,
        "test": test_file,
        "text": text,
        "pair": pair,
        "label": label,
        "kind": kind,
        "data": data,
        "model": model,
        "method": method,
        "form": form,
        "seed": seed,
        "epochs": epochs,
        "max_steps": max_steps,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "max_length": max_length,
        "precision": precision,
    }
    changes = [*overrides, *(f"settings.{said}" for said in settings or [])]
    recipe: Any
    run: Any
    if translates := is_translation(source):
        recipe = TranslationRecipe.load(source, changes, **given)
    else:
        recipe = Recipe.load(source, changes, **given)
    folder = out or default_folder(recipe)
    how: dict[str, Any] = {"quiet": quiet, "tensorboard": tensorboard, "keep_checkpoints": keep_checkpoints}
    try:
        run = (TranslationRun if translates else Run).train(recipe, folder, **how)
    except KeyboardInterrupt as error:
        flags = " --no-tensorboard" * (not tensorboard) + " --keep-checkpoints" * keep_checkpoints
        begun = (folder / RECIPE).is_file()
        goes_on = f"go on with: {resuming(folder)}{flags}" if begun else "nothing was trained yet; give it again"
        typer.echo(f"interrupted; {goes_on}", err=True)
        raise typer.Exit(INTERRUPTED) from error
    if as_json:
        from ..runs.records import finite

        typer.echo(json.dumps({"folder": str(folder), **finite(run.figures)}, indent=2))
    else:
        typer.echo(result_of_translation(run) if translates else result(run))


def result(run: Any) -> str:
    """A finished run's figures, as tables show them."""
    from .figures import shown

    figures = dict(run.figures)
    steps, best, each = (figures.pop(name) for name in ("steps", "best_step", "seconds_per_step"))
    seconds = figures.pop("seconds")
    memory = f", {figures.pop('peak_gib'):.1f} GiB" if "peak_gib" in figures else ""
    return "\n".join(
        [
            f"{run.task.title}, {' and '.join(run.judged_by)}: {run.recipe.method}, seed {run.recipe.seed}",
            *shown(figures),
            f"best at step {best:,.0f} of {steps:,.0f}; {each:.3g} s a step, {seconds:.0f} s in all{memory}",
            f"in {run.folder}",
        ]
    )


def default_folder(recipe: Any) -> Path:
    """Where a run goes that was given no folder: its own, the same for the same recipe."""
    from ._translation import name_of

    name = name_of(recipe) if hasattr(recipe, "target") else recipe.task or Path(recipe.train).stem
    return Path("runs") / f"{name}-{recipe.method}-seed{recipe.seed}-{recipe.key()[:KEY]}"
