"""Whose 0 is it? Checkpoints disagree on the order of the classes, and their configuration says which they took."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stackelberg.errors import DataError
from stackelberg.nlu.task import NluTask

UNNAMED = re.compile(r"label_?\d+|\d+")  # what a configuration has when nobody named the classes


@dataclass(frozen=True, slots=True)
class LabelOrder:
    """The model's output for each class of a task.

    Args:
        ids: for each of the task's classes, in the task's order, the model's output.
        named: whether the model's configuration names the task's classes; if not, `ids` is the task's own order.
    """

    ids: tuple[int, ...]
    named: bool

    def to_model(self, target: int) -> int:
        """The model's output for a class of the task."""
        return self.ids[target]

    def to_task(self, output: int) -> int:
        """The task's class for an output of the model."""
        return self.ids.index(output)


def named_outputs(config: Any) -> dict[str, int]:
    """The names that a model's configuration gives its outputs.

    Args:
        config: of Hugging Face. Its `id2label` is read: `label2id` is None where a checkpoint has only the other.
    """
    return {str(name): int(output) for output, name in config.id2label.items()}


def label_order(task: NluTask, label2id: Mapping[str, int] | None, *, trained: bool = False) -> LabelOrder:
    """Match a task's classes to a model's outputs by the names in its configuration.

    Args:
        task: a task with classes.
        label2id: names to outputs, as `named_outputs` has them of a configuration.
        trained: the model's head is used as it is. It must then have as many outputs as the task has classes, and
            either name them or leave them unnamed; a head that is fitted anew may have had any names.
    """
    own = LabelOrder(tuple(range(len(task.labels))), named=False)
    if label2id is None or task.kind == "score":
        return own
    spellings = {_plain(spelling): index for spelling, index in task.label_index().items()}
    outputs = {spellings[_plain(name)]: int(output) for name, output in label2id.items() if _plain(name) in spellings}
    unnamed = all(UNNAMED.fullmatch(_plain(name)) for name in label2id)
    if (
        not unnamed
        and len(outputs) == len(label2id) == len(task.labels)
        and sorted(outputs.values()) == list(range(len(task.labels)))
    ):
        return LabelOrder(tuple(outputs[index] for index in range(len(task.labels))), named=True)
    if trained and not (unnamed and len(label2id) == len(task.labels)):
        raise DataError(
            f"the model's outputs are {', '.join(label2id)} and {task.title}'s classes are {', '.join(task.labels)}; "
            "give a model trained on such classes, or correct label2id in its configuration"
        )
    return own


def label2id(task: NluTask, order: LabelOrder | None = None) -> dict[str, int]:
    """What a model's configuration should say, so that the next to load it need not guess."""
    ids = range(len(task.labels)) if order is None else order.ids
    return dict(zip(task.labels, ids, strict=True))


def _plain(name: str) -> str:
    return re.sub(r"[\s-]+", "_", str(name).strip().lower())
