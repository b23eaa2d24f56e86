"""How long a training step takes, with what happens between steps left out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter


class Stopwatch:
    """Runs from one lap to the next, except in pauses."""

    def __init__(self) -> None:
        """Started."""
        self._since = perf_counter()
        self._steps = 0  # at the last lap

    def start(self, step: int) -> None:
        """Begin a lap at this step."""
        self._since, self._steps = perf_counter(), step

    def lap(self, step: int) -> tuple[float, int]:
        """Seconds and steps since the last lap."""
        now = perf_counter()
        seconds, steps = now - self._since, step - self._steps
        self.start(step)
        return seconds, steps

    @contextmanager
    def paused(self) -> Iterator[None]:
        """For evaluations and checkpoints."""
        begun = perf_counter()
        try:
            yield
        finally:
            self._since += perf_counter() - begun
