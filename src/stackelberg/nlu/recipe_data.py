"""The rows that a recipe trains on and is judged by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stackelberg.errors import DataError
from stackelberg.nlu.catalogue import find_task
from stackelberg.nlu.examples import Examples, TaskData, hold_out
from stackelberg.nlu.files import METRICS, load_files
from stackelberg.nlu.loading import load
from stackelberg.nlu.reading import read_examples, sorted_labels
from stackelberg.nlu.table import read_table
from stackelberg.nlu.task import Columns, NluTask

if TYPE_CHECKING:
    from stackelberg.nlu.recipe import Recipe

HOLD_OUT_SEED = 0  # not the run's: runs that differ in their seed are judged by the same rows


def read_data(recipe: Recipe) -> TaskData:
    """Every split there is, `train` among them, and as the task's `evaluation` the labelled ones that judge a model.

    A task without a labelled dev split is judged by rows held out of its training split.
    """
    given = _given(recipe)
    if recipe.task is None:
        data = load_files(
            given,
            text=recipe.text or "text",
            pair=recipe.pair,
            label=recipe.label or "label",
            kind=recipe.kind,
            labels=recipe.labels,
            metrics=recipe.metrics,
        )
        task, splits = data.task, dict(data)
    else:
        task = find_task(recipe.task)
        if recipe.data is None and "train" in given and "dev" in given:
            splits = {}  # nothing to ask the hub for
        else:
            splits = dict(load(task, recipe.data))
        splits |= {split: _read(path, task, recipe, split) for split, path in given.items()}
    if "train" not in splits:
        where = "on the hub" if recipe.data is None else f"in {recipe.data}"
        raise DataError(f"{task.title} has no train split {where}, only {', '.join(splits)}; give train=FILE")
    train = splits["train"]
    if train.targets is None:
        raise DataError(f"{train.sources[0]} has no labels to train on; give a file with a column of them")
    if "dev" in given:
        judges: tuple[str, ...] = ("dev",)
    else:
        judges = tuple(
            name
            for name in task.evaluation
            if name.startswith("dev") and name in splits and splits[name].targets is not None
        )
    if not judges:
        splits["train"], splits["dev"] = _cut(train, recipe.hold_out)
        judges = ("dev",)
    first = {split: splits[split] for split in ("train", *judges)}
    return TaskData(replace(task, evaluation=judges), first | splits)


def known_task(recipe: Recipe, labels: Mapping[str, int]) -> NluTask:
    """The task of a run that has been trained, its classes by the names in the model's configuration."""
    if recipe.task is not None:
        return find_task(recipe.task)
    classes = recipe.labels or sorted_labels(labels)
    name = Path(recipe.train or "").resolve().parent.name
    return NluTask(
        name=name,
        title=name,
        kind=recipe.kind,
        columns=Columns(recipe.text or "text", recipe.pair, recipe.label or "label"),
        metrics=recipe.metrics or METRICS[recipe.kind],
        labels=classes if recipe.kind == "classes" else (),
    )


def _given(recipe: Recipe) -> dict[str, Path]:
    """The recipe's own files, by split."""
    named = {split: getattr(recipe, split) for split in ("train", "dev", "test")}
    return {split: Path(path) for split, path in named.items() if path is not None}


def _read(path: Path, task: NluTask, recipe: Recipe, split: str) -> Examples:
    """A file instead of a split of a task that has a name."""
    columns = Columns(
        recipe.text or task.columns.text, recipe.pair or task.columns.pair, recipe.label or task.columns.label
    )
    return read_examples(read_table(path), task, columns, labelled=split != "test")


def _cut(train: Examples, share: float) -> tuple[Examples, Examples]:
    kept, held = hold_out(train, share, seed=HOLD_OUT_SEED)
    if not len(kept) or not len(held):
        raise DataError(
            f"{train.sources[0]} has {len(train)} rows, too few to hold {share:.0%} out for evaluation; give a dev file"
        )
    return kept, held
