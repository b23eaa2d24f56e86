"""A file's bytes as text. Whatever stops that is one sentence with the file and, where there is one, the line."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from pathlib import Path

from stackelberg.errors import DataError, nearest

# UTF-32's mark begins with UTF-16's, so it is looked for first.
OTHER_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
SNIFFED = 1000  # bytes looked at for the zeros that UTF-16 puts between letters


def decode(path: Path) -> str:
    """The text of a UTF-8 file, less the mark that some editors begin it with."""
    data = _bytes(path)
    if not data.removeprefix(codecs.BOM_UTF8).strip():
        raise DataError(f"{path} is empty; give a file with a header and at least one row")
    for mark, name in OTHER_MARKS:
        if data.startswith(mark):
            raise _not_utf8(path, name)
    if data[:SNIFFED].count(0) > len(data[:SNIFFED]) / 4:
        raise _not_utf8(path, "UTF-16")
    try:
        return data.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}, line {line}: byte 0x{error.object[error.start]:02x} is not UTF-8; "
            "if the file is Latin-1 or Windows-1252, convert it: iconv -f WINDOWS-1252 -t UTF-8"
        ) from error


def listing(folder: Path) -> str:
    """What is in a folder, for an error's sentence."""
    if not folder.is_dir():
        return f"there is no folder {folder} either"
    names = _names(folder)
    return f"{folder} has {', '.join(names)}" if names else f"{folder} is empty"


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        near = nearest(path.name, _names(path.parent))
        raise DataError(f"{path} is not there; {listing(path.parent)}{near}") from error
    except IsADirectoryError as error:
        raise DataError(f"{path} is a folder where a file is needed; {listing(path)}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def _names(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return _shortened(sorted(f"{entry.name}{'/' if entry.is_dir() else ''}" for entry in folder.iterdir()))


def _shortened(names: Iterable[str], most: int = 20) -> list[str]:
    names = list(names)
    return names if len(names) <= most else [*names[:most], f"and {len(names) - most} more"]


def _not_utf8(path: Path, name: str) -> DataError:
    return DataError(
        f"{path} is {name}, not UTF-8; convert it: iconv -f {name} -t UTF-8 {path.name} > utf8-{path.name}"
    )
