"""Metrics as papers report them on GLUE, a task's single score, and the average over the tasks.

Every figure is a fraction, in [0, 1] or [−1, 1]; tables show it times 100. Where a figure's formula divides by nothing,
its value is a rule, and never a warning:

- a correlation (Matthews, Pearson, Spearman) is 0 where either side is constant: nothing goes together with it;
- F1 is 0 where the positive class is neither predicted nor there;
- Pearson and Spearman are nan where a prediction is not finite: a model that diverged has no score, not a bad one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stackelberg.errors import DataError, one_of
from stackelberg.extras import need
from stackelberg.nlu.task import NluTask

Metric = Callable[[NDArray[Any], NDArray[Any]], float]  # predictions, targets

GLUE_AVERAGED = ("rte", "mrpc", "cola", "sst-2", "sts-b", "qnli", "qqp", "mnli")
CONSTANT = 1e-12  # a spread this small beside the values is their rounding


def accuracy(predictions: NDArray[Any], targets: NDArray[Any]) -> float:
    """Share of the rows that are right."""
    return float(need("sklearn.metrics").accuracy_score(targets, predictions))


def f1(predictions: NDArray[Any], targets: NDArray[Any]) -> float:
    """Harmonic mean of precision and recall for class 1: "equivalent", "duplicate"."""
    score = need("sklearn.metrics").f1_score
    return float(score(targets == 1, predictions == 1, zero_division=0.0))


def macro_f1(predictions: NDArray[Any], targets: NDArray[Any]) -> float:
    """The mean of every class's F1."""
    return float(need("sklearn.metrics").f1_score(targets, predictions, average="macro", zero_division=0.0))


def matthews(predictions: NDArray[Any], targets: NDArray[Any]) -> float:
    """Correlation of the predicted and the true class, for any number of classes."""
    if _is_constant(predictions) or _is_constant(targets):
        return 0.0
    return float(need("sklearn.metrics").matthews_corrcoef(targets, predictions))


def pearson(predictions: NDArray[Any], targets: NDArray[Any]) -> float:
    """Linear correlation."""
    return _correlation("pearsonr", predictions, targets)


def spearman(predictions: NDArray[Any], targets: NDArray[Any]) -> float:
    """Correlation of the ranks, tied values sharing theirs."""
    return _correlation("spearmanr", predictions, targets)


METRICS: Mapping[str, Metric] = {
    metric.__name__: metric for metric in (accuracy, f1, macro_f1, matthews, pearson, spearman)
}


def evaluate(task: NluTask, predictions: ArrayLike, targets: ArrayLike) -> dict[str, float]:
    """A task's metrics on one split.

    Args:
        task: whose metrics to take.
        predictions: a class for every row, as an index into the task's labels, or a score.
        targets: what they should have been.
    """
    given, wanted = np.asarray(predictions), np.asarray(targets)
    if given.ndim != 1 or given.shape != wanted.shape:
        raise DataError(
            f"predictions of shape {given.shape} and targets of shape {wanted.shape}: give one of each for every row"
        )
    if not len(given):
        raise DataError("there are no predictions to evaluate")
    if task.kind == "classes":
        for name, values in (("predictions", given), ("targets", wanted)):
            _check_classes(name, values, len(task.labels))
    for name in task.metrics:
        one_of("metric", name, METRICS)
    return {name: METRICS[name](given, wanted) for name in task.metrics}


def predicted(task: NluTask, outputs: ArrayLike) -> NDArray[Any]:
    """What a model says, from its outputs in the task's order of classes: the likeliest class, or the score."""
    values = np.asarray(outputs)
    if task.kind == "score":
        if values.size != len(values):
            raise DataError(f"outputs of shape {values.shape} are not one score for every row")
        return values.reshape(len(values)).astype(np.float64)
    if values.ndim != 2 or values.shape[1] != len(task.labels):
        raise DataError(f"outputs of shape {values.shape}: {task.title} has {len(task.labels)} classes")
    return np.asarray(values.argmax(axis=1))


def reported(task: NluTask, by_split: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The figures that a paper's table has for a task: its metrics on the split, or splits, it is judged by.

    Args:
        task: MNLI is judged by two splits: `accuracy (dev_matched)` and `accuracy (dev_mismatched)`.
        by_split: what `evaluate` gave for each; splits the task is not judged by are left out.
    """
    there = [split for split in task.evaluation if split in by_split]
    if not there:
        raise DataError(
            f"{task.title} is judged by {', '.join(task.evaluation)}; there are figures of "
            f"{', '.join(by_split) or 'no split'}"
        )
    if len(task.evaluation) == 1:
        return dict(by_split[there[0]])
    return {f"{name} ({split})": value for split in there for name, value in by_split[split].items()}


def score(figures: Mapping[str, float]) -> float:
    """A task's single score: the plain mean of the figures that are reported for it."""
    if not figures:
        raise DataError("there are no figures to take the mean of")
    return math.fsum(figures.values()) / len(figures)


def glue_average(figures: Mapping[str, Mapping[str, float]]) -> float:
    """The average score of GLUE as the paper has it: the mean over eight tasks of each task's mean figure.

    A task counts once however many figures it has, so matched and mismatched MNLI are one task, and WNLI is not among
    the eight. This is the rule that gives every average of the paper's two GLUE tables from their rows; the mean over
    all twelve figures, over nine tasks with MNLI as two, or of each task's first figures does not.

    Args:
        figures: for each task, by its name in the catalogue, what `reported` gave.
    """
    lacking = [name for name in GLUE_AVERAGED if name not in figures]
    if lacking:
        raise DataError(f"GLUE's average needs all of {', '.join(GLUE_AVERAGED)}; {', '.join(lacking)} are missing")
    return math.fsum(score(figures[name]) for name in GLUE_AVERAGED) / len(GLUE_AVERAGED)


def _correlation(name: str, predictions: NDArray[Any], targets: NDArray[Any]) -> float:
    given, wanted = (values.astype(np.float64) for values in (predictions, targets))
    if not (np.isfinite(given).all() and np.isfinite(wanted).all()):
        return math.nan
    if _is_constant(given) or _is_constant(wanted):
        return 0.0
    # neither correlation depends on the scale, and scipy's sums overflow at 1e160
    given, wanted = (values / np.abs(values).max() for values in (given, wanted))
    return float(getattr(need("scipy.stats"), name)(given, wanted).statistic)


def _is_constant(values: NDArray[Any]) -> bool:
    largest = float(np.abs(values).max())
    return bool(np.ptp(values / largest) <= CONSTANT) if largest > 0 else True


def _check_classes(name: str, values: NDArray[Any], classes: int) -> None:
    if values.dtype.kind not in "iu":
        raise DataError(f"{name} are {values.dtype} where the index of a class is needed")
    if values.min() < 0 or values.max() >= classes:
        wrong = values.min() if values.min() < 0 else values.max()
        raise DataError(f"{name} have a class {wrong}, and the classes are 0 to {classes - 1}")
