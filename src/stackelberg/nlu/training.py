"""One training run, from a loaded model to its best weights on disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, TrainingArguments

from stackelberg.adapters import checkpoints
from stackelberg.adapters.trainer import AdversarialTrainer
from stackelberg.errors import RunError, SettingError
from stackelberg.game.game import Game
from stackelberg.methods import METHODS, create
from stackelberg.nlu.batches import Padding, bucket_lengths
from stackelberg.nlu.classifier import Classifier, positions
from stackelberg.nlu.encoding import Encoded
from stackelberg.nlu.examples import TaskData
from stackelberg.nlu.judging import answers, figures
from stackelberg.nlu.recipe import Recipe
from stackelberg.nlu.rhythm import Rhythm, best_folder, best_of, scores
from stackelberg.runs.interruption import Interruption
from stackelberg.runs.progress import Display
from stackelberg.runs.records import Records
from stackelberg.runs.stopwatch import Stopwatch

LOG_EVERY = 10  # steps


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
    args: TrainingArguments,
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

    def judge() -> dict[str, float]:
        found = {
            split: answers(data.task, classifier.outputs(encoded[split], precision=recipe.precision), split)
            for split in data.task.evaluation
        }
        return figures(data.task, found, data)

    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    rows = encoded["train"]
    lengths = bucket_lengths([min(length, rows.max_length) for length in rows.lengths], recipe.batch_size)
    interruption = Interruption(shows.say)
    with closing(Records(folder, first, tensorboard=tensorboard)) as records, closing(shows):
        if records.lacks_tensorboard:
            shows.say("TensorBoard is not installed, so nothing is written for it: pip install tensorboard")
        rhythm = Rhythm(recipe, classifier, len(rows), home, records, shows, interruption)
        trainer = RunTrainer(
            classifier.model,
            args,
            game=make_game(recipe),
            train_dataset=rows,
            data_collator=Padding(
                classifier.tokenizer,
                classifier.model,
                lengths if args.device.type == "cuda" else (),
                positions(classifier.model),
            ),
            callbacks=[rhythm],
            judge=judge,
            stopwatch=rhythm.stopwatch,
        )
        trainer.remove_callback(PrinterCallback)
        with interruption.watched():
            trainer.train(resume_from_checkpoint=resume)
    best_step, _ = best_of(scores(trainer.state.log_history))
    best = best_folder(home, best_step)
    if not best.is_dir():
        raise RunError(f"{best} is gone, and it had the best model; remove {folder} to train it anew")
    return Trained(best, best_step, trainer.state.global_step, interruption.requested)


class RunTrainer(AdversarialTrainer):
    """A Trainer that is judged by the task's own figures.

    Args:
        judge: gives them.
        stopwatch: of training steps, which stands still meanwhile.
    """

    def __init__(self, *args: Any, judge: Callable[[], dict[str, float]], stopwatch: Stopwatch, **kwargs: Any) -> None:
        """As the Trainer's own, and these."""
        self.judge = judge
        self.stopwatch = stopwatch
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


def arguments(recipe: Recipe, folder: Path) -> TrainingArguments:
    """The Trainer's. Refuses what this machine, or this way of starting, cannot do."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise SettingError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']}: a run is one process; for several use AdversarialTrainer in a "
            "program of your own (docs/distributed.md)"
        )
    if recipe.precision == "float16" and not torch.cuda.is_available():
        raise SettingError("precision='float16' needs a GPU; use bfloat16 or float32")
    try:
        made = TrainingArguments(
            str(folder / "checkpoints"),
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
            use_cpu=not torch.accelerator.is_available(),  # unless it is told so, bfloat16 is refused on a CPU
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
    _ = made.device
    made._n_gpu = min(made.n_gpu, 1)  # the first of several: nn.DataParallel has no second derivative
    return made
