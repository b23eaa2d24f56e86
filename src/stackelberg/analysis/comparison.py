"""Methods compared on one task: played with several seeds, judged on the same rows, and no more said than is shown.

What is resampled and how intervals are made is in `stackelberg.analysis.statistics`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

from stackelberg.analysis.scores import Judged, Outcome, Scores, judged_scores
from stackelberg.analysis.statistics import (
    LEVEL,
    RESAMPLES,
    Difference,
    Interval,
    Spread,
    holm,
    mean_interval,
    spread,
)
from stackelberg.errors import one_of


@dataclass(frozen=True, slots=True)
class MethodFigures:
    """One method's figures.

    Args:
        method: its name.
        seeds: that were played.
        scores: of each seed.
        score: their spread.
        ece: spread of the calibration error; None where there are no classes.
        seconds_per_step: None where it was not measured.
        cost: of a step, in steps of `plain` of the same seeds on the same machine; None where there are none.
    """

    method: str
    seeds: tuple[int, ...]
    scores: tuple[float, ...]
    score: Spread
    ece: Spread | None
    seconds_per_step: Spread | None
    cost: float | None


@dataclass(frozen=True, slots=True)
class Pair:
    """A method against the baseline.

    Args:
        method: the one.
        baseline: the other.
        difference: of their scores, the method's less the baseline's; None without a seed that both have.
        p: corrected for all comparisons with the baseline; None where it cannot be had.
        shown: whether the corrected p is below 1 − level.
        least: a smaller difference could not have been shown; None with one seed, or without spread.
        found: the true difference that would be shown in four cases of five; None likewise.
        ece: difference of the calibration errors, mean over the seeds.
        ece_interval: of that difference over seeds.
    """

    method: str
    baseline: str
    difference: Difference | None
    p: float | None
    shown: bool
    least: float | None
    found: float | None
    ece: float | None
    ece_interval: Interval | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of it.

    Args:
        title: the task's.
        metrics: whose mean is the score.
        rows: of each split.
        baseline: what methods are compared with.
        methods: figures of each, in the order that was asked for.
        pairs: each other method against the baseline.
        best: the method that is shown to be better than every other; None where none is.
        level: of the intervals, and 1 − the chance to call a difference shown that is none.
        resamples: of the bootstrap over rows.
        family: how many comparisons p is corrected over.
        outcomes: the runs.
        remarks: what else a reader must know: runs that diverged, subsets.
    """

    title: str
    metrics: tuple[str, ...]
    rows: Mapping[str, int]
    baseline: str
    methods: tuple[MethodFigures, ...]
    pairs: tuple[Pair, ...]
    best: str | None
    level: float
    resamples: int
    family: int
    outcomes: tuple[Outcome, ...]
    remarks: tuple[str, ...] = field(default=())


def compare(
    outcomes: Sequence[Outcome],
    judged: Sequence[Judged],
    metrics: Sequence[str],
    *,
    title: str,
    baseline: str = "plain",
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    remarks: Sequence[str] = (),
) -> Comparison:
    """Figures of every method, and differences to one of them.

    Args:
        outcomes: finished runs, of at least one method; methods keep the order they come in.
        judged: the splits; a score is the mean over them.
        metrics: names in `stackelberg.nlu.metrics`; a score is the mean of them.
        title: the task's.
        baseline: a method among the runs.
        level: of intervals.
        resamples: of the rows.
        remarks: to hand on.
    """
    scores = judged_scores(outcomes, judged, metrics, resamples)
    return compare_scores(scores, metrics, title=title, baseline=baseline, level=level, remarks=remarks)


def compare_scores(
    scores: Scores,
    metrics: Sequence[str],
    *,
    title: str,
    baseline: str = "plain",
    level: float = LEVEL,
    remarks: Sequence[str] = (),
) -> Comparison:
    """The same of runs that were scored already.

    Args:
        scores: of finished runs.
        metrics: that a score is the mean of.
        title: the task's.
        baseline: a method among the runs.
        level: of intervals.
        remarks: to hand on.
    """
    outcomes = scores.outcomes
    names = list(dict.fromkeys(each.method for each in outcomes))
    one_of("baseline", baseline, names)
    against = {other: scores.difference(other, baseline, level) for other in names if other != baseline}
    corrected = _corrected(against)
    return Comparison(
        title=title,
        metrics=tuple(metrics),
        rows=scores.rows,
        baseline=baseline,
        methods=tuple(_figures(name, outcomes, scores) for name in names),
        pairs=tuple(
            _pair(other, baseline, difference, corrected.get(other), outcomes, level, len(against))
            for other, difference in against.items()
        ),
        best=_best(names, scores, level),
        level=level,
        resamples=len(scores.drawn),
        family=len(against),
        outcomes=outcomes,
        remarks=tuple(remarks),
    )


def together(comparisons: Sequence[Comparison], beside: Sequence[float] = ()) -> tuple[list[Comparison], list[float]]:
    """Comparisons of several tasks as one family: p is corrected over all of them, as their readers will read them.

    Args:
        comparisons: of each task.
        beside: p of other comparisons that are read with them; they are returned corrected.
    """
    raw = [pair.difference.p for each in comparisons for pair in each.pairs if pair.difference is not None]
    judged = [p for p in raw if p is not None]
    both = holm([*judged, *beside])
    corrected = iter(both[: len(judged)])
    family = sum(len(each.pairs) for each in comparisons) + len(beside)
    made = []
    for each in comparisons:
        pairs = []
        for pair in each.pairs:
            its = pair.difference
            p = next(corrected) if its is not None and its.p is not None else None
            alpha = (1 - each.level) / family
            pairs.append(
                replace(
                    pair,
                    p=p,
                    shown=p is not None and p < 1 - each.level,
                    least=None if its is None else its.least(alpha),
                    found=None if its is None else its.detectable(alpha),
                )
            )
        made.append(replace(each, pairs=tuple(pairs), family=family))
    return made, both[len(judged) :]


def _figures(name: str, outcomes: Sequence[Outcome], scores: Scores) -> MethodFigures:
    its = [each for each in outcomes if each.method == name]
    by_seed = scores.of(name)
    eces = [each.ece for each in its if each.ece is not None]
    seconds = [each.seconds_per_step for each in its if each.seconds_per_step is not None]
    return MethodFigures(
        method=name,
        seeds=tuple(by_seed),
        scores=tuple(by_seed.values()),
        score=spread(list(by_seed.values())),
        ece=spread(eces) if len(eces) == len(its) else None,
        seconds_per_step=spread(seconds) if seconds else None,
        cost=_cost(its, outcomes),
    )


def _cost(its: Sequence[Outcome], outcomes: Sequence[Outcome]) -> float | None:
    """The mean over the runs of a step's seconds over those of `plain`, of the same seed if there is one.

    Runs of one seed follow each other, so that a machine that slows down in the course of hours slows them alike.
    """
    plain = [each for each in outcomes if each.method == "plain" and each.seconds_per_step]
    ratios = []
    for one in its:
        same = [each for each in plain if each.machine == one.machine]
        beside = [each for each in same if each.seed == one.seed] or same
        if one.seconds_per_step and beside:
            ratios.append(one.seconds_per_step / float(np.mean([each.seconds_per_step for each in beside])))
    return float(np.mean(ratios)) if ratios else None


def _pair(
    method: str,
    baseline: str,
    difference: Difference | None,
    p: float | None,
    outcomes: Sequence[Outcome],
    level: float,
    comparisons: int,
) -> Pair:
    alpha = (1 - level) / comparisons  # of Holm's first step
    ece = {each.seed: each.ece for each in outcomes if each.method == method and each.ece is not None}
    its = {each.seed: each.ece for each in outcomes if each.method == baseline and each.ece is not None}
    apart = [ece[seed] - its[seed] for seed in ece if seed in its]
    return Pair(
        method=method,
        baseline=baseline,
        difference=difference,
        p=p,
        shown=p is not None and p < 1 - level,
        least=None if difference is None else difference.least(alpha),
        found=None if difference is None else difference.detectable(alpha),
        ece=float(np.mean(apart)) if apart else None,
        ece_interval=mean_interval(apart, level=level) if apart else None,
    )


def _corrected(differences: Mapping[str, Difference | None]) -> dict[str, float]:
    judged = {name: each.p for name, each in differences.items() if each is not None and each.p is not None}
    return dict(zip(judged, holm(list(judged.values())), strict=True))


def _best(names: Sequence[str], scores: Scores, level: float) -> str | None:
    """The method that is shown to be better than each other one, all pairs of methods being compared."""
    pairs = {f"{one} {other}": scores.difference(one, other, level) for one, other in combinations(names, 2)}
    p = _corrected(pairs)
    for name in names:
        beaten = 0
        for one, other in combinations(names, 2):
            difference = pairs[f"{one} {other}"]
            ahead = difference is not None and (difference.value if name == one else -difference.value) > 0
            beaten += name in (one, other) and ahead and p.get(f"{one} {other}", 1.0) < 1 - level
        if len(names) > 1 and beaten == len(names) - 1:
            return name
    return None
