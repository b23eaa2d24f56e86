"""A run folder: one recipe, trained.

recipe.yaml       what was asked for            result.json       figures; written last: the run is finished
versions.json     what it was made with         model/            the best model, an ordinary Hugging Face folder
metrics.jsonl     figures by step               predictions/      a file a split
tensorboard/      the same, to look at          checkpoints/      while it is not finished
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from stackelberg.errors import DataError, RunError
from stackelberg.extras import need
from stackelberg.nlu.predictions import Answers, Floats, as_tsv, read_tsv
from stackelberg.nlu.recipe import Recipe
from stackelberg.nlu.recipe_data import known_task, read_data
from stackelberg.nlu.task import NluTask
from stackelberg.runs.folder import RECIPE, begin, cost, figures_of, finish, is_finished, logged, read_json
from stackelberg.runs.lock import held
from stackelberg.storage import write_whole

if TYPE_CHECKING:
    from stackelberg.nlu.classifier import Classifier
    from stackelberg.nlu.encoding import Encoded
    from stackelberg.nlu.examples import Examples, TaskData
    from stackelberg.nlu.training import Trained
    from stackelberg.runs.progress import Display


class Run:
    """A finished run.

    Args:
        folder: the run's.
        recipe: that it was trained with.
        figures: of the best model on the dev split, as fractions: the task's metrics, their mean `score`, and with
            classes `ece`, `ece_width`, `mce`, `brier`, `nll` and `confidence`, with scores `mse`. And of the training:
            `steps`, `best_step`, `seconds`, `seconds_per_step` (of steps alone; the median over what was logged), and
            `peak_gib` on a GPU.
    """

    def __init__(self, folder: Path, recipe: Recipe, figures: dict[str, float]) -> None:
        """Of a folder that is known to be whole; use `train` or `open`."""
        self.folder = folder
        self.recipe = recipe
        self.figures = figures

    @classmethod
    def train(
        cls,
        recipe: Recipe,
        folder: Path | str,
        *,
        quiet: bool = False,
        tensorboard: bool = True,
        keep_checkpoints: bool = False,
    ) -> Run:
        """Train, go on with a run that was interrupted, or return at once one that is finished.

        Args:
            recipe: what to train.
            folder: new, empty, or a run's with the same recipe; any other is refused.
            quiet: say nothing on standard error.
            tensorboard: write for TensorBoard too.
            keep_checkpoints: leave them where they are when the run is finished.
        """
        from stackelberg.runs.progress import display, warnings_to

        folder = Path(folder)
        if is_finished(folder, recipe):
            return cls.open(folder)
        for module in ("accelerate", "numpy", "scipy", "sklearn", "transformers", "yaml"):
            need(module)
        shows = display(quiet=quiet)
        with warnings_to(shows), held(folder):
            if is_finished(folder, recipe):  # by a process that held it until now
                return cls.open(folder)
            return cls._train(recipe, folder, shows, tensorboard, keep_checkpoints)

    @classmethod
    def open(cls, folder: Path | str) -> Run:
        """A finished run."""
        folder = Path(folder)
        figures = figures_of(folder)
        return cls(folder, Recipe.load(folder / RECIPE), figures)

    @property
    def model_folder(self) -> Path:
        """The best model and its tokenizer, for `from_pretrained`."""
        return self.folder / "model"

    @cached_property
    def task(self) -> NluTask:
        """What the model was trained for."""
        path = self.model_folder / "config.json"
        names = read_json(path, dict).get("id2label")
        if not isinstance(names, dict) or not all(output.isdecimal() for output in names):
            raise RunError(f"{path} does not name the model's outputs (id2label); remove the run, and make it again")
        outputs = {str(name): int(output) for output, name in names.items()}
        return replace(known_task(self.recipe, outputs), evaluation=self.judged_by)

    @property
    def judged_by(self) -> tuple[str, ...]:
        """The splits that `figures` are of."""
        return tuple(map(str, read_json(self.folder / "predictions" / "judged_by.json", list)))

    def probabilities(self, split: str) -> Answers:
        """The model's answers on a split, from the run's folder or, if they are not there yet, made and kept.

        Returns:
            Probabilities, (rows, classes) in the task's order of labels, or scores, (rows,); the targets and the ids
            of the rows, or None where there are none.
        """
        path = self._predictions(split)
        if not path.is_file():
            examples = self.data[split]
            write_whole(path, as_tsv(self.task, self.predict(examples), examples))
        return read_tsv(path, self.task)

    def evaluate(self, split: str) -> dict[str, float]:
        """The task's metrics on a labelled split and, with classes, its calibration, as fractions."""
        from stackelberg.nlu.judging import of_split

        found, targets, _ = self.probabilities(split)
        if targets is None:
            raise DataError(f"{self.task.title}'s {split} has no labels to evaluate on; choose another split")
        return of_split(self.task, found, targets)

    def predict(self, examples: Examples) -> Floats:
        """Probabilities or scores of any rows, in their order."""
        from stackelberg.nlu.judging import answers

        found = self.classifier.outputs(self.classifier.encode(examples), precision=self.recipe.precision)
        return answers(self.task, found, "these rows")

    @cached_property
    def data(self) -> TaskData:
        """The task's rows, read again from where they were."""
        return read_data(self.recipe)

    @cached_property
    def classifier(self) -> Classifier:
        """The best model, on the GPU if there is one."""
        return _loaded(self.recipe, self.task, self.model_folder)

    def _predictions(self, split: str) -> Path:
        return self.folder / "predictions" / f"{split}.tsv"

    @classmethod
    def _train(cls, recipe: Recipe, folder: Path, shows: Display, tensorboard: bool, keep: bool) -> Run:
        from transformers import set_seed

        from stackelberg.nlu.classifier import Classifier
        from stackelberg.nlu.summary import render, summarize
        from stackelberg.nlu.training import arguments, fit, rehearse
        from stackelberg.runs.provenance import provenance

        args = arguments(recipe, folder)
        data = read_data(recipe)
        set_seed(recipe.seed)  # the head's first weights
        classifier = Classifier.load(
            recipe.model,
            data.task,
            max_length=recipe.max_length,
            weights=recipe.weights,
            head_dropout=recipe.head_dropout,
        )
        rehearse(recipe, classifier, data)
        splits = ("train", *data.task.evaluation)
        encoded = {split: classifier.encode(data[split]) for split in splits}
        shows.say(render(summarize(_only(data, splits), encoded)))
        if recipe.form == "paper" and recipe.gaps:
            shows.say(f"warning: the paper does not say {'; '.join(recipe.gaps)}")
        shows.say(f"{recipe.method} on {recipe.model}, into {folder}")
        begin(folder, recipe, provenance())
        trained = fit(recipe, classifier, data, encoded, folder, args=args, shows=shows, tensorboard=tensorboard)
        del classifier
        run = cls._finish(recipe, folder, data, encoded, trained)
        if not keep:
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        if trained.interrupted:
            from stackelberg.runs.interruption import Interrupted

            raise Interrupted
        return run

    @classmethod
    def _finish(
        cls, recipe: Recipe, folder: Path, data: TaskData, encoded: dict[str, Encoded], trained: Trained
    ) -> Run:
        """From the best model to the figures, each file whole, the result last."""
        from stackelberg.nlu.judging import answers, figures
        from stackelberg.nlu.run_card import card
        from stackelberg.nlu.training import make_game

        model = folder / "model"
        shutil.rmtree(model, ignore_errors=True)  # of a run that was killed here
        shutil.copytree(trained.best, model)
        classifier = _loaded(recipe, data.task, model)
        found = {}
        for split in data.task.evaluation:
            outputs = classifier.outputs(encoded[split], precision=recipe.precision)
            found[split] = answers(data.task, outputs, split)
            write_whole(folder / "predictions" / f"{split}.tsv", as_tsv(data.task, found[split], data[split]))
        write_whole(folder / "predictions" / "judged_by.json", json.dumps(data.task.evaluation) + "\n")
        result: dict[str, float] = {
            **figures(data.task, found, data),
            "steps": trained.steps,
            "best_step": trained.best_step,
            "seconds": logged(folder)[-1]["seconds"],
            **cost(folder),
        }
        finish(folder, make_game(recipe), card(recipe, data, result), result)
        return cls(folder, recipe, result)


def _loaded(recipe: Recipe, task: NluTask, folder: Path) -> Classifier:
    import torch

    from stackelberg.nlu.classifier import Classifier

    found = Classifier.load(str(folder), task, max_length=recipe.max_length, weights=recipe.weights, trained=True)
    if torch.cuda.is_available():
        found.model.to("cuda")
    return found


def _only(data: TaskData, splits: tuple[str, ...]) -> TaskData:
    from stackelberg.nlu.examples import TaskData

    return TaskData(data.task, {split: data[split] for split in splits})
