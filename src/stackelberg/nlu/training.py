"""One training run, from a loaded model to its best weights on disk."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from transformers import PrinterCallback, TrainerCallback, TrainingArguments

from stackelberg.adapters import checkpoints
from stackelberg.adapters.trainer import AdversarialTrainer
from stackelberg.errors import SettingError
from stackelberg.game.game import Game
from stackelberg.methods import METHODS, create
from stackelberg.nlu.batches import Padding, bucket_lengths
from stackelberg.nlu.classifier import Classifier, positions
from stackelberg.nlu.encoding import Encoded
from stackelberg.nlu.errors import RunError
from stackelberg.nlu.examples import TaskData
from stackelberg.nlu.interruption import Interrupted, Interruption
from stackelberg.nlu.judging import answers, figures
from stackelberg.nlu.progress import Display
from stackelberg.nlu.recipe import Recipe
from stackelberg.nlu.records import Records
from stackelberg.nlu.stopwatch import Stopwatch
from stackelberg.storage import whole_folder

SAVE_EVERY = 300.0  # seconds between checkpoints: what a run that is killed loses at most
LOG_EVERY = 10  # steps
SCORE = "dev/score"


@dataclass(frozen=True)
class Trained:
    """What a training leaves behind.

    Args:
        best: the folder of the best model.
        best_step: that it was found at.
        steps: that were made.
        interrupted: somebody asked it to stop when there was nothing left to stop.
    """

    best: Path
    best_step: int
    steps: int
    interrupted: bool


def make_game(recipe: Recipe) -> Game:
    """The recipe's method; its noise has the recipe's seed unless `settings` has its own."""
    return create(recipe.method, **{"seed": recipe.seed, **recipe.settings})


def check_machine(recipe: Recipe) -> None:
    """Refuse what this machine, or this way of starting, cannot do."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise SettingError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']}: a run is one process; for several use AdversarialTrainer in a "
            "program of your own (docs/distributed.md)"
        )
    if recipe.precision == "float16" and not torch.cuda.is_available():
        raise SettingError("precision='float16' needs a GPU; use bfloat16 or float32")


def rehearse(recipe: Recipe, classifier: Classifier, data: TaskData) -> None:
    """Play the game on two rows before the long work, so that settings that do not go with the model or task show."""
    anyway: dict[str, Any] = {"mode": "eager", "start_step": 0}
    known = METHODS[recipe.method].__dataclass_fields__
    settings = {**recipe.settings, **{name: value for name, value in anyway.items() if name in known}}
    few = classifier.encode(data["train"].take(range(min(2, len(data["train"])))))
    batch = Padding(classifier.tokenizer, classifier.model)(list(few))
    with torch.random.fork_rng(devices=[]):
        classifier.model.train()
        create(recipe.method, **settings)(classifier.model, batch)


def fit(
    recipe: Recipe,
    classifier: Classifier,
    data: TaskData,
    encoded: Mapping[str, Encoded],
    folder: Path,
    *,
    shows: Display,
    tensorboard: bool,
) -> Trained:
    """Train, or go on with it, in a folder for checkpoints inside the run's."""
    home = folder / "checkpoints"
    begun = next(home.glob("checkpoint-*"), None) is not None
    resume = checkpoints.last_whole(home) if begun else None
    first = 0 if resume is None else int(Path(resume).name.rpartition("-")[2])
    if resume:
        shows.say(f"going on from step {first:,}")
    records = Records(folder, first, tensorboard=tensorboard)
    if records.lacks_tensorboard:
        shows.say("TensorBoard is not installed, so nothing is written for it: pip install tensorboard")
    interruption = Interruption(shows.say)

    def judge() -> dict[str, float]:
        found = {
            split: answers(
                data.task, classifier.outputs(encoded[split], precision=recipe.precision), f"{data.task.title} {split}"
            )
            for split in data.task.evaluation
        }
        return figures(data.task, found, data)

    rhythm = Rhythm(recipe, classifier, len(encoded["train"]), home, records, shows, interruption)
    on_gpu = torch.cuda.is_available()
    lengths = [min(length, encoded["train"].max_length) for length in encoded["train"].lengths]
    trainer = RunTrainer(
        classifier.model,
        _arguments(recipe, home),
        game=make_game(recipe),
        train_dataset=encoded["train"],
        data_collator=Padding(
            classifier.tokenizer,
            classifier.model,
            bucket_lengths(lengths, recipe.batch_size) if on_gpu else (),
            positions(classifier.model),
        ),
        callbacks=[rhythm],
        judge=judge,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.stopwatch = rhythm.stopwatch
    try:
        with interruption.watched():
            trainer.train(resume_from_checkpoint=resume)
    finally:
        shows.end()
        records.close()
    history = scores(trainer.state.log_history)
    best_step, _ = best_of(history)
    if not _best(home, best_step).is_dir():
        raise RunError(f"{_best(home, best_step)} is gone, and it had the best model; remove {folder} to train it anew")
    return Trained(_best(home, best_step), best_step, trainer.state.global_step, interruption.requested)


def scores(log: list[dict[str, Any]]) -> list[tuple[int, float]]:
    """Step and score of every evaluation, from a Trainer's history."""
    return [(entry["step"], entry[SCORE]) for entry in log if SCORE in entry]


def best_of(history: list[tuple[int, float]]) -> tuple[int, float]:
    """The first of the highest; a score that is no number is below all others."""
    return max(history, key=lambda each: (-math.inf if math.isnan(each[1]) else each[1], -each[0]))


class RunTrainer(AdversarialTrainer):
    """A Trainer that is judged by the task's own figures.

    Args:
        judge: gives them.
    """

    stopwatch: Stopwatch

    def __init__(self, *args: Any, judge: Callable[[], dict[str, float]], **kwargs: Any) -> None:
        """As the Trainer's own, and `judge`."""
        self.judge = judge
        super().__init__(*args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """The figures on the dev split, logged."""
        with self.stopwatch.paused():
            found = {f"dev/{name}": value for name, value in self.judge().items()}
        self.log(found)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, found)
        return found

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        with self.stopwatch.paused():
            super()._save_checkpoint(model, trial)


class Rhythm(TrainerCallback):
    """When a run is judged, saved and stopped, and what it shows and writes down on the way.

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
                shutil.rmtree(_best(self.home, best_step), ignore_errors=True)  # of a run that was killed here
                with whole_folder(_best(self.home, best_step)) as unfinished:
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
            if path not in {_best(self.home, step) for step in needed}:
                shutil.rmtree(path, ignore_errors=True)


def _best(home: Path, step: int) -> Path:
    return home / f"best-{step}"


def _arguments(recipe: Recipe, home: Path) -> TrainingArguments:
    try:
        arguments = TrainingArguments(
            str(home),
            num_train_epochs=recipe.epochs,
            max_steps=recipe.max_steps or -1,
            per_device_train_batch_size=recipe.batch_size,
            gradient_accumulation_steps=recipe.accumulate,
            learning_rate=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            adam_beta1=recipe.betas[0],
            adam_beta2=recipe.betas[1],
            max_grad_norm=recipe.clip,
            lr_scheduler_type="constant_with_warmup" if recipe.schedule == "constant" else recipe.schedule,
            warmup_steps=min(recipe.warmup, 1 - 1e-9),  # from 1 on it would be a number of steps
            seed=recipe.seed,
            bf16=recipe.precision == "bfloat16",
            fp16=recipe.precision == "float16",
            logging_strategy="steps",
            logging_steps=LOG_EVERY,
            save_strategy="no",  # `Rhythm` says when
            save_total_limit=1,
            report_to="none",
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_pin_memory=torch.cuda.is_available(),
        )
    except ValueError as error:  # a precision that this machine does not have
        raise SettingError(" ".join(str(error).split())) from error
    _ = arguments.device
    arguments._n_gpu = min(arguments.n_gpu, 1)  # the first of several: nn.DataParallel has no second derivative
    return arguments
