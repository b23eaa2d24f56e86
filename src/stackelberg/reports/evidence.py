"""What a report is made from: the runs of study folders, and of any other folders that have runs in them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from stackelberg.decoding import decode, listing
from stackelberg.errors import StackelbergError
from stackelberg.extras import need
from stackelberg.nlu.recipe import Recipe
from stackelberg.nmt.recipe import TranslationRecipe
from stackelberg.reports.errors import ReportError
from stackelberg.runs.folder import RECIPE, RESULT
from stackelberg.studies.arms import AnyRun, opened
from stackelberg.studies.cell import AnyRecipe
from stackelberg.studies.result import Result
from stackelberg.studies.shows import Show
from stackelberg.studies.store import Store
from stackelberg.studies.study import Study

STUDY = "study.yaml"
DEEP = 5  # folders below the one that is given
ORDER = ("plain", "adv", "freeat", "freelb", "r3f", "rdrop", "vat", "smart", "salt-adv", "salt")  # the paper's, widened
NOT_COMPARED = ("seed", "method", "settings")


@dataclass(frozen=True, slots=True)
class Evidence:
    """Runs, and what is asked of them.

    Args:
        title: of the study, or of what the folders are.
        results: every run, finished or not, in the order of the studies.
        runs: the finished ones, by id.
        shows: the tables and figures that a study is made for.
        baseline: the method that differences are taken from; None for `plain`, or the first.
        metrics: that a study asks for, by their names among figures.
        remarks: what a reader must know.
        folders: that were given.
    """

    title: str
    results: tuple[Result, ...]
    runs: Mapping[str, AnyRun]
    shows: tuple[Show, ...]
    baseline: str | None
    metrics: tuple[str, ...]
    remarks: tuple[str, ...]
    folders: tuple[Path, ...]


def gather(folders: Sequence[Path], title: str | None = None) -> Evidence:
    """Everything that the folders have.

    Args:
        folders: of studies, of runs, or with such folders in them.
        title: of the report; the study's own, or the first folder's name, when None.
    """
    studies: list[Study] = []
    results: dict[str, Result] = {}
    remarks: list[str] = []
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise ReportError(f"{folder} is not a folder; {listing(folder.parent)}")
        if (folder / STUDY).is_file():
            with closing(Store(folder)) as store:
                studies.append(store.study)
                found, no_longer = _asked_for(store.results(), store.study)
                remarks += [f"{folder}: {no_longer}"] * bool(no_longer)
        else:
            found, left_out = _plain_runs(folder)
            remarks += left_out
        results.update({each.id: each for each in found})
    if not results:
        raise ReportError(f"{_named(folders)} no run: a run's folder has a {RECIPE}; {listing(Path(folders[0]))}")
    runs, broken = opened(list(results.values()))
    if not runs:
        states = ", ".join(f"{each.method} on {each.task} is {each.state}" for each in list(results.values())[:3])
        raise ReportError(f"{_named(folders)} no finished run ({states}); a report needs at least one")
    return Evidence(
        title=title or " and ".join(study.title for study in studies) or Path(folders[0]).resolve().name,
        results=tuple(results.values()),
        runs=runs,
        shows=tuple(show for study in studies for show in study.shows),
        baseline=next((study.baseline for study in studies if study.baseline), None),
        metrics=tuple(dict.fromkeys(name for study in studies for name in study.metrics)),
        remarks=(*(said for study in studies for said in study.remarks), *remarks, *broken),
        folders=tuple(map(Path, folders)),
    )


def _named(folders: Sequence[Path]) -> str:
    return f"{' and '.join(map(str, folders))} {'have' if len(folders) > 1 else 'has'}"


def _asked_for(results: Sequence[Result], study: Study) -> tuple[list[Result], str]:
    """Those of the study as it was asked for last, which its own table has too, and a sentence on the others."""
    found = [each for each in results if study.has(each.method, each.task, each.setting, each.seed)]
    more = len(results) - len(found)
    if not more:
        return found, ""
    return found, (
        f"{more} more run{'s' * (more > 1)}, which the study did not ask for when it was run last, "
        f"{'are' if more > 1 else 'is'} left out; run it with all methods, tasks and seeds to have them here."
    )


def _plain_runs(folder: Path) -> tuple[list[Result], list[str]]:
    """Runs that belong to no study; their settings are what differs between runs of one method on one task."""
    recipes: dict[Path, AnyRecipe] = {}
    left_out = []
    for place in _run_folders(folder):
        try:
            recipes[place] = _recipe(place / RECIPE)
        except StackelbergError as error:
            left_out.append(f"{place} is left out: {error}.")
    results = [
        Result(
            id=f"{recipe.key()}-{recipe.seed}",
            kind="nmt" if isinstance(recipe, TranslationRecipe) else "nlu",
            method=recipe.method,
            task=_task(recipe),
            setting="",
            seed=recipe.seed,
            state="finished" if (place / RESULT).is_file() else "waiting",
            folder=place,
        )
        for place, recipe in recipes.items()
    ]
    results = [replace(each, setting=_setting(each, results, recipes)) for each in results]
    # seeds of one method follow each other, whatever their folders are called
    return sorted(results, key=lambda each: (each.task, _order(each.method), each.setting, each.seed)), left_out


def _run_folders(folder: Path, deep: int = DEEP) -> Iterator[Path]:
    if (folder / RECIPE).is_file():
        yield folder
    elif deep:
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            if entry.is_dir() and not entry.name.startswith("."):
                yield from _run_folders(folder / entry.name, deep - 1)


def _recipe(path: Path) -> AnyRecipe:
    said = need("yaml").safe_load(decode(path))
    translation = isinstance(said, dict) and {"source", "target"} <= set(said)
    return TranslationRecipe.load(path) if translation else Recipe.load(path)


def _task(recipe: AnyRecipe) -> str:
    if isinstance(recipe, TranslationRecipe):
        corpus = "synthetic" if recipe.synthetic else Path(recipe.data or recipe.hub or "").name
        pair = f"{recipe.source}-{recipe.target}"
        return corpus if corpus.endswith(pair) else f"{corpus}-{pair}"
    return recipe.task or Path(recipe.train or "").stem


def _setting(one: Result, results: Sequence[Result], recipes: Mapping[Path, AnyRecipe]) -> str:
    alike = [each for each in results if (each.method, each.task, each.kind) == (one.method, one.task, one.kind)]
    given = [_flat(recipes[each.folder]) for each in alike]
    mine = _flat(recipes[one.folder])
    names = dict.fromkeys(name for each in given for name in each)
    varied = [name for name in names if len({repr(each.get(name)) for each in given}) > 1]
    return " ".join(f"{name}={_short(mine[name])}" for name in varied if name in mine)


def _flat(recipe: AnyRecipe) -> dict[str, Any]:
    its = {f.name: getattr(recipe, f.name) for f in fields(recipe) if f.name not in (*NOT_COMPARED, *recipe.ABOUT)}
    return {**its, **recipe.settings}


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else Path(value).name if isinstance(value, str) else str(value)


def _order(method: str) -> int:
    return ORDER.index(method) if method in ORDER else len(ORDER)
