"""The runs of a report, by what is compared with what: one task, and one setting where there are several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from stackelberg.analysis.comparison import Comparison, Outcome, compare_scores, judged_scores
from stackelberg.analysis.playing import machine_of, outcomes_of, subsets
from stackelberg.errors import StackelbergError
from stackelberg.nlu.recipe import Recipe
from stackelberg.nmt.run import MAIN, TranslationRun
from stackelberg.reports.evidence import Evidence, score_of, split_of, task_of

if TYPE_CHECKING:
    from stackelberg.nlu.run import Run
    from stackelberg.studies.store import Result

    AnyRun = Run | TranslationRun


@dataclass(frozen=True)
class Played:
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
    """A method in one setting on one task: runs that differ in their seed alone."""

    task: str
    title: str
    method: str
    setting: str
    runs: tuple[Played, ...]

    @property
    def name(self) -> str:
        """In a table's row."""
        return f"{self.method}, {self.setting}" if self.setting else self.method

    @property
    def of_the_task_itself(self) -> bool:
        """And not of a file of somebody's own that is called like one."""
        recipe = self.runs[0].run.recipe
        return not isinstance(recipe, Recipe) or recipe.task is not None


@dataclass(frozen=True)
class Group:
    """What is compared with each other.

    Args:
        task: its name.
        title: its name as tables have it, with the setting where there are several.
        arms: the methods.
        comparison: of them; None where there is nothing to compare, or where it cannot be.
        remarks: what a reader must know: subsets, or why nothing is compared.
    """

    task: str
    title: str
    arms: tuple[Arm, ...]
    comparison: Comparison | None
    remarks: tuple[str, ...] = ()


def arms_of(evidence: Evidence) -> list[Arm]:
    """Every method in every setting on every task, in the order of the studies."""
    found: dict[tuple[str, str, str], list[Played]] = {}
    along = {show.along for show in evidence.shows if show.what == "sweep" and show.along}
    titles: dict[str, str] = {}
    for result in evidence.finished:
        task, title = task_of(result)
        titles[task] = title
        setting = f"{next(iter(along))}={result.setting}" if len(along) == 1 and result.setting else result.setting
        played = Played(result, evidence.runs[result.id])
        found.setdefault((task, result.method, setting), []).append(played)
    tasks = list(dict.fromkeys(task for task, _, _ in found))
    return [
        Arm(task, titles[task], method, setting, tuple(runs))
        for wanted in tasks
        for (task, method, setting), runs in found.items()
        if task == wanted
    ]


def score_label(arm: Arm) -> str:
    """Of an axis."""
    run = arm.runs[0].run
    return (
        ("BLEU of tokens" if run.recipe.score == "tokenized" else "sacreBLEU")
        if isinstance(run, TranslationRun)
        else "score (%)"
    )


def unvaried(arms: Sequence[Arm]) -> list[Arm]:
    """Those of tasks that are played in one setting alone, by which methods can be told apart in a figure."""
    settings: dict[str, set[str]] = {}
    for arm in arms:
        settings.setdefault(arm.task, set()).add(arm.setting)
    return [arm for arm in arms if len(settings[arm.task]) == 1]


def groups_of(evidence: Evidence, arms: Sequence[Arm]) -> list[Group]:
    """All comparisons, p not yet corrected for their number."""
    made = []
    for task in dict.fromkeys(arm.task for arm in arms):
        its = [arm for arm in arms if arm.task == task]
        for setting in dict.fromkeys(arm.setting for arm in its):
            made.append(_group(evidence, [arm for arm in its if arm.setting == setting], its))
    return made


def baseline_of(evidence: Evidence, arms: Sequence[Arm]) -> str:
    """The method that those of one task are compared with."""
    methods = [arm.method for arm in arms]
    if evidence.baseline in methods:
        return str(evidence.baseline)
    return "plain" if "plain" in methods else methods[0]


def _group(evidence: Evidence, arms: list[Arm], of_task: Sequence[Arm]) -> Group:
    """A method that has no such setting is the baseline of every setting, or else compared among its like."""
    title, setting = arms[0].title, arms[0].setting
    baseline = baseline_of(evidence, of_task)
    if baseline not in [arm.method for arm in arms]:
        arms = [*[arm for arm in of_task if arm.method == baseline and not arm.setting], *arms]
    baseline = baseline_of(evidence, arms)
    name = f"{title}, {setting}" if setting else title
    first = arms[0].runs[0].run
    remarks = () if isinstance(first, TranslationRun) else tuple(subsets(first))
    if len(arms) < 2:
        return Group(arms[0].task, name, tuple(arms), None, remarks)
    try:
        return Group(arms[0].task, name, tuple(arms), _compared(arms, name, baseline), remarks)
    except (StackelbergError, OSError, ValueError, KeyError) as error:
        return Group(arms[0].task, name, tuple(arms), None, (*remarks, f"There are no differences here: {error}."))


def _compared(arms: Sequence[Arm], title: str, baseline: str) -> Comparison:
    played = [each for arm in arms for each in arm.runs]
    translations = [each.run for each in played if isinstance(each.run, TranslationRun)]
    if translations:
        from stackelberg.analysis.translating import bleu_scores

        outcomes = [
            Outcome(
                method=run.recipe.method,
                seed=run.recipe.seed,
                key=run.recipe.key(),
                folder=str(run.folder),
                predictions={},
                seconds_per_step=run.figures.get("seconds_per_step"),
                machine=machine_of(run.folder),
            )
            for run in translations
        ]
        first = translations[0]
        scores = bleu_scores(translations, outcomes, split_of(first))
        return compare_scores(scores, [MAIN[first.recipe.score]], title=title, baseline=baseline)
    runs = [each.run for each in played if not isinstance(each.run, TranslationRun)]
    found, judged = outcomes_of(runs, Path(runs[0].folder.anchor))
    metrics = runs[0].task.metrics
    return compare_scores(judged_scores(found, judged, metrics), metrics, title=title, baseline=baseline)
