"""Finished runs by what differs between them: a method in one setting on one task, played with several seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from stackelberg.analysis.playing import split_of
from stackelberg.errors import StackelbergError
from stackelberg.nlu.catalogue import find_task
from stackelberg.nlu.recipe import Recipe
from stackelberg.nlu.run import Run
from stackelberg.nmt.run import MAIN, TranslationRun
from stackelberg.studies.result import Result

AnyRun = Run | TranslationRun


@dataclass(frozen=True)
class Finished:
    """A finished run, and what it is in its study."""

    result: Result
    run: AnyRun

    @cached_property
    def figures(self) -> Mapping[str, float]:
        """The run's own, and what was measured of it besides."""
        return {**self.run.figures, **self.result.figures}

    @property
    def score(self) -> float:
        """The one that methods are compared by, as a fraction."""
        return score_of(self.run)


@dataclass(frozen=True)
class Arm:
    """A method in one setting on one task: runs that differ in their seed alone.

    Args:
        task: its name in the catalogue, or else in the study.
        title: its name in tables.
        method: its name.
        setting: in words; empty where there is one only, or where settings make no difference to the method.
        runs: of its seeds.
    """

    task: str
    title: str
    method: str
    setting: str
    runs: tuple[Finished, ...]

    @property
    def name(self) -> str:
        """In a table's row."""
        return f"{self.method}, {self.setting}" if self.setting else self.method

    @property
    def kind(self) -> str:
        """`nlu` or `nmt`."""
        return self.runs[0].result.kind

    @property
    def score_name(self) -> str:
        """The score's name among the figures of its runs."""
        run = self.runs[0].run
        return main_figure(run) if isinstance(run, TranslationRun) else "score"

    @property
    def of_the_task_itself(self) -> bool:
        """And not of a file of somebody's own that is called like one."""
        recipe = self.runs[0].run.recipe
        return not isinstance(recipe, Recipe) or recipe.task is not None

    def figures(self, name: str) -> dict[int, float]:
        """Seed to a figure, where it is finite."""
        values = {each.result.seed: each.figures.get(name, math.nan) for each in self.runs}
        return {seed: value for seed, value in values.items() if math.isfinite(value)}


def opened(results: Sequence[Result]) -> tuple[dict[str, AnyRun], list[str]]:
    """The finished runs by id, and a sentence for each that cannot be used."""
    runs: dict[str, AnyRun] = {}
    broken = []
    for each in results:
        if each.state != "finished":
            continue
        try:
            run: AnyRun = (TranslationRun if each.kind == "nmt" else Run).open(each.folder.absolute())
            said = "" if math.isfinite(score_of(run)) else "it has no finite score"
        except (StackelbergError, OSError, ValueError) as error:
            said = str(error)
        if said:
            broken.append(f"{each.method} on {each.task}, seed {each.seed}, cannot be used and is left out: {said}.")
        else:
            runs[each.id] = run
    return runs, broken


def arms_of(results: Sequence[Result], runs: Mapping[str, AnyRun], along: str | None = None) -> list[Arm]:
    """Every method in every setting on every task, in the order of the results.

    Args:
        results: of runs.
        runs: those that are finished, by id.
        along: what all settings are values of, to be said with them.
    """
    found: dict[tuple[str, str, str], list[Finished]] = {}
    titles: dict[str, str] = {}
    for result in results:
        if result.id not in runs:
            continue
        task, title = _task_of(result)
        titles[task] = title
        setting = f"{along}={result.setting}" if along and result.setting else result.setting
        found.setdefault((task, result.method, setting), []).append(Finished(result, runs[result.id]))
    tasks = list(dict.fromkeys(task for task, _, _ in found))
    return [
        Arm(task, titles[task], method, setting, tuple(its))
        for wanted in tasks
        for (task, method, setting), its in found.items()
        if task == wanted
    ]


def unvaried(arms: Sequence[Arm]) -> list[Arm]:
    """Those of tasks that are played in one setting alone, by which methods can be told apart in a figure."""
    settings: dict[str, set[str]] = {}
    for arm in arms:
        settings.setdefault(arm.task, set()).add(arm.setting)
    return [arm for arm in arms if len(settings[arm.task]) == 1]


def score_of(run: AnyRun) -> float:
    """What methods are compared by, as a fraction; nan where a run has none."""
    if isinstance(run, TranslationRun):
        return run.figures.get(main_figure(run), math.nan) / 100
    return run.figures.get("score", math.nan)


def main_figure(run: TranslationRun) -> str:
    """The BLEU that its recipe asks for, by its name among the figures."""
    return f"{split_of(run)}/{MAIN[run.recipe.score]}"


def _task_of(result: Result) -> tuple[str, str]:
    """A task's name, and that in tables."""
    try:
        task = find_task(result.task)
    except StackelbergError:
        return result.task, result.task
    return task.name, task.title
