"""Lines of text files, plain or gzipped: a line feed ends them and nothing else; bad UTF-8 is an error by line."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from stackelberg.decoding import listing
from stackelberg.errors import DataError, nearest

LONGEST = 1 << 20  # bytes of a line that are looked at; what is longer is no sentence, and is left out by length


def read_lines(path: Path, longest: int = LONGEST) -> Iterator[str]:
    """The file's lines without their ends, one at a time; of one that is too long, only its beginning."""
    number = 0
    try:
        with _opened(path) as file:
            while data := file.readline(longest):
                number += 1
                cut = len(data) == longest and not data.endswith(b"\n")
                if cut:
                    _pass_over_rest(file, longest)
                if number == 1:
                    data = data.removeprefix(codecs.BOM_UTF8)
                yield codecs.utf_8_decode(data, "strict", not cut)[0].removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}, line {number}: byte 0x{error.object[error.start]:02x} is not UTF-8; "
            "if the file is Latin-1 or Windows-1252, convert it: iconv -f WINDOWS-1252 -t UTF-8"
        ) from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}, after line {number}: not a whole gzip file ({error}); get it again") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def find_text(folder: Path, stem: str, language: str) -> Path:
    """The file `stem.language`, plain or `.gz`, in a folder."""
    names = [f"{stem}.{language}", f"{stem}.{language}.gz"]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    there = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    raise DataError(f"{folder / names[0]} is not there, nor with .gz; {listing(folder)}{nearest(names[0], there)}")


def digest(path: Path) -> str:
    """A hash of the file's bytes."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def _opened(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _pass_over_rest(file: IO[bytes], at_once: int) -> None:
    while (more := file.readline(at_once)) and not more.endswith(b"\n"):
        pass
