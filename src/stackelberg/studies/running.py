"""A study's runs, claimed one by one and handed to a crew until none is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic, sleep
from typing import TYPE_CHECKING

from stackelberg.studies.cell import Cell
from stackelberg.studies.crew import Crew, Ended
from stackelberg.studies.errors import StudyError
from stackelberg.studies.store import Store

if TYPE_CHECKING:
    from stackelberg.studies.study import Study

CRASHES = 3  # of one run, after which it is given up
ALIKE = 3  # first runs that fail with one sentence, after which all would
TICK = 1.0  # seconds between looks at what others do
BEAT = 10.0  # seconds between signs of life


@dataclass(frozen=True, slots=True)
class Told:
    """Something that happened.

    Args:
        what: `begun`, `finished`, `failed`, `crashed`, or `waits`, for runs that other processes have.
        cell: the run; None of `waits`.
        done: how many runs are finished or failed.
        total: of all runs.
        words: of an error, or of who has the other runs.
    """

    what: str
    cell: Cell | None
    done: int
    total: int
    words: str = ""


def run(study: Study, store: Store, crew: Crew, report: Callable[[Told], None] = lambda told: None) -> None:
    """Train every run of a study that is not finished; Ctrl-C stops with a checkpoint of each that is being trained.

    Args:
        study: whose runs.
        store: its folder's.
        crew: that trains them.
        report: told what happens.
    """
    foreman = _Foreman(study.cells(), store, crew, report)
    try:
        foreman.work()
    except KeyboardInterrupt:
        foreman.settle(crew.stop())
        raise
    finally:
        crew.close()
        store.release_all()


class _Foreman:
    def __init__(self, cells: Sequence[Cell], store: Store, crew: Crew, report: Callable[[Told], None]) -> None:
        self.cells, self.store, self.crew, self._report = cells, store, crew, report
        self._crashes: Counter[str] = Counter()
        self._beaten = monotonic()
        self._waited_for = ""
        self._alike: list[str] | None = []  # sentences of the first failures, until a run is finished

    def work(self) -> None:
        """Until all are finished or failed, by whomever."""
        while True:
            while self.crew.has_room and (cell := self.store.claim(self.cells)) is not None:
                self.crew.begin(cell)
                self._tell("begun", cell)
            if not self.crew.at_work and not self._others_work():
                return
            self.settle(self.crew.ended(TICK))
            if monotonic() - self._beaten > BEAT:
                self.store.beat(self.crew.at_work)
                self._beaten = monotonic()

    def settle(self, over: Sequence[Ended]) -> None:
        """Note what has become of runs."""
        for each in over:
            how, error = each.how, each.error
            if how == "done" and not self.store.finish(each.cell.id):
                how, error = "crashed", "its folder is not finished"
            if how == "crashed":
                self._crashes[each.cell.id] += 1
                if self._crashes[each.cell.id] >= CRASHES:
                    how, error = "failed", f"given up after {CRASHES} crashes: {error}"
            if how == "failed":
                self.store.fail(each.cell.id, error)
            elif how != "done":
                self.store.release(each.cell.id)
            if how == "done":
                self._alike = None
            elif how == "failed" and self._alike is not None:
                self._alike.append(error)
            if how != "stopped":
                self._tell("finished" if how == "done" else how, each.cell, error)

        if self._alike is not None and len(self._alike) >= ALIKE and len(set(self._alike)) == 1:
            raise StudyError(
                f"{len(self._alike)} runs failed alike: {self._alike[0].removesuffix('.')}; mend that, and give the "
                "same command with --again"
            )

    def _others_work(self) -> bool:
        """Whether another process is at a run of ours, whose figures are waited for."""
        ours = {cell.id for cell in self.cells}
        theirs = [each for each in self.store.results() if each.id in ours and each.state in ("running", "waiting")]
        whose = ", ".join(sorted({each.who for each in theirs if each.who is not None}))
        if theirs and whose != self._waited_for:
            self._waited_for = whose
            self._tell("waits", None, whose)
        if theirs:
            sleep(TICK)
        return bool(theirs)

    def _tell(self, what: str, cell: Cell | None, words: str = "") -> None:
        ours = {each.id for each in self.cells}
        done = sum(each.state in ("finished", "failed") for each in self.store.results() if each.id in ours)
        self._report(Told(what, cell, done, len(ours), words))
