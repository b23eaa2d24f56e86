"""What was measured of runs beside their score: robustness, probing, calibration where a study asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stackelberg.analysis.comparison import together
from stackelberg.analysis.statistics import LEVEL, Interval, Spread, mean_interval, spread
from stackelberg.extras import need
from stackelberg.reports.evidence import Evidence
from stackelberg.reports.groups import Arm, Group, baseline_of

KINDS = ("robustness/", "probing/")
LOWER_IS_BETTER = ("ece", "ece_width", "mce", "brier", "nll")


@dataclass(frozen=True, slots=True)
class Measured:
    """One figure of a method.

    Args:
        arm: whose.
        name: among the figures of its runs.
        score: over seeds.
        baseline: the method that it is compared with; None of that method itself.
        difference: of the seeds that both have, the method's less the baseline's; None where there is none.
        interval: of the difference, seeds drawn anew; None with one seed, or without spread.
        p: of no difference, corrected once it has gone through `judged`; None likewise.
        shown: whether that is below 1 − level.
    """

    arm: Arm
    name: str
    score: Spread
    baseline: str | None = None
    difference: float | None = None
    interval: Interval | None = None
    p: float | None = None
    shown: bool = False

    @property
    def spoken(self) -> str:
        """Its name, as tables have it."""
        return self.name.upper() if self.name in ("ece", "mce") else self.name.replace("/", " ").replace("_", " ")


def measured_of(evidence: Evidence, arms: Sequence[Arm]) -> list[Measured]:
    """Every such figure of every method, name by name."""
    there = [name for arm in arms for each in arm.runs for name in each.figures]
    names = [name for name in dict.fromkeys(there) if name.startswith(KINDS) or name in evidence.metrics]
    return [
        _measured(evidence, arm, name, [other for other in arms if other.task == arm.task])
        for task in dict.fromkeys(arm.task for arm in arms)
        for name in names
        for arm in arms
        if arm.task == task and arm.runs[0].result.kind == "nlu" and _of_seeds(arm, name)
    ]


def judged(groups: Sequence[Group], measured: Sequence[Measured]) -> tuple[list[Group], list[Measured]]:
    """All comparisons of a report as one family: every p is corrected for the number of them."""
    compared = [each.comparison for each in groups if each.comparison is not None]
    comparisons, corrected = together(compared, [each.p for each in measured if each.p is not None])
    first, second = iter(comparisons), iter(corrected)
    found = [each if each.comparison is None else replace(each, comparison=next(first)) for each in groups]
    said = [each if each.p is None else _with(each, next(second)) for each in measured]
    return found, said


def _measured(evidence: Evidence, arm: Arm, name: str, of_task: Sequence[Arm]) -> Measured:
    ours = _of_seeds(arm, name)
    score = spread(list(ours.values()))
    like = [other for other in of_task if other.setting in (arm.setting, "")]
    baseline = baseline_of(evidence, like)
    if arm.method == baseline:
        return Measured(arm, name, score)
    theirs = _of_seeds(next(other for other in like if other.method == baseline), name)
    apart = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    if not apart:
        return Measured(arm, name, score, baseline)
    if len(apart) < 2 or not np.ptp(apart):
        return Measured(arm, name, score, baseline, float(np.mean(apart)))
    p = float(need("scipy.stats").ttest_1samp(apart, 0.0).pvalue)
    interval = mean_interval(apart, level=LEVEL, method="t")
    return Measured(arm, name, score, baseline, float(np.mean(apart)), interval, p)


def _of_seeds(arm: Arm, name: str) -> dict[int, float]:
    """Seed to figure."""
    values = {each.result.seed: each.figures[name] for each in arm.runs if name in each.figures}
    return {seed: value for seed, value in values.items() if np.isfinite(value)}


def _with(measured: Measured, p: float) -> Measured:
    return replace(measured, p=p, shown=p < 1 - LEVEL)
