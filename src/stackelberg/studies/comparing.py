"""What is compared with what, and how many comparisons there are in all: the same for a study's table and a report.

A task's score is compared over rows and seeds, as `stackelberg compare` does it, in each setting. What is measured
besides (robustness, probing) and what a study's `metrics` ask for is compared over seeds, by Student's t of the paired
differences. Holm's correction is over all of them. Costs are measured and not tested.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from stackelberg.analysis.comparison import Comparison, together
from stackelberg.analysis.playing import compared as compared_runs
from stackelberg.analysis.playing import remarks_of
from stackelberg.analysis.statistics import LEVEL, Interval, Spread, mean_interval, spread
from stackelberg.errors import StackelbergError
from stackelberg.extras import need
from stackelberg.studies.arms import Arm
from stackelberg.studies.figures import UNTESTED

KINDS = ("robustness/", "probing/")
SPELT = ("ece", "mce", "nll", "mse")


@dataclass(frozen=True)
class Group:
    """What is compared with each other: one task, and one setting where there are several.

    Args:
        task: its name.
        title: its name as tables have it, with the setting where there are several.
        arms: the methods.
        comparison: of their scores; None where there is nothing to compare, or where it cannot be.
        remarks: what a reader must know: subsets, or why nothing is compared.
    """

    task: str
    title: str
    arms: tuple[Arm, ...]
    comparison: Comparison | None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Measured:
    """One figure of a method that is not its score.

    Args:
        arm: whose.
        name: among the figures of its runs.
        score: over seeds.
        baseline: the method that it is compared with; None of that method itself.
        seeds: that both have.
        difference: of those, the method's less the baseline's; None where there is none.
        interval: of the difference, seeds drawn anew; None with one seed, or without spread.
        p: of no difference, corrected for all comparisons; None likewise.
        shown: whether that is below 1 − level.
    """

    arm: Arm
    name: str
    score: Spread
    baseline: str | None = None
    seeds: int = 0
    difference: float | None = None
    interval: Interval | None = None
    p: float | None = None
    shown: bool = False

    @property
    def spoken(self) -> str:
        """Its name, as tables have it."""
        return self.name.upper() if self.name in SPELT else self.name.replace("/", " ").replace("_", " ")


def compared(
    arms: Sequence[Arm], baseline: str | None = None, metrics: Sequence[str] = ()
) -> tuple[list[Group], list[Measured]]:
    """All comparisons as one family: every p is corrected for the number of them.

    Args:
        arms: what is there.
        baseline: the method that differences are taken from; None for `plain`, or the first.
        metrics: figures that a study asks for.
    """
    groups, measured = _groups(arms, baseline), _measured_of(arms, baseline, metrics)
    there = [each.comparison for each in groups if each.comparison is not None]
    comparisons, corrected = together(there, [each.p for each in measured if each.p is not None])
    first, second = iter(comparisons), iter(corrected)
    found = [each if each.comparison is None else replace(each, comparison=next(first)) for each in groups]
    said = [each if each.p is None else _with(each, next(second)) for each in measured]
    return found, said


def _groups(arms: Sequence[Arm], baseline: str | None) -> list[Group]:
    made = []
    for task in dict.fromkeys(arm.task for arm in arms):
        its = [arm for arm in arms if arm.task == task]
        for setting in dict.fromkeys(arm.setting for arm in its):
            made.append(_group([arm for arm in its if arm.setting == setting], its, baseline))
    return made


def _baseline(asked: str | None, arms: Sequence[Arm]) -> str:
    """The method that those of one task are compared with."""
    methods = [arm.method for arm in arms]
    if asked in methods:
        return str(asked)
    return "plain" if "plain" in methods else methods[0]


def _group(arms: list[Arm], of_task: Sequence[Arm], asked: str | None) -> Group:
    """A method that has no such setting is the baseline of every setting, or else compared among its like."""
    title, setting = arms[0].title, arms[0].setting
    baseline = _baseline(asked, of_task)
    if baseline not in [arm.method for arm in arms]:
        arms = [*[arm for arm in of_task if arm.method == baseline and not arm.setting], *arms]
    baseline = _baseline(asked, arms)
    name = f"{title}, {setting}" if setting else title
    runs, remarks, comparison = [each.run for arm in arms for each in arm.runs], [], None
    try:
        remarks += remarks_of(runs[0])
        if len(arms) > 1:
            comparison = compared_runs(runs, Path(runs[0].folder.anchor), title=name, baseline=baseline)
    except (StackelbergError, OSError, ValueError, KeyError) as error:  # after days of training this stops no table
        remarks.append(f"There are no differences here: {str(error).removesuffix('.')}.")
    return Group(arms[0].task, name, tuple(arms), comparison, tuple(remarks))


def _measured_of(arms: Sequence[Arm], baseline: str | None, metrics: Sequence[str]) -> list[Measured]:
    """Every such figure of every method, name by name."""
    there = dict.fromkeys(name for arm in arms for each in arm.runs for name in each.figures)
    names = [name for name in there if (name.startswith(KINDS) or name in metrics) and name not in UNTESTED]
    return [
        _measured(arm, name, [other for other in arms if other.task == arm.task], baseline)
        for task in dict.fromkeys(arm.task for arm in arms)
        for name in names
        for arm in arms
        if arm.task == task and name != arm.score_name and arm.figures(name)
    ]


def _measured(arm: Arm, name: str, of_task: Sequence[Arm], asked: str | None) -> Measured:
    ours = arm.figures(name)
    score = spread(list(ours.values()))
    like = [other for other in of_task if other.setting in (arm.setting, "")]
    baseline = _baseline(asked, like)
    if arm.method == baseline:
        return Measured(arm, name, score)
    theirs = next(other for other in like if other.method == baseline).figures(name)
    apart = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    if not apart:
        return Measured(arm, name, score, baseline)
    difference = float(np.mean(apart))
    if len(apart) < 2 or not np.ptp(apart):
        return Measured(arm, name, score, baseline, len(apart), difference)
    p = float(need("scipy.stats").ttest_1samp(apart, 0.0).pvalue)
    interval = mean_interval(apart, level=LEVEL, method="t")
    return Measured(arm, name, score, baseline, len(apart), difference, interval, p)


def _with(measured: Measured, p: float) -> Measured:
    return replace(measured, p=p, shown=p < 1 - LEVEL)
