"""`stackelberg evaluate`: a finished run's metrics on any labelled split or file, and against another run's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import SettingError
from .app import app


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A finished run's folder.")],
    split: Annotated[
        list[str] | None, typer.Option(help="Which; those that judged the run without. May be given again.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Another folder with the task, or a file of labelled rows.")] = None,
    source: Annotated[Path | None, typer.Option(help="Of a translation run: sentences to translate and score.")] = None,
    reference: Annotated[Path | None, typer.Option(help="... and their translations, line by line.")] = None,
    against: Annotated[
        list[Path] | None,
        typer.Option(metavar="RUN", help="Another translation run, to compare with by paired bootstrap."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, fractions; of translations, times 100.")] = False,
) -> None:
    """Print a run's metrics and calibration, or a translation run's BLEU and chrF.

    stackelberg evaluate runs/salt --split test --against runs/plain
    """
    from ..nmt.recipe_file import is_translation
    from ..runs.folder import RECIPE

    if is_translation(run / RECIPE):
        if data is not None:
            raise SettingError(f"--data {data}: {run} translates; give --source FILE --reference FILE")
        _translations(run, split, source, reference, against or [], as_json)
        return
    given = (("--source", source), ("--reference", reference), ("--against", against[0] if against else None))
    for flag, said in given:
        if said is not None and (run / RECIPE).is_file():
            raise SettingError(f"{flag} {said} is for runs of translation, and {run} is one of understanding")
    _understanding(run, split, data, as_json)


def _understanding(run: Path, split: list[str] | None, data: Path | None, as_json: bool) -> None:
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


def _translations(
    run: Path, split: list[str] | None, source: Path | None, reference: Path | None, against: list[Path], as_json: bool
) -> None:
    from ..nmt.corpus import TextFiles
    from ..nmt.written import Written, check_comparable

    trained, others = _opened(run), [_opened(other) for other in against]
    check_comparable([trained, *others])
    found: dict[str, Any] = {}
    if source is not None and reference is not None:
        if split:
            raise SettingError(f"--split {split[0]} and --source {source} are both given; scores are of one of them")
        files = TextFiles(source, reference)
        written = [Written.of_corpus(each, files, source.name) for each in (trained, *others)]
        found[source.name] = (len(written[0].text), written[0].figures(), _held(written))
    elif source is not None or reference is not None:
        given, lacks = ("--source", "--reference") if source is not None else ("--reference", "--source")
        raise SettingError(f"{given} {source or reference} is given without {lacks}; scores need both")
    else:
        for name in split or trained.judged_by:
            scores = trained.scores(name)
            written = [Written.of_split(each, name) for each in (trained, *others)] if others else []
            found[name] = (len(trained.translations(name)), scores, _held(written))
    if as_json:
        typer.echo(json.dumps({name: _data(*each) for name, each in found.items()}, indent=2))
        return
    from ._translation import against_lines, score_lines

    for name, (rows, scores, held) in found.items():
        title = f"{trained.recipe.source}–{trained.recipe.target}, {name}: {rows:,} sentences"
        typer.echo("\n".join([title, *score_lines(scores), *against_lines(run, held, rows)]))


def _opened(folder: Path) -> Any:
    """A finished run of translation."""
    from ..nmt.recipe_file import is_translation
    from ..nmt.run import TranslationRun
    from ..runs.folder import RECIPE

    if (folder / RECIPE).is_file() and not is_translation(folder / RECIPE):
        raise SettingError(f"{folder} is a run of understanding; --against compares runs of translation")
    return TranslationRun.open(folder)


def _held(written: list[Any]) -> list[Any]:
    from ..analysis.translating import against

    return against(written[0], written[1:]) if len(written) > 1 else []


def _data(rows: int, scores: Any, held: Any) -> dict[str, Any]:
    from dataclasses import asdict

    said: dict[str, Any] = {"rows": rows, **{name: score.value for name, score in scores.items()}}
    said["signatures"] = {name: score.signature for name, score in scores.items()}
    return said | ({"against": [{**asdict(each), "shown": each.shown} for each in held]} if held else {})
