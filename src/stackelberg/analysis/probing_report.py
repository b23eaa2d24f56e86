"""Several models probed on several tasks: accuracies by seed, a table, a violin plot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stackelberg.analysis.errors import AnalysisError
from stackelberg.analysis.frozen import FrozenEncoder, Pooling
from stackelberg.analysis.probing import SEEDS, Probe, ProbingTask, probe
from stackelberg.analysis.runs import kinds, open_runs
from stackelberg.analysis.statistics import spread
from stackelberg.analysis.violins import violin_figure

POOLED = {
    "first": "the last layer's state of the first token",
    "mean": "the mean of the last layer's states over a row's tokens",
}


@dataclass(frozen=True, slots=True)
class Subject:
    """A model to probe.

    Args:
        kind: what it is a model of, its seed aside; models of one kind share a violin.
        folder: as it was given.
        model: folder of the model itself.
        cache: folder for its features.
    """

    kind: str
    folder: Path
    model: Path
    cache: Path


Found = Mapping[str, Sequence[tuple[Subject, Probe]]]  # by the task's name


def subjects(folders: Sequence[Path], cache: Path) -> list[Subject]:
    """Runs, or folders that models are saved in.

    Args:
        folders: of either.
        cache: folder for the features of models that are no runs; a run keeps its own.
    """
    plain = [folder for folder in folders if (folder / "config.json").is_file()]
    runs = open_runs([folder for folder in folders if folder not in plain])
    by_folder = {
        run.folder: Subject(kind, run.folder, run.model_folder, run.folder / "probing")
        for kind, run in zip(kinds(runs), runs, strict=True)
    }
    for folder in plain:
        name = folder.resolve().name
        by_folder[folder] = Subject(name, folder, folder, cache / name)
    return [by_folder[folder] for folder in dict.fromkeys(folders)]


def probe_all(
    models: Sequence[Subject],
    tasks: Sequence[ProbingTask],
    *,
    seeds: int = SEEDS,
    pooling: Pooling = "first",
    max_length: int = 128,
    report: Callable[[Subject, str], None] = lambda subject, title: None,
) -> Found:
    """Every model on every task.

    Args:
        models: to probe.
        tasks: to probe them on.
        seeds: how many draws of the rows.
        pooling: see `FrozenEncoder`.
        max_length: tokens that rows are cut to.
        report: told each model and task that is begun.
    """
    if not tasks:
        raise AnalysisError("there is no task to probe on; give at least one, such as cr")
    found: dict[str, list[tuple[Subject, Probe]]] = {task.name: [] for task in tasks}
    for subject in models:
        encoder = FrozenEncoder(subject.model, pooling=pooling, max_length=max_length)
        for task in tasks:
            report(subject, task.title)
            found[task.name].append((subject, probe(encoder, task, seeds=seeds, cache=subject.cache)))
    return found


def by_kind(found: Sequence[tuple[Subject, Probe]]) -> dict[str, list[float]]:
    """All accuracies of each kind of model, whichever seed they were trained or drawn with."""
    pooled: dict[str, list[float]] = {}
    for subject, its in found:
        pooled.setdefault(subject.kind, []).extend(its.accuracies)
    return pooled


def table(found: Found, tasks: Sequence[ProbingTask]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: mean and standard deviation of each kind on each task."""
    columns = [by_kind(found[task.name]) for task in tasks]
    rows = [[kind, *(spread(column[kind]).text(100) for column in columns)] for kind in columns[0]]
    return ["model", *(task.title for task in tasks)], rows


def figure(found: Found, tasks: Sequence[ProbingTask]) -> Any:
    """The violins."""
    return violin_figure({task.title: by_kind(found[task.name]) for task in tasks})


def remarks(found: Found, tasks: Sequence[ProbingTask], pooling: str) -> list[str]:
    """What a reader must know of the figures."""
    first = found[tasks[0].name]
    seeds = len(first[0][1].accuracies)
    several = max(Counter(subject.kind for subject, _ in first).values())
    said = [
        f"A head is a logistic regression on {POOLED[pooling]}, standardized; the encoder is frozen.",
        f"Each of {seeds} seed{'s' * (seeds > 1)} draws rows, the same for every model: "
        + "; ".join(f"{task.title}, {task.drawn}" for task in tasks)
        + ".",
    ]
    if several > 1:
        said.append(f"± is over draws and over up to {several} models of a kind, which differ in their training seed.")
    elif seeds > 1:
        said.append(
            "± is over draws of the rows, with one model of each kind: it does not tell how another training seed "
            "would have come out."
        )
    unfinished = sum(its.unfinished for pairs in found.values() for _, its in pairs)
    if unfinished:
        said.append(f"Fits that were stopped before they converged: {unfinished}.")
    return said


def document(found: Found, tasks: Sequence[ProbingTask], pooling: str) -> dict[str, Any]:
    """For JSON: every accuracy."""
    return {
        "pooling": pooling,
        "remarks": remarks(found, tasks, pooling),
        "tasks": {
            task.name: {
                "title": task.title,
                "rows": len(task.examples),
                "drawn": task.drawn,
                "models": [
                    {"kind": subject.kind, "folder": str(subject.folder), "accuracies": list(its.accuracies)}
                    for subject, its in found[task.name]
                ],
            }
            for task in tasks
        },
    }
