"""One run of a study, in the process that trains it."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stackelberg.runs.records import finite
from stackelberg.storage import write_whole
from stackelberg.studies.cell import Cell
from stackelberg.studies.measures import measure
from stackelberg.studies.result import CELL


def train(cell: Cell, folder: Path, measures: Mapping[str, Any], cpus: int) -> None:
    """Train what is not finished and measure what is not measured.

    Args:
        cell: the run.
        folder: the run's.
        measures: the study's.
        cpus: threads to compute with, for other numbers of them give other digits.
    """
    import torch

    from stackelberg.nlu.run import Run
    from stackelberg.nmt.run import TranslationRun

    torch.set_num_threads(cpus)
    with _the_only_one(folder):
        kind: Any = TranslationRun if cell.kind == "nmt" else Run
        run = kind.train(cell.recipe, folder, tensorboard=False)
        path = folder / CELL
        said = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"measured": {}, "figures": {}}
        for name, options in measures.items():
            if said["measured"].get(name) != options:
                kept = {each: value for each, value in said["figures"].items() if not each.startswith(f"{name}/")}
                said["figures"] = kept | finite(measure(run, name, options))
                said["measured"][name] = options
        its = {name: getattr(cell, name) for name in ("kind", "method", "task", "setting", "seed")}
        write_whole(path, json.dumps({**its, **said}, indent=2) + "\n")


@contextmanager
def _the_only_one(folder: Path) -> Iterator[None]:
    """While no other process is at this run: one whose study was killed may still be about to die."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
