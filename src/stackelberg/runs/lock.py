"""One process at a time in a run's folder. The lock is the kernel's, so a process that is killed leaves none behind.

Where there is no such lock, on Windows and on some network file systems, nothing is locked. The processes of one
torchrun job are one for this purpose: the first of them holds it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stackelberg.errors import RunError
from stackelberg.storage import sweep_unfinished

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"  # there while a process trains; a killed one's is nobody's
LONGEST = 200  # bytes of what is said of its holder


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Make the folder, keep other processes out of it, and clear it of what a killed one left half-written.

    What was made in vain, and is empty at the end, is removed.
    """
    if fcntl is None or int(os.environ.get("RANK", "0")):
        yield
        return
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    descriptor = _locked(folder)
    try:
        sweep_unfinished(folder)
        yield
    finally:
        (folder / LOCK).unlink(missing_ok=True)
        os.close(descriptor)
        with suppress(OSError):  # not empty, as it is after any step
            for path in made:
                path.rmdir()


def _locked(folder: Path) -> int:
    """The descriptor of the lock's file, which is open as long as the lock is held."""
    path = folder / LOCK
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:  # another process is just removing the folder that it made in vain
            continue
        except OSError as error:
            raise RunError(f"{folder} cannot be made ({error.strerror}); give another --out") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = os.read(descriptor, LONGEST).decode(errors="replace")
            os.close(descriptor)
            raise RunError(
                f"{who or 'another process'} is training in {folder}; wait for it, or give another --out"
            ) from None
        except OSError:
            return descriptor  # this file system has no locks
        if _is_at(path, descriptor):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
            return descriptor
        os.close(descriptor)  # its holder removed it in between: another try, with a new file


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
