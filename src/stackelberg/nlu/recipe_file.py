"""Which recipes understanding has, and what a recipe's name means: a file, one of ours, or a task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stackelberg.errors import SettingError, nearest
from stackelberg.nlu.catalogue import TASKS, find_task
from stackelberg.runs.recipe_file import every_recipe, look_up, parsed

TRANSLATION = "nmt/"  # begins the names of translation's recipes, which have other fields


def shipped() -> dict[str, Path]:
    """The package's recipes of understanding: name to file."""
    return {name: path for name, path in every_recipe().items() if not name.startswith(TRANSLATION)}


def find(source: str | Path | None) -> tuple[str, dict[str, Any]]:
    """What to call the recipe of that name or file, and what is in it."""
    known = shipped()
    if (found := look_up(source, known)) is not None:
        return found
    try:
        task = find_task(str(source)).name
    except SettingError as error:
        raise SettingError(
            f"recipe {source!r} is no file, no recipe of ours and no task; the recipes are {', '.join(known)}"
            f"{nearest(source, [*known, *TASKS])}"
        ) from error
    for name, path in known.items():
        if name.rpartition("/")[2] == task:
            return name, parsed(path)
    return task, {"task": task}
