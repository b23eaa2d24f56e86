"""A study of 3 methods × 2 tasks × 2 seeds that takes seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from stackelberg.studies.result import Result
from stackelberg.studies.study import Study

SMALL = {"max_steps": 4, "batch_size": 4, "max_length": 24, "evaluate_every": 4, "learning_rate": 5e-3}
TIMED = ("seconds", "seconds_per_step", "peak_gib")


def written(home: Path, **changes: Any) -> Path:
    """As a file."""
    values = {
        "methods": ["plain", "vat", "salt"],
        "tasks": ["sst-2", "sts-b"],
        "seeds": 2,
        **changes,
    }
    values.setdefault("smoke", {"tasks": dict.fromkeys(values["tasks"] or (), SMALL)})
    home.mkdir(parents=True, exist_ok=True)
    (home / "tiny.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    return home / "tiny.yaml"


def study(home: Path, overrides: Sequence[str] = (), **changes: Any) -> Study:
    """Read from that file."""
    return Study.load(written(home, **changes), overrides, smoke=home / "smoke")


def figures(results: Sequence[Result]) -> dict[tuple[Any, ...], Mapping[str, float]]:
    """What must be the same wherever and however often a study was run."""
    return {
        (each.method, each.task, each.seed): {k: v for k, v in each.figures.items() if k not in TIMED}
        for each in results
    }
