"""How a study stands: what is finished, what is being trained and how far it is, and how long the rest may take."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING

from stackelberg.analysis.statistics import Spread, spread
from stackelberg.runs.records import read_records
from stackelberg.studies.cell import Cell
from stackelberg.studies.figures import LOWER_IS_BETTER, metrics_of, titles
from stackelberg.studies.result import Result
from stackelberg.studies.store import STALE, Store

if TYPE_CHECKING:
    from stackelberg.studies.study import Study


@dataclass(frozen=True, slots=True)
class Going:
    """A run that is being trained.

    Args:
        result: as the store has it.
        step: the last that it wrote down; None before the first.
        loss: at that step.
        dev: its last score on the dev set.
        silent: whether its process has not been heard of for too long.
    """

    result: Result
    step: int | None
    loss: float | None
    dev: float | None
    silent: bool


@dataclass(frozen=True, slots=True)
class Best:
    """The best of a task so far, by the mean over the seeds that are finished."""

    title: str
    task: str
    kind: str
    metric: str
    method: str
    setting: str
    score: Spread


@dataclass(frozen=True, slots=True)
class Look:
    """A study at one moment.

    Args:
        title: the study's.
        counts: of runs by state.
        seconds_left: for what is not finished, by what runs have taken so far; None before the first is done.
        going: the runs that are being trained.
        best: of each task.
        failed: those that are.
    """

    title: str
    counts: dict[str, int]
    seconds_left: float | None
    going: tuple[Going, ...]
    best: tuple[Best, ...]
    failed: tuple[Result, ...]

    @property
    def total(self) -> int:
        """Of all runs."""
        return sum(self.counts.values())


class Watcher:
    """Looks at a study's folder, which others write.

    Args:
        store: the folder's.
    """

    def __init__(self, store: Store) -> None:
        """Read what does not change while it is looked at."""
        self.store, self.study = store, store.study
        self._cells = {cell.id: cell for cell in self.study.cells()}
        columns = [(each.task, metric) for each in self._cells.values() for metric in metrics_of(self.study, each)]
        self._titles = titles(list(dict.fromkeys(columns)))

    def look(self) -> Look:
        """Now."""
        results = self.store.results()
        counts = dict.fromkeys(("finished", "running", "waiting", "failed"), 0)
        for each in results:
            counts[each.state] += 1
        return Look(
            title=self.study.title,
            counts=counts,
            seconds_left=seconds_left(results),
            going=tuple(_going(each) for each in results if each.state == "running"),
            best=tuple(_best(self._cells, results, self.study, self._titles)),
            failed=tuple(each for each in results if each.state == "failed"),
        )


def seconds_left(results: Sequence[Result]) -> float | None:
    """For all that is not finished, as many at once as now, each as long as others of its method and task took."""
    now = time()
    taken: dict[tuple[str, str], list[float]] = {}
    for each in results:
        if each.state == "finished" and each.started is not None and each.finished is not None:
            taken.setdefault((each.task, each.method), []).append(each.finished - each.started)
    if not taken:
        return None
    usual = {name: statistics.fmean(values) for name, values in taken.items()}
    other = statistics.fmean(usual.values())  # of what has not been run yet
    left, at_once = 0.0, 0
    for each in results:
        long = usual.get((each.task, each.method), other)
        if each.state == "waiting":
            left += long
        elif each.state == "running":
            left += max(long - (now - (each.started or now)), 0.0)
            at_once += 1
    return left / max(at_once, 1)


def _going(result: Result) -> Going:
    records = read_records(result.folder)
    step, loss, dev = None, None, None
    for record in records:
        step = record["step"]
        loss = record.get("loss", loss)
        dev = record.get("dev/score", record.get("dev/bleu", dev))
    return Going(result, step, loss, dev, time() - (result.heartbeat or 0.0) > STALE)


def _best(
    cells: Mapping[str, Cell], results: Sequence[Result], study: Study, named: Mapping[tuple[str, str], str]
) -> list[Best]:
    values: dict[tuple[str, str, str], dict[tuple[str, str], list[float]]] = {}
    for each in results:
        if each.state != "finished" or each.id not in cells:
            continue
        metric = metrics_of(study, cells[each.id])[0]
        if metric in each.figures:
            by_method = values.setdefault((each.task, each.kind, metric), {})
            by_method.setdefault((each.method, each.setting), []).append(each.figures[metric])
    found = []
    for (task, kind, metric), by_method in values.items():
        sign = -1 if metric in LOWER_IS_BETTER else 1
        method, setting = max(by_method, key=lambda name: sign * statistics.fmean(by_method[name]))
        found.append(Best(named[task, metric], task, kind, metric, method, setting, spread(by_method[method, setting])))
    return found
