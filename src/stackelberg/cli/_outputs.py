"""Where a command writes: refused as its words are read, not after the work."""

from __future__ import annotations

from pathlib import Path

from ..errors import SettingError
from ..storage import unwritable


def folder(out: Path | None) -> Path | None:
    """Refuse what cannot be a folder to write to."""
    if out is not None and (wrong := unwritable(out)) is not None:
        raise SettingError(f"{out} cannot be written: {wrong}; give another")
    return out


def file(out: Path | None) -> Path | None:
    """Refuse what cannot be a file."""
    if out is not None and out.is_dir():
        raise SettingError(f"{out} is a folder where a file is needed; give another")
    if out is not None:
        folder(out.parent)
    return out
