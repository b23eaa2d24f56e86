"""Robustness: what is left of a model's accuracy on rows that were written, or changed, to mislead models.

- ANLI: rows that people wrote against models, in three rounds; `all` is the three joined, as in the paper's table.
- AdvGLUE: rows of GLUE that attacks have changed. The drop is taken over the rows whose original is known, each
  compared with its own original; the accuracy on all attacked rows has those that were written from nothing besides.

A task fits a run that has been trained on its classes: an MNLI or SNLI run for ANLI, a GLUE task's for its AdvGLUE.
Classes are matched to a model's outputs by name. Every figure is an accuracy, also where GLUE takes F1 besides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stackelberg.analysis.errors import AnalysisError
from stackelberg.analysis.statistics import LEVEL, Interval, mean_interval
from stackelberg.errors import DataError
from stackelberg.extras import need
from stackelberg.nlu.catalogue import ADVGLUE, ANLI_ROUNDS, NLI
from stackelberg.nlu.examples import Examples, TaskData
from stackelberg.nlu.labels import label_order, named_outputs
from stackelberg.nlu.loading import load
from stackelberg.nlu.metrics import predicted
from stackelberg.nlu.robustness import attacked_and_original
from stackelberg.nlu.task import NluTask

if TYPE_CHECKING:
    from stackelberg.nlu.classifier import Classifier

Right = NDArray[np.bool_]  # whether each row is
SPLITS = ("dev", "test")


@dataclass(frozen=True, slots=True)
class Rate:
    """Rows that a model gets right.

    Args:
        right: how many.
        rows: of how many.
    """

    right: int
    rows: int

    @property
    def value(self) -> float:
        """Their share."""
        return self.right / self.rows

    @property
    def interval(self) -> Interval:
        """Wilson's, over rows."""
        found = need("scipy.stats").binomtest(self.right, self.rows).proportion_ci(LEVEL, method="wilson")
        return Interval(float(found.low), float(found.high), LEVEL, "Wilson")


@dataclass(frozen=True, slots=True)
class Adversarial:
    """Accuracy on rows that were written against models.

    Args:
        title: the task's.
        split: of its rows.
        accuracy: on them.
    """

    title: str
    split: str
    accuracy: Rate


@dataclass(frozen=True, slots=True)
class Attacked:
    """Accuracy before and after an attack.

    Args:
        title: the task's.
        original: on the rows that have an original, before the attack.
        attacked: on the same rows after it.
        drop: the first less the second.
        interval: of the drop, over rows; None with one row.
        turned: of the rows that were right before, the share that is wrong after; None where none was right.
        every: on all attacked rows.
    """

    title: str
    original: Rate
    attacked: Rate
    drop: float
    interval: Interval | None
    turned: float | None
    every: Rate


@dataclass(frozen=True, slots=True)
class Robustness:
    """One model on every task that fits it.

    Args:
        adversarial: ANLI's rounds and all of them, dev and test.
        attacked: AdvGLUE's tasks.
    """

    adversarial: tuple[Adversarial, ...]
    attacked: tuple[Attacked, ...]


@dataclass(frozen=True)
class Trials:
    """The rows that a model is tried on.

    Args:
        rounds: of ANLI, those that are there.
        attacked: tasks of AdvGLUE.
    """

    rounds: tuple[TaskData, ...]
    attacked: tuple[TaskData, ...]


def trials(task: NluTask, folder: Path | None = None) -> Trials:
    """What fits a run and is there.

    Args:
        task: that the run was trained on.
        folder: that ANLI and AdvGLUE are in; the hub when None.
    """
    rounds = [f"anli-{each}" for each in ANLI_ROUNDS] if set(task.labels) == set(NLI) else []
    base = task.name.partition("-")[0] if task.name.startswith("anli") else task.name
    names = [each.name for each in ADVGLUE if each.name in (f"advglue-{base}", f"advglue-{base}-mm")]
    if task.name == "snli" or base == "anli":  # the classes and the question are MNLI's
        names = ["advglue-mnli", "advglue-mnli-mm"]
    if not rounds + names:
        fitting = ", ".join(dict.fromkeys(each.title.removeprefix("AdvGLUE ").removesuffix("-mm") for each in ADVGLUE))
        raise AnalysisError(
            f"neither ANLI nor AdvGLUE has rows for a run trained on {task.title}; "
            f"give one trained on {fitting}, SNLI or ANLI"
        )
    found, lacking = {}, []
    for name in rounds + names:
        try:
            found[name] = load(name, folder)
        except DataError as error:
            lacking.append(str(error))
    if not found:
        raise DataError(lacking[0])
    return Trials(
        tuple(found[name] for name in rounds if name in found), tuple(found[name] for name in names if name in found)
    )


def measure_robustness(
    classifier: Classifier,
    found: Trials,
    *,
    precision: str = "float32",
    report: Callable[[str], None] = lambda title: None,
) -> Robustness:
    """Try a model.

    Args:
        classifier: a trained one.
        found: the rows.
        precision: that it computes in.
        report: told each task that is begun.
    """
    adversarial: list[Adversarial] = []
    for split in SPLITS:
        by_round = []
        for data in found.rounds:
            if split in data and data[split].targets is not None:
                report(f"{data.task.title}, {split}")
                by_round.append((data.task.title, right(classifier, data.task, data[split], precision)))
        adversarial += [Adversarial(title, split, _rate(rows)) for title, rows in by_round]
        if len(by_round) == len(ANLI_ROUNDS):
            everything = np.concatenate([rows for _, rows in by_round])
            adversarial.append(Adversarial("ANLI all", split, _rate(everything)))
    attacked = []
    for data in found.attacked:
        report(data.task.title)
        attacked.append(_attacked(classifier, data, precision))
    return Robustness(tuple(adversarial), tuple(attacked))


def right(classifier: Classifier, task: NluTask, examples: Examples, precision: str = "float32") -> Right:
    """Whether a model gets each row right, its outputs matched to the task's classes by name."""
    if examples.targets is None:
        raise DataError(f"{task.title} has no labels to judge a model by")
    order = label_order(task, named_outputs(classifier.model.config), trained=True)
    its = dataclasses.replace(classifier, order=order)
    return np.asarray(
        predicted(task, its.outputs(its.encode(examples), precision=precision)) == np.asarray(examples.targets)
    )


def _attacked(classifier: Classifier, data: TaskData, precision: str) -> Attacked:
    after, before = attacked_and_original(data)
    was, is_now = (right(classifier, data.task, rows, precision) for rows in (before, after))
    lost = was.astype(int) - is_now.astype(int)
    return Attacked(
        title=data.task.title,
        original=_rate(was),
        attacked=_rate(is_now),
        drop=float(np.mean(lost)),
        interval=mean_interval(lost),
        turned=float((was & ~is_now).sum() / was.sum()) if was.any() else None,
        every=_rate(right(classifier, data.task, data["dev"], precision)),
    )


def _rate(rows: Right) -> Rate:
    return Rate(int(rows.sum()), len(rows))
