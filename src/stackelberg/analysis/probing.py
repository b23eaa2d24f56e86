"""Probing: what does a fine-tuned encoder still know? A linear head on its frozen hidden states, on other tasks.

As in the paper's probing experiments: the encoder is fine-tuned on one task, then "we only tune a prediction head on
other datasets while keeping the representations fixed", ten times with different seeds. The paper names neither the
hidden state that the head reads, nor the head's regularization, nor what a seed changes. Here:

- the head reads the last layer's state of the first token, or the mean over tokens (`FrozenEncoder`'s `pooling`);
- it is scikit-learn's logistic regression, C = 1, on features standardized by the rows that it is fitted on. The fit
  is a convex problem with one solution: there is no luck in it;
- a seed draws rows. Of a task with a split to test on (TREC, MRPC) the head is fitted on nine tenths of the training
  rows and tested on all of that split; of a task in one file (CR, MR, SUBJ) a tenth of the rows is held out to test on.
  Classes keep their shares, and a seed draws the same rows for every model: accuracies are paired by seed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stackelberg.analysis.errors import AnalysisError
from stackelberg.analysis.frozen import Features, FrozenEncoder
from stackelberg.errors import DataError
from stackelberg.extras import need
from stackelberg.nlu.examples import Examples, TaskData, hold_out, join
from stackelberg.nlu.files import load_files
from stackelberg.nlu.loading import load
from stackelberg.nlu.table import ENDINGS

TASKS = ("cr", "mr", "subj", "trec", "mrpc")
SEEDS = 10
HELD_OUT = 0.1
STEPS = 2000

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class ProbingTask:
    """A task to fit heads on.

    Args:
        name: as it was asked for.
        title: in tables and figures.
        examples: all rows, those of a split to test on at the end.
        tested: how many rows at the end are that split; 0 where a seed must hold some out.
    """

    name: str
    title: str
    examples: Examples
    tested: int

    @property
    def targets(self) -> Rows:
        """The class of every row."""
        return np.asarray(self.examples.targets, dtype=np.int64)

    def rows(self, seed: int) -> tuple[Rows, Rows]:
        """What a head is fitted on and what it is tested on."""
        count = len(self.examples)
        numbered = replace(self.examples, ids=tuple(map(str, range(count))))
        fitted, held = hold_out(numbered.take(range(count - self.tested)), HELD_OUT, seed=seed)
        tested = np.arange(count - self.tested, count) if self.tested else _numbers(held)
        return _numbers(fitted), tested

    @property
    def drawn(self) -> str:
        """What a seed changes, in words."""
        if self.tested:
            return f"fitted on {1 - HELD_OUT:.0%} of the training rows, tested on {self.tested:,} others"
        return f"tested on {HELD_OUT:.0%} of the rows, fitted on the others"


@dataclass(frozen=True, slots=True)
class Probe:
    """How well linear heads do on one model's hidden states.

    Args:
        task: name of the task.
        accuracies: one a seed, 0 first.
        unfinished: how many fits were stopped before they converged.
    """

    task: str
    accuracies: tuple[float, ...]
    unfinished: int


def probing_task(
    name: str, folder: Path | None = None, *, text: str = "text", pair: str | None = None, label: str = "label"
) -> ProbingTask:
    """A task by its name in the catalogue, or a file of one's own.

    Args:
        name: `cr`, `mr`, `subj`, `trec`, `mrpc` or any other task with classes; or a path that ends in .tsv, .csv,
            .jsonl or .txt.
        folder: that the named tasks are in; the hub when None.
        text: column of a file's text.
        pair: column of its second text, if it has one.
        label: column of its classes.
    """
    if Path(name).suffix.lower() in ENDINGS:
        data = load_files({"train": name}, text=text, pair=pair, label=label, name=Path(name).stem)
    else:
        data = load(name, folder)
    if data.task.kind != "classes":
        raise AnalysisError(f"{data.task.title} has scores, and a probe is fitted on classes; choose another task")
    return _of(name, data)


def _of(name: str, data: TaskData) -> ProbingTask:
    judged = data.task.evaluation[0]
    if "train" in data and judged in data and judged != "train":
        parts, tested = [data["train"], data[judged]], len(data[judged])
    else:
        only = "train" if "train" in data else judged
        parts, tested = [data[only]], 0
    examples = join(parts)
    if examples.targets is None:
        raise DataError(f"{data.task.title} has no labels to fit a head on")
    task = ProbingTask(name, data.task.title, examples, tested)
    fitted, held = task.rows(seed=0)
    if not len(held) or len(set(task.targets[fitted])) < 2:
        raise DataError(
            f"{name} has {len(examples)} rows, too few of two classes to fit a head on some and test it on others"
        )
    return task


def probe(
    encoder: FrozenEncoder,
    task: ProbingTask,
    *,
    seeds: int = SEEDS,
    cache: Path | None = None,
    report: Callable[[int], None] = lambda seed: None,
) -> Probe:
    """Fit and test a head for every seed.

    Args:
        encoder: the frozen model.
        task: to fit heads on.
        seeds: how many.
        cache: folder that features are kept in.
        report: told each seed that is done.
    """
    if seeds < 1:
        raise AnalysisError(f"seeds={seeds} must be at least 1")
    features, targets = encoder.features(task.examples, cache), task.targets
    accuracies, unfinished = [], 0
    for seed in range(seeds):
        fitted, tested = task.rows(seed)
        head = fit_head(features[fitted], targets[fitted])
        accuracies.append(float((head.predict(features[tested]) == targets[tested]).mean()))
        unfinished += int(max(head[-1].n_iter_) >= STEPS)
        report(seed)
    return Probe(task.name, tuple(accuracies), unfinished)


def fit_head(features: Features, targets: Sequence[int] | Rows) -> Any:
    """Logistic regression on standardized features."""
    head = need("sklearn.pipeline").make_pipeline(
        need("sklearn.preprocessing").StandardScaler(),
        need("sklearn.linear_model").LogisticRegression(C=1.0, max_iter=STEPS),
    )
    with warnings.catch_warnings():
        # counted instead, and said once
        warnings.simplefilter("ignore", need("sklearn.exceptions").ConvergenceWarning)
        return head.fit(features, targets)


def _numbers(examples: Examples) -> Rows:
    return np.array([int(number) for number in examples.ids or ()], dtype=np.int64)
