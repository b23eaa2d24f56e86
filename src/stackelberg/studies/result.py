"""What has become of one run of a study: what a store says of it, and what its folder says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

State = Literal["waiting", "running", "finished", "failed"]

CELL, RESULT = "cell.json", "result.json"


@dataclass(frozen=True, slots=True)
class Result:
    """What is known of a run.

    Args:
        id: of its cell; the other names of a cell follow.
        kind: `nlu` or `nmt`.
        method: its name.
        task: its name in the study.
        setting: likewise.
        seed: the recipe's.
        state: `failed` where it cannot be trained, or was given up.
        folder: the run's, there or not.
        figures: of a finished run as `Run.figures` has them (`score`, `ece`, `seconds_per_step`; of translation
            `test/sacrebleu`, times 100 already), and what was measured: `probing/cr`, `robustness/dev/anli-r1`.
        error: a sentence, of one that failed.
        who: the process that has it, of one that is running.
        heartbeat: when that process was last heard of, in seconds since 1970.
        attempts: how often it was begun.
        started: when, for the last time.
        finished: when.
    """

    id: str
    kind: str
    method: str
    task: str
    setting: str
    seed: int
    state: State
    folder: Path
    figures: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None
    who: str | None = None
    heartbeat: float | None = None
    attempts: int = 0
    started: float | None = None
    finished: float | None = None


def finished_figures(folder: Path, measures: Mapping[str, Any]) -> dict[str, float | None] | None:
    """The figures of a run that is finished, and measured as is wanted; None of any other."""
    try:
        result = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        said = json.loads((folder / CELL).read_text(encoding="utf-8"))
        lacking = any(said["measured"].get(name) != options for name, options in measures.items())
        return None if lacking else {**result, **said["figures"]}
    except (OSError, ValueError, KeyError):
        return None
