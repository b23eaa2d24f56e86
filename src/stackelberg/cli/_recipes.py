"""The recipe among a command's words, and the changes to it."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import SettingError


def recipe_among(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The one word that is no `key=value`, if there is one, and those that are."""
    sources = [said for said in words if "=" not in said]
    if len(sources) > 1:
        raise SettingError(f"{' and '.join(map(repr, sources))} are two recipes; give one, and changes as key=value")
    return sources[0] if sources else None, [said for said in words if "=" in said]
