"""Adversarial rows beside the rows that they were made from."""

from __future__ import annotations

from stackelberg.errors import DataError
from stackelberg.nlu.examples import Examples, TaskData


def attacked_and_original(data: TaskData) -> tuple[Examples, Examples]:
    """The rows of an AdvGLUE task that have an original, after the attack and before it, in one order.

    Some of AdvGLUE was written from nothing: those rows have no original, and are in `data["dev"]` alone.
    """
    attacked, original = data["dev"], data["original"]
    if attacked.ids is None or original.ids is None:
        raise DataError(f"{data.task.title} has no ids to match attacked rows to their originals by")
    rows = {name: row for row, name in enumerate(attacked.ids)}
    lost = [name for name in original.ids if name not in rows]
    if lost or len(rows) < len(attacked.ids):
        raise DataError(
            f"{attacked.sources[0]} and {original.sources[0]} do not have the same rows (id {lost or 'twice'})"
        )
    return attacked.take(rows[name] for name in original.ids), original
