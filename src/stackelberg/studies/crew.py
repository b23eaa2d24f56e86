"""Who trains a study's runs: processes of this machine, or tasks on a Ray cluster."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, Protocol

from stackelberg.studies.cell import Cell

Ending = Literal["done", "failed", "crashed", "stopped"]


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that is over.

    Args:
        cell: which.
        how: `done`; `failed`, and would fail again; `crashed`, through no fault of the run's that is known; `stopped`,
            as was asked, and can go on.
        error: a sentence, of one that failed or crashed.
    """

    cell: Cell
    how: Ending
    error: str = ""


class Crew(Protocol):
    """Trains runs, several at once, each where its crash ends no other."""

    @property
    def at_work(self) -> Collection[str]:
        """The ids of the runs that are being trained."""

    @property
    def has_room(self) -> bool:
        """Whether one more can begin."""

    def begin(self, cell: Cell) -> None:
        """Train a run."""

    def ended(self, seconds: float) -> list[Ended]:
        """Those that are over; waits so long for one."""

    def stop(self) -> list[Ended]:
        """Ask all to stop, each with a checkpoint, and wait until they have."""

    def close(self) -> None:
        """Nothing is left running."""
