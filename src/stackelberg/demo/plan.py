"""What the demo runs: a study of five methods on its letters."""

from __future__ import annotations

import contextlib
import importlib.util
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from stackelberg.decoding import listing
from stackelberg.demo.folder import DEV, MODEL, TRAIN
from stackelberg.errors import ModelError, SettingError
from stackelberg.studies.study import Study

MOST_SEEDS = 1000
# A pretrained encoder is fine-tuned, more gently, and every method has the library's defaults.
FINE_TUNING = {"max_steps": 114, "evaluate_every": 114, "batch_size": 16, "learning_rate": 5e-5, "max_length": 48}


def study_of(home: Path, seeds: int, model: str | None = None) -> Study:
    """The study.

    Args:
        home: the demo's folder.
        seeds: how many.
        model: a pretrained one, as `pretrained` finds it; the demo's own without.
    """
    if not 1 <= seeds <= MOST_SEEDS:
        raise SettingError(f"--seeds {seeds} should be from 1 to {MOST_SEEDS:,}")
    ours = Study.load(Path(str(files("stackelberg.demo") / "study.yaml")))
    place = home / MODEL if model is None else pretrained(model)
    its = {"train": str((home / TRAIN).resolve()), "dev": str((home / DEV).resolve()), "model": str(place.resolve())}
    study = replace(ours, tasks={"letters": its}, seeds=tuple(range(seeds)))
    if model is None:
        return study
    remarks = (*study.remarks[:-1], "Every method has the library's default settings, which nobody searched for.")
    return replace(study, methods={method: {} for method in study.methods}, recipe=FINE_TUNING, remarks=remarks)


def pretrained(said: str) -> Path:
    """A Hugging Face folder, or the one that an installed package of that name has in it."""
    folder, spec = Path(said), None
    if not folder.is_dir() and said.isidentifier():
        with contextlib.suppress(ValueError):  # of modules that nothing was imported from
            spec = importlib.util.find_spec(said)
        homes = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
        found = [path.parent for home in homes for path in sorted(home.rglob("config.json"))]
        folder = min(found, key=lambda path: len(path.parts), default=folder)  # below it may be those of its parts
    if not folder.is_dir():
        raise ModelError(
            f"--model {said!r} is no folder, and no installed package with a model in it; {listing(folder.parent)}"
        )
    if not (folder / "config.json").is_file():
        raise ModelError(f"--model {said!r} has no config.json, so it is no Hugging Face folder; {listing(folder)}")
    return folder
