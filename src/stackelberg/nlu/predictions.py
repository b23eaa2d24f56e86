"""A model's answers on one split as a file: a line a row, in the rows' order, numbers that read back as they were."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stackelberg.decoding import decode
from stackelberg.errors import RunError
from stackelberg.nlu.examples import Examples
from stackelberg.nlu.metrics import predicted
from stackelberg.nlu.task import NluTask

Floats = NDArray[np.float64]
Targets = NDArray[np.float64] | NDArray[np.int64] | None
Answers = tuple[Floats, Targets, tuple[str, ...] | None]


def as_tsv(task: NluTask, found: Floats, examples: Examples | None = None) -> str:
    """`id` and `label` if they are known, `prediction`, and the probability of each class.

    Args:
        task: its labels name the columns.
        found: probabilities, (rows, classes), or scores, (rows,).
        examples: the rows, for their ids and labels.
    """
    ids = None if examples is None else examples.ids
    targets = None if examples is None else examples.targets
    header = ["id"] * (ids is not None) + ["label"] * (targets is not None) + ["prediction", *_columns(task)]
    lines = ["\t".join(header)]
    for row, said in enumerate(_said(task, found)):
        fields = [] if ids is None else [_clean(ids[row])]
        if targets is not None:
            fields.append(_clean(task.labels[int(targets[row])]) if task.kind == "classes" else repr(targets[row]))
        values = [] if task.kind == "score" else [repr(float(value)) for value in found[row]]
        lines.append("\t".join([*fields, _clean(str(said)), *values]))
    return "\n".join(lines) + "\n"


def as_json_lines(task: NluTask, found: Floats) -> str:
    """An object a row: `prediction`, and with classes `probabilities` by label."""
    lines = []
    for row, said in enumerate(_said(task, found)):
        entry: dict[str, object] = {"prediction": said}
        if task.kind == "classes":
            entry["probabilities"] = {label: float(p) for label, p in zip(task.labels, found[row], strict=True)}
        lines.append(json.dumps(entry, ensure_ascii=False))
    return "\n".join(lines) + "\n"


def read_tsv(path: Path, task: NluTask) -> Answers:
    """What `as_tsv` wrote: probabilities or scores, targets and ids."""
    try:
        return _parsed(decode(path), task)
    except (ValueError, KeyError) as error:
        raise RunError(f"{path} is not what a run of {task.title} writes; remove it, and it is made anew") from error


def _parsed(text: str, task: NluTask) -> Answers:
    lines = text.removesuffix("\n").split("\n")
    header, rows = lines[0].split("\t"), [line.split("\t") for line in lines[1:]]
    wanted = ["prediction", *_columns(task)]
    before = len(header) - len(wanted)
    if not rows or header[max(before, 0) :] != wanted or any(len(row) != len(header) for row in rows):
        raise ValueError(f"not a table of {', '.join(wanted)}")
    columns = {name: [row[place] for row in rows] for place, name in enumerate(header[:before])}
    first = before if task.kind == "score" else before + 1
    values = np.array([[float(value) for value in row[first:]] for row in rows], dtype=np.float64)
    targets: Targets = None
    if "label" in columns and task.kind == "classes":
        places = {_clean(label): place for place, label in enumerate(task.labels)}
        targets = np.array([places[label] for label in columns["label"]], dtype=np.int64)
    elif "label" in columns:
        targets = np.array([float(label) for label in columns["label"]], dtype=np.float64)
    return (
        values if task.kind == "classes" else values[:, 0],
        targets,
        tuple(columns["id"]) if "id" in columns else None,
    )


def _said(task: NluTask, found: Floats) -> Sequence[str | float]:
    """The label of each row, or its score."""
    if task.kind == "score":
        return [float(value) for value in predicted(task, found)]
    return [task.labels[place] for place in predicted(task, found)]


def _columns(task: NluTask) -> list[str]:
    return [f"p({_clean(label)})" for label in task.labels] if task.kind == "classes" else []


def _clean(text: str) -> str:
    """A label of a user's own may hold what ends a field or a line."""
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
