"""Ctrl-C, once: the step in progress is finished and a checkpoint written. Twice: at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """A run was asked to stop, and has left behind what it needs to go on."""


class Interruption:
    """Whether somebody has asked the run to stop, from the keyboard or as a scheduler does (SIGTERM).

    Args:
        say: how to answer.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        """Nobody yet."""
        self.requested = False
        self._say = say

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While both signals are a request; in a thread, which cannot have them, nothing changes."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {which: signal.signal(which, self._heard) for which in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for which, handler in before.items():
                signal.signal(which, handler)

    def _heard(self, which: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        self._say("stopping after this step, with a checkpoint; once more stops at once")
