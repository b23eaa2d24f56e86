"""Runs' scores on one task: as they are, on rows drawn anew, and the differences of two methods over their seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stackelberg.analysis.errors import AnalysisError
from stackelberg.analysis.resampling import Values, resampled
from stackelberg.analysis.statistics import RESAMPLES, Difference, Floats, paired_difference
from stackelberg.nlu.metrics import METRICS


@dataclass(frozen=True, slots=True)
class Judged:
    """One split that methods are compared on.

    Args:
        name: of the split.
        targets: of its rows.
    """

    name: str
    targets: Values


@dataclass(frozen=True, slots=True)
class Outcome:
    """One finished run.

    Args:
        method: what was played.
        seed: with which seed.
        key: of the run's recipe.
        folder: the run's, relative to the comparison's.
        predictions: for each split, a class or a score for every row.
        ece: calibration error on those rows; None where there are no classes.
        seconds_per_step: None where it was not measured.
        machine: what it was measured on; costs of different machines are not compared.
        settings: of the method.
    """

    method: str
    seed: int
    key: str
    folder: str
    predictions: Mapping[str, Values]
    ece: float | None = None
    seconds_per_step: float | None = None
    machine: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scores:
    """Every run's score, as it is and on resampled rows.

    Args:
        outcomes: the runs; methods keep the order they come in.
        once: the score of each.
        drawn: resamples × runs.
        rows: of each split, which were drawn from.
    """

    outcomes: tuple[Outcome, ...]
    once: Floats
    drawn: Floats
    rows: Mapping[str, int]

    def __post_init__(self) -> None:
        """Check that runs can be told apart, and have scores."""
        twice = [(each.method, each.seed) for each in self.outcomes]
        if len(set(twice)) < len(twice):
            raise AnalysisError(
                "a method was given twice with one seed; give each method once, each with its own settings"
            )
        for outcome, value in zip(self.outcomes, self.once, strict=True):
            if not math.isfinite(value):
                raise AnalysisError(f"{outcome.folder} has no finite score; remove that run's folder to train it anew")

    def of(self, method: str) -> dict[int, float]:
        """Seed to score."""
        return {
            each.seed: float(value)
            for each, value in zip(self.outcomes, self.once, strict=True)
            if each.method == method
        }

    def difference(self, first: str, second: str, level: float) -> Difference | None:
        """Over the seeds that both have."""
        seeds = [seed for seed in self.of(first) if seed in self.of(second)]
        if not seeds:
            return None
        place = {(each.method, each.seed): number for number, each in enumerate(self.outcomes)}
        ones, others = ([place[name, seed] for seed in seeds] for name in (first, second))
        return paired_difference(
            self.once[ones],
            self.once[others],
            self.drawn[:, ones],
            self.drawn[:, others],
            rows=min(self.rows.values()),
            level=level,
        )


def judged_scores(
    outcomes: Sequence[Outcome], judged: Sequence[Judged], metrics: Sequence[str], resamples: int = RESAMPLES
) -> Scores:
    """Every run's score, as it is and on resampled rows."""
    if not outcomes:
        raise AnalysisError("there is no finished run to compare; see the remarks of those that failed")
    once = [
        _score_of(each.targets, [outcome.predictions[each.name] for outcome in outcomes], metrics) for each in judged
    ]
    drawn = [
        resampled(
            metrics,
            [outcome.predictions[each.name] for outcome in outcomes],
            each.targets,
            resamples=resamples,
            seed=place,  # rows of one split are drawn apart from those of another
        )
        for place, each in enumerate(judged)
    ]
    rows = {each.name: len(each.targets) for each in judged}
    return Scores(tuple(outcomes), np.mean(once, axis=0), np.mean(drawn, axis=0), rows)


def _score_of(targets: Values, predictions: Sequence[Values], metrics: Sequence[str]) -> Floats:
    figures = [[METRICS[name](given, targets) for name in metrics] for given in predictions]
    return np.asarray(np.mean(figures, axis=1), dtype=np.float64)
