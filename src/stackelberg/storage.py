"""Files and folders that are there whole or not at all, whenever the process that writes them is killed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

UNFINISHED = ".unfinished-"  # begins the name of what is still being written, beside where it will be


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file; until the last byte is on the disk, an earlier one of that name stays as it was."""
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=UNFINISHED, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o666 & ~_umask())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    synced(path.parent)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to write into, which becomes `path` at the end. `path` must not be there, or be empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f"{UNFINISHED}{path.name}-", dir=path.parent))
    try:
        yield unfinished
        for file in unfinished.rglob("*"):
            synced(file)
        synced(unfinished)
        unfinished.chmod(0o777 & ~_umask())
        unfinished.rename(path)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    synced(path.parent)


def unwritable(folder: Path) -> str | None:
    """What stops a folder from being made or written to, before there is anything to write; None where nothing does."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        return f"{there} is a file where a folder is needed"
    try:
        with tempfile.TemporaryFile(dir=there):
            return None
    except OSError as error:
        return f"{there} cannot be written to ({error.strerror})"


def sweep_unfinished(parent: Path) -> None:
    """Remove what killed processes left half-written in a folder that no other process is writing to."""
    for left in parent.glob(f"{UNFINISHED}*"):
        if left.is_dir():
            shutil.rmtree(left)
        else:
            left.unlink()


def synced(path: Path) -> None:
    """To the disk: a rename may otherwise reach it before what it renames."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    """Only by setting it can it be read."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
