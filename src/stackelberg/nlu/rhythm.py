"""When a run is judged, saved and stopped, and what it shows and writes down on the way."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from time import monotonic
from typing import Any

from transformers import TrainerCallback

from stackelberg.nlu.classifier import Classifier
from stackelberg.nlu.recipe import Recipe
from stackelberg.runs.interruption import Interrupted, Interruption
from stackelberg.runs.progress import Display
from stackelberg.runs.records import Records
from stackelberg.runs.stopwatch import Stopwatch
from stackelberg.storage import whole_folder

SAVE_EVERY = 300.0  # seconds between checkpoints: what a run that is killed loses at most
SCORE = "dev/score"


class Rhythm(TrainerCallback):
    """A Trainer's callback.

    Everything goes by steps, not epochs, so that a run that is resumed in the middle of one does the same.
    """

    def __init__(
        self,
        recipe: Recipe,
        classifier: Classifier,
        rows: int,
        home: Path,
        records: Records,
        shows: Display,
        interruption: Interruption,
    ) -> None:
        """Of one run."""
        batches = math.ceil(rows / recipe.batch_size)
        self.every = recipe.evaluate_every or math.ceil(batches / recipe.accumulate)
        self.patience = recipe.patience
        self.classifier = classifier
        self.home = home
        self.records = records
        self.shows = shows
        self.interruption = interruption
        self.stopwatch = Stopwatch()
        self.seconds = records.seconds
        self._saved = monotonic()
        self._kept = 0  # the best step when the last checkpoint was written

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the clocks."""
        if history := scores(state.log_history):
            self._kept, _ = best_of(history)
        self.stopwatch.start(state.global_step)
        self._saved = monotonic()
        self.shows.begin(state.global_step, state.max_steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Whether to judge or save now."""
        step = state.global_step
        self.shows.step(step)
        if step % self.every == 0 or step >= state.max_steps:
            control.should_log = control.should_evaluate = True
        if self.interruption.requested or monotonic() - self._saved > SAVE_EVERY:
            control.should_save = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Write it down; times are those of steps alone."""
        logs = dict(logs or {})
        if "loss" in logs:
            seconds, steps = self.stopwatch.lap(state.global_step)
            self.seconds += seconds
            logs |= {"seconds": self.seconds, "seconds_per_step": seconds / max(steps, 1)}
            self.shows.show(logs)
        if "loss" in logs or SCORE in logs:
            self.records.add(state.global_step, logs)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Keep the best model; stop where there is nothing left to hope for."""
        history = scores(state.log_history)
        best_step, best = best_of(history)
        self.shows.judged(history[-1][1], best, best_step)
        if best_step == state.global_step:
            with self.stopwatch.paused():
                shutil.rmtree(best_folder(self.home, best_step), ignore_errors=True)  # of a run that was killed here
                with whole_folder(best_folder(self.home, best_step)) as unfinished:
                    self.classifier.save(unfinished)
            self._forget({best_step, self._kept})
        since = len(history) - 1 - [step for step, _ in history].index(best_step)
        over = state.global_step >= state.max_steps
        if self.patience is not None and since >= self.patience and not over:
            self.shows.say(f"stopped early: {since} evaluations without a better score than {best * 100:.2f}")
            over = True
        if over:
            control.should_training_stop = True
            control.should_save = False  # there is nothing to go on with

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """From here on the run can be resumed, so it may stop."""
        self._saved = monotonic()
        if history := scores(state.log_history):
            self._kept, _ = best_of(history)
            self._forget({self._kept})
        if self.interruption.requested:
            raise Interrupted

    def _forget(self, needed: set[int]) -> None:
        """Remove models that are neither the best nor what a resumed run may need."""
        for path in self.home.glob("best-*"):
            if path not in {best_folder(self.home, step) for step in needed}:
                shutil.rmtree(path, ignore_errors=True)


def scores(log: list[dict[str, Any]]) -> list[tuple[int, float]]:
    """Step and score of every evaluation, from a Trainer's history."""
    return [(entry["step"], entry[SCORE]) for entry in log if SCORE in entry]


def best_of(history: list[tuple[int, float]]) -> tuple[int, float]:
    """The first of the highest; a score that is no number is below all others."""
    return max(history, key=lambda each: (-math.inf if math.isnan(each[1]) else each[1], -each[0]))


def best_folder(home: Path, step: int) -> Path:
    """Where the best model is kept that was found at a step."""
    return home / f"best-{step}"
