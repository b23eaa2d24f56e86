"""How a run shows itself: a live bar in a terminal, plain lines elsewhere, nothing if asked. All on standard error."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any, Protocol

SHOWN = {"loss": "loss", "game/task_loss": "task", "game/divergence": "divergence", "game/guarded": "guarded"}
LINE_EVERY = 10.0  # seconds between plain lines


class Display(Protocol):
    """What a run tells."""

    def say(self, text: str) -> None:
        """A message."""

    def begin(self, done: int, total: int) -> None:
        """Training goes from one step to another."""

    def step(self, step: int) -> None:
        """A step was made."""

    def show(self, figures: Mapping[str, float]) -> None:
        """What was logged."""

    def judged(self, score: float, best: float, best_step: int) -> None:
        """An evaluation was made."""

    def close(self) -> None:
        """No more steps."""


class Silent:
    """Says nothing."""

    def say(self, text: str) -> None:
        """Nothing."""

    def begin(self, done: int, total: int) -> None:
        """Nothing."""

    def step(self, step: int) -> None:
        """Nothing."""

    def show(self, figures: Mapping[str, float]) -> None:
        """Nothing."""

    def judged(self, score: float, best: float, best_step: int) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Lines:
    """A line at every evaluation, and in between every ten seconds."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._first, self._step, self._total = 0, 0, 0
        self._begun = self._last = monotonic()
        self._figures: dict[str, float] = {}
        self._dev = ""

    def say(self, text: str) -> None:
        """A line."""
        print(text, file=sys.stderr, flush=True)

    def begin(self, done: int, total: int) -> None:
        """Start the clock."""
        self._first, self._step, self._total = done, done, total
        self._begun = self._last = monotonic()

    def step(self, step: int) -> None:
        """Perhaps a line."""
        self._step = step
        if monotonic() - self._last >= LINE_EVERY:
            self._line()

    def show(self, figures: Mapping[str, float]) -> None:
        """For the next line."""
        self._figures = dict(figures)

    def judged(self, score: float, best: float, best_step: int) -> None:
        """A line."""
        self._dev = dev(score, best, best_step)
        self._line()

    def close(self) -> None:
        """Nothing to close."""

    def _line(self) -> None:
        self._last = monotonic()
        rate = (self._last - self._begun) / max(self._step - self._first, 1)
        left = rate * (self._total - self._step)
        parts = [f"step {self._step:,}/{self._total:,}", f"{rate:.2f} s/step", f"{clock(left)} left"]
        self.say("  ".join([*parts, *shown(self._figures), self._dev]).rstrip())


class Bar:
    """Rich's, and a line of figures under it."""

    def __init__(self) -> None:
        """Nothing is drawn yet."""
        from rich.console import Console, RenderableType
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
        from rich.progress import TimeRemainingColumn as Left
        from rich.text import Text

        class WithLine(Progress):
            """A second line, which a narrow terminal wraps instead of squeezing the bar."""

            line = ""

            def get_renderables(self) -> Iterable[RenderableType]:
                """Both."""
                yield from super().get_renderables()
                yield Text(self.line)

        columns: list[Any] = [
            TextColumn("step {task.completed:,.0f}/{task.total:,.0f}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            Left(),
        ]
        self._console = Console(stderr=True, highlight=False)
        self._progress = WithLine(*columns, console=self._console, refresh_per_second=4)
        self._figures: dict[str, float] = {}
        self._dev = ""

    def say(self, text: str) -> None:
        """Above the bar."""
        self._console.print(text, markup=False, soft_wrap=True)

    def begin(self, done: int, total: int) -> None:
        """Draw it."""
        self._progress.add_task("", total=total, completed=done)
        self._progress.start()

    def step(self, step: int) -> None:
        """Move it."""
        self._progress.update(self._progress.task_ids[0], completed=step)

    def show(self, figures: Mapping[str, float]) -> None:
        """Under it."""
        self._figures = dict(figures)
        self._draw()

    def judged(self, score: float, best: float, best_step: int) -> None:
        """Under it."""
        self._dev = dev(score, best, best_step)
        self._draw()

    def close(self) -> None:
        """Leave it as it is."""
        self._progress.stop()

    def _draw(self) -> None:
        self._progress.line = "  ".join([*shown(self._figures), self._dev])


def display(*, quiet: bool) -> Display:
    """The one that suits where standard error goes."""
    if quiet:
        return Silent()
    if sys.stderr.isatty():
        try:
            return Bar()
        except ModuleNotFoundError:  # rich comes with the command line, not with the library
            return Lines()
    return Lines()


def shown(figures: Mapping[str, float]) -> list[str]:
    """The few figures of a training log that say how the game goes."""
    return [f"{word} {figures[name]:.3g}" for name, word in SHOWN.items() if name in figures]


def dev(score: float, best: float, best_step: int) -> str:
    """The dev score so far, as tables show it: times 100."""
    return f"dev {score * 100:.2f} (best {best * 100:.2f} at step {best_step:,})"


def clock(seconds: float) -> str:
    """1:02:03."""
    whole = int(seconds) if math.isfinite(seconds) else 0
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@contextmanager
def warnings_to(shows: Display) -> Iterator[None]:
    """Warnings as one line of the display each, without the line of code that they came from."""
    before = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        shows.say(f"warning: {message}")

    warnings.showwarning = show  # type: ignore[assignment, unused-ignore]
    try:
        yield
    finally:
        warnings.showwarning = before
