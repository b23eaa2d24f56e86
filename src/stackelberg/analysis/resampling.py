"""Scores on thousands of resamples of the same rows, by matrix products where a loop over the rows would take hours.

A resample is a count for every row: how often it was drawn. Each figure here is that of `stackelberg.nlu.metrics` on
rows repeated so often, by the same rules where a formula divides by nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from stackelberg.analysis.errors import AnalysisError
from stackelberg.analysis.statistics import RESAMPLES, Floats
from stackelberg.errors import one_of
from stackelberg.nlu.metrics import CONSTANT

Counts = NDArray[np.float64]  # resamples × rows
Values = NDArray[np.generic]  # a class or a score for every row
ResampledMetric = Callable[[Counts, Values, Values], Floats]  # counts, predictions, targets → one figure a resample

AT_ONCE = 2**22  # counts in memory


def draws(rows: int, resamples: int = RESAMPLES, *, seed: int = 0) -> Iterator[Counts]:
    """Resamples of n rows out of n, with replacement, some at a time.

    Args:
        rows: n.
        resamples: how many in all.
        seed: the same seed draws the same rows.
    """
    random = np.random.default_rng(seed)
    step = max(1, AT_ONCE // rows)
    for start in range(0, resamples, step):
        some = min(step, resamples - start)
        places = random.integers(rows, size=(some, rows)) + rows * np.arange(some)[:, None]
        yield np.bincount(places.ravel(), minlength=some * rows).reshape(some, rows).astype(np.float64)


def resampled(
    metrics: Sequence[str],
    predictions: Sequence[Values],
    targets: Values,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Floats:
    """The mean of some metrics, for several models on the same resamples of the same rows: resamples × models.

    Args:
        metrics: names in `stackelberg.nlu.metrics`.
        predictions: of each model, a class or a score for every row.
        targets: what they should have been.
        resamples: how many.
        seed: the same seed draws the same rows.
    """
    for name in metrics:
        one_of("metric", name, RESAMPLED)
    if any(given.shape != targets.shape for given in predictions) or targets.ndim != 1 or not len(targets):
        raise AnalysisError("predictions and targets must be one for every row")
    several = draws(len(targets), resamples, seed=seed)
    return np.concatenate([_scores(metrics, counts, predictions, targets) for counts in several])


def _scores(metrics: Sequence[str], counts: Counts, predictions: Sequence[Values], targets: Values) -> Floats:
    figures = [[RESAMPLED[name](counts, given, targets) for given in predictions] for name in metrics]
    return np.asarray(np.mean(figures, axis=0).T)


def _accuracy(counts: Counts, predictions: Values, targets: Values) -> Floats:
    return np.asarray(counts @ (predictions == targets) / counts.sum(axis=1))


def _f1(counts: Counts, predictions: Values, targets: Values) -> Floats:
    return _f1_of(counts, predictions, targets, 1)[0]


def _macro_f1(counts: Counts, predictions: Values, targets: Values) -> Floats:
    """Over the classes that are predicted or true somewhere in the resample."""
    classes = [_f1_of(counts, predictions, targets, each) for each in np.union1d(predictions, targets)]
    total = np.sum([figure for figure, _ in classes], axis=0)
    return np.asarray(total / np.sum([there for _, there in classes], axis=0))


def _f1_of(counts: Counts, predictions: Values, targets: Values, positive: object) -> tuple[Floats, NDArray[np.bool_]]:
    """F1 for one class, and whether the class is there."""
    said, true = predictions == positive, targets == positive
    both, sizes = counts @ (said & true), counts @ said + counts @ true
    return np.divide(2 * both, sizes, out=np.zeros_like(sizes), where=sizes > 0), sizes > 0


def _matthews(counts: Counts, predictions: Values, targets: Values) -> Floats:
    classes = np.union1d(predictions, targets)
    said = counts @ (predictions[:, None] == classes)
    true = counts @ (targets[:, None] == classes)
    total, right = counts.sum(axis=1), counts @ (predictions == targets)
    above = right * total - (said * true).sum(axis=1)
    below = np.sqrt((total**2 - (said**2).sum(axis=1)) * (total**2 - (true**2).sum(axis=1)))
    return np.asarray(np.divide(above, below, out=np.zeros_like(below), where=below > 0))


def _pearson(counts: Counts, predictions: Values, targets: Values) -> Floats:
    given, wanted = (_scaled(values) for values in (predictions, targets))
    return _correlation(counts, *(np.broadcast_to(values, counts.shape) for values in (given, wanted)))


def _spearman(counts: Counts, predictions: Values, targets: Values) -> Floats:
    return _correlation(counts, _ranks(counts, predictions), _ranks(counts, targets))


def _scaled(values: Values) -> Floats:
    """Centred, and of a size at which sums of squares neither overflow nor vanish; correlations do not change."""
    given = values.astype(np.float64)
    if not np.isfinite(given).all():
        return np.full_like(given, np.nan)  # a model that diverged has no correlation
    given = given / (np.abs(given).max() or 1.0)
    given = given - given.mean()
    return np.where(np.abs(given).max() <= CONSTANT, 0.0, given)


def _ranks(counts: Counts, values: Values) -> Floats:
    """Of each row among the rows of a resample, tied values sharing the mean of theirs."""
    if not np.isfinite(values.astype(np.float64)).all():
        return np.full(counts.shape, np.nan)
    _, group = np.unique(values, return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(group.max() + 1))
    sizes = np.add.reduceat(counts[:, order], starts, axis=1)
    return np.asarray((np.cumsum(sizes, axis=1) - (sizes - 1) / 2)[:, group])


def _correlation(counts: Counts, first: Floats, second: Floats) -> Floats:
    total = counts.sum(axis=1, keepdims=True)
    first, second = (each - (counts * each).sum(axis=1, keepdims=True) / total for each in (first, second))
    above = (counts * first * second).sum(axis=1)
    sizes = [(counts * each**2).sum(axis=1) for each in (first, second)]
    below = np.sqrt(sizes[0] * sizes[1])
    spreads = np.minimum(*(np.sqrt(size / total[:, 0]) for size in sizes))
    there = ~(spreads <= CONSTANT)  # also where it is nan, which it must stay
    return np.asarray(np.divide(above, below, out=np.zeros_like(below), where=there))


RESAMPLED: Mapping[str, ResampledMetric] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "macro_f1": _macro_f1,
    "matthews": _matthews,
    "pearson": _pearson,
    "spearman": _spearman,
}
