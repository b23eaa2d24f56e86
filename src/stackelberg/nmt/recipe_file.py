"""Which recipes translation has, and how one is told from understanding's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stackelberg.errors import SettingError, nearest
from stackelberg.nlu.recipe_file import TRANSLATION
from stackelberg.runs.recipe_file import every_recipe, is_file, look_up, parsed


def shipped() -> dict[str, Path]:
    """The package's recipes of translation: name to file."""
    return {name: path for name, path in every_recipe().items() if name.startswith(TRANSLATION)}


def is_translation(source: str | Path | None) -> bool:
    """Whether a recipe, by its name or its file, is one of translation."""
    if source is None or str(source) in shipped():
        return source is not None
    return is_file(source) and Path(source).is_file() and {"source", "target"} <= set(parsed(Path(source)))


def find(source: str | Path | None) -> tuple[str, dict[str, Any]]:
    """What to call the recipe of that name or file, and what is in it."""
    known = shipped()
    if (found := look_up(source, known)) is not None:
        return found
    raise SettingError(
        f"recipe {source!r} is no file and no translation recipe of ours; they are {', '.join(known)}"
        f"{nearest(source, known)}"
    )
