"""Labels outside the range, caught in the collator: on a device they would be an assertion without a name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ..errors import ModelError
from .task import IGNORED


def refuse_bad_labels(labels: Tensor, classes: int) -> None:
    """Refuse class labels that are neither 0 … classes − 1 nor −100. Call it where the labels are on the CPU."""
    if labels.is_floating_point() or labels.numel() == 0:
        return
    bad = labels[((labels < 0) | (labels >= classes)) & (labels != IGNORED)]
    if bad.numel():
        raise ModelError(
            f"a label is {int(bad[0])}, but the model has {classes} classes (labels 0 … {classes - 1}, or {IGNORED} "
            "to ignore a position); check the label column, or load the model with the right num_labels"
        )


def checking_labels(collate: Callable[[Any], Mapping[str, Any]], classes: int) -> Callable[[Any], Mapping[str, Any]]:
    """`collate`, with every batch's labels checked: `DataLoader(..., collate_fn=checking_labels(collate, 3))`."""

    def checked(examples: Any) -> Mapping[str, Any]:
        batch = collate(examples)
        if isinstance(batch.get("labels"), Tensor):
            refuse_bad_labels(batch["labels"], classes)
        return batch

    return checked
