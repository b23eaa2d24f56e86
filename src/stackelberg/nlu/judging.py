"""A model's figures: what papers report of its task, the single score, and how far its confidence can be trusted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stackelberg.errors import NonFiniteLossError
from stackelberg.nlu.calibration import measure_calibration, probabilities_of
from stackelberg.nlu.examples import Examples
from stackelberg.nlu.metrics import evaluate, predicted, reported, score
from stackelberg.nlu.task import NluTask

CALIBRATION = ("ece", "ece_width", "mce", "brier", "nll", "confidence")
BESIDE = (*CALIBRATION, "mse")  # the metrics, of every task that has them
Floats = NDArray[np.float64]


def answers(task: NluTask, outputs: Floats, split: str) -> Floats:
    """Probabilities of the classes, or scores, from a model's outputs."""
    if task.kind == "score":
        return outputs
    if not np.isfinite(outputs).all():
        raise NonFiniteLossError(
            f"the model's outputs on {split} are not finite: the training diverged; lower learning_rate"
        )
    return probabilities_of(outputs)


def figures(task: NluTask, found: Mapping[str, Floats], examples: Mapping[str, Examples]) -> dict[str, float]:
    """Metrics, `score`, and with classes calibration, with scores `mse`: over the splits that judge it, as fractions.

    Args:
        task: its `evaluation` names the splits.
        found: probabilities or scores of each.
        examples: their rows, with targets.
    """
    by_split = {split: of_split(task, found[split], examples[split].targets or ()) for split in task.evaluation}
    metrics = reported(task, {split: {name: each[name] for name in task.metrics} for split, each in by_split.items()})
    beside = [name for name in BESIDE if all(name in each for each in by_split.values())]
    means = {name: math.fsum(each[name] for each in by_split.values()) / len(by_split) for name in beside}
    return {**metrics, "score": score(metrics), **means}


def of_split(task: NluTask, found: Floats, targets: ArrayLike) -> dict[str, float]:
    """The task's metrics on one split; with classes its calibration, with scores the mean squared error."""
    wanted = np.asarray(targets)
    metrics = evaluate(task, predicted(task, found), wanted)
    if task.kind == "score":
        return {**metrics, "mse": float(np.mean((found - wanted) ** 2))}
    calibration = asdict(measure_calibration(found, wanted))
    return {**metrics, **{name: calibration[name] for name in CALIBRATION}}
