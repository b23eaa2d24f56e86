"""Several runs at once: opened, and named so that each can be told from the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stackelberg.analysis.errors import AnalysisError

if TYPE_CHECKING:
    from stackelberg.nlu.run import Run


def open_runs(folders: Sequence[Path]) -> list[Run]:
    """Finished runs, each once."""
    from stackelberg.nlu.run import Run

    real = [folder.resolve() for folder in folders]
    twice = [str(folder) for folder, count in Counter(real).items() if count > 1]
    if twice:
        raise AnalysisError(f"{twice[0]} is given twice; give each run once")
    return [Run.open(folder) for folder in folders]


def kinds(runs: Sequence[Run]) -> list[str]:
    """For each run what it is a run of, its seed aside: runs of one kind differ in nothing else.

    It is the method's name, and where a method was played in several ways, or on several tasks, their number besides.
    """
    ways: dict[str, list[str]] = {}
    names = []
    for run in runs:
        ways_of_it = ways.setdefault(run.recipe.method, [])
        way = run.recipe.replace(seed=0).key()
        if way not in ways_of_it:
            ways_of_it.append(way)
        names.append((run.recipe.method, ways_of_it.index(way)))
    return [f"{method} {place + 1}" if len(ways[method]) > 1 else method for method, place in names]


def names(runs: Sequence[Run]) -> list[str]:
    """For each run a name of its own: its kind, and its seed where a kind has several."""
    found = kinds(runs)
    count = Counter(found)
    return [
        f"{kind}, seed {run.recipe.seed}" if count[kind] > 1 else kind for kind, run in zip(found, runs, strict=True)
    ]
