"""The demo, all of it, in seconds: few letters and few steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from stackelberg.demo import folder, plan
from stackelberg.studies.study import Study

ROWS = {folder.TRAIN: 48, folder.DEV: 30}
STEPS = {"max_steps": 2, "evaluate_every": 2}


def make_small(patch: pytest.MonkeyPatch, methods: Sequence[str] | None = None) -> None:
    """Whatever is begun from here on; of all methods, or of some."""
    patch.setattr(folder, "ROWS", ROWS)
    whole = plan.study_of

    def small(home: Path, seeds: int, model: str | None = None) -> Study:
        study = whole(home, seeds, model)
        its = {method: fields for method, fields in study.methods.items() if methods is None or method in methods}
        return replace(study, methods=its, recipe={**study.recipe, **STEPS})

    patch.setattr(plan, "study_of", small)
