"""What came of a study: mean and spread over seeds, and differences with a correction for how many there are.

A task's score is compared over rows and seeds, as `stackelberg compare` does it; any other figure over seeds, by
Student's t of the paired differences. Holm's correction is over all comparisons of the study.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stackelberg.analysis.comparison import Outcome, Scores, judged_scores
from stackelberg.analysis.playing import outcomes_of, subsets
from stackelberg.analysis.statistics import LEVEL, RESAMPLES, Interval, Spread, holm, mean_interval, spread
from stackelberg.errors import StackelbergError
from stackelberg.extras import need
from stackelberg.nlu.run import Run
from stackelberg.nmt.run import TranslationRun
from stackelberg.runs.records import finite
from stackelberg.studies.cell import Cell
from stackelberg.studies.figures import metrics_of
from stackelberg.studies.store import Result, Store

if TYPE_CHECKING:
    from stackelberg.studies.study import Study

SCORE = "score"
OVER_ROWS = "rows and seeds"


@dataclass(frozen=True, slots=True)
class Column:
    """A figure of a task.

    Args:
        task: in the study.
        kind: `nlu` or `nmt`.
        metric: a name among figures.
    """

    task: str
    kind: str
    metric: str


@dataclass(frozen=True, slots=True)
class Line:
    """A method in a setting.

    Args:
        method: its name.
        setting: its name; empty where it makes no difference.
        spreads: over seeds, for each column; None where no run is finished.
        average: over all columns, of the seeds that have every one; None with one column, or without such seeds.
    """

    method: str
    setting: str
    spreads: tuple[Spread | None, ...]
    average: Spread | None


@dataclass(frozen=True, slots=True)
class Against:
    """A method against the baseline.

    Args:
        column: what is compared.
        setting: in which setting.
        method: the one.
        baseline: the other.
        value: the mean difference over the seeds that both have, the method's less the baseline's.
        seeds: how many those are.
        interval: of the difference; None with one seed, or without spread.
        over: what was drawn anew for it, `rows and seeds` or `seeds`.
        p: corrected for all comparisons of the study; None where it cannot be had.
        shown: whether it is below 1 − level.
    """

    column: Column
    setting: str
    method: str
    baseline: str
    value: float
    seeds: int
    interval: Interval | None
    over: str
    p: float | None
    shown: bool


@dataclass(frozen=True, slots=True)
class Summary:
    """A study's result.

    Args:
        study: whose.
        columns: of the table.
        lines: of the table, in the study's order.
        pairs: every comparison with the baseline.
        baseline: its method.
        level: of the intervals.
        results: every run.
        remarks: what a reader must know: failed runs, subsets, the study's own.
    """

    study: Study
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    pairs: tuple[Against, ...]
    baseline: str
    level: float
    results: tuple[Result, ...]
    remarks: tuple[str, ...]


def summarize(study: Study, store: Store, *, level: float = LEVEL) -> Summary:
    """Of what is finished.

    Args:
        study: whose runs are looked at.
        store: where they are.
        level: of intervals.
    """
    cells = study.cells()
    found = {each.id: each for each in store.results()}
    results = tuple(found[cell.id] for cell in cells if cell.id in found)
    scores = _Scores(cells, results)
    wanted = [Column(cell.task, cell.kind, metric) for cell in cells for metric in metrics_of(study, cell)]
    columns = tuple(column for column in dict.fromkeys(wanted) if not scores.lack(column))
    baseline = study.baseline or ("plain" if "plain" in study.methods else next(iter(study.methods)))
    lines = tuple(scores.line(method, setting, columns) for setting, method in scores.names)
    pairs, remarks = _pairs(scores, columns, baseline, store, level)
    said = (*_failures(results), *remarks, *study.remarks)
    return Summary(study, columns, lines, pairs, baseline, level, results, said)


class _Scores:
    """Figures by what they are of."""

    def __init__(self, cells: Sequence[Cell], results: Sequence[Result]) -> None:
        self.names = list(dict.fromkeys((cell.setting, cell.method) for cell in cells))
        self._runs = {(each.task, each.setting, each.method, each.seed): each for each in results}

    def runs(self, task: str, setting: str, method: str) -> dict[int, Result]:
        """Seed to finished run; of a method that settings make no difference to, whatever the setting."""
        return {
            seed: each
            for (its, way, name, seed), each in self._runs.items()
            if (its, name) == (task, method) and way in (setting, "") and each.state == "finished"
        }

    def lack(self, column: Column) -> bool:
        """Whether runs of a task are finished and none has the figure: memory, where there is no GPU."""
        finished = [run.figures for run in self._runs.values() if run.task == column.task and run.state == "finished"]
        return bool(finished) and not any(column.metric in figures for figures in finished)

    def of(self, column: Column, setting: str, method: str) -> dict[int, float]:
        """Seed to figure."""
        runs = self.runs(column.task, setting, method)
        figures = {seed: each.figures.get(column.metric, math.nan) for seed, each in runs.items()}
        return {seed: value for seed, value in figures.items() if math.isfinite(value)}

    def line(self, method: str, setting: str, columns: Sequence[Column]) -> Line:
        """Of the table."""
        values = [self.of(column, setting, method) for column in columns] or [{}]
        spreads = tuple(spread(list(its.values())) if its else None for its in values)
        whole = [seed for seed in values[0] if all(seed in its for its in values)]
        means = [float(np.mean([its[seed] for its in values])) for seed in whole]
        alike = len({(column.kind, column.metric) for column in columns}) == 1
        return Line(method, setting, spreads, spread(means) if means and alike and len(columns) > 1 else None)


def _pairs(
    scores: _Scores, columns: Sequence[Column], baseline: str, store: Store, level: float
) -> tuple[tuple[Against, ...], list[str]]:
    raw: list[tuple[Against, float | None]] = []
    remarks: list[str] = []
    for column in columns:
        for setting in dict.fromkeys(setting for setting, _ in scores.names):
            methods = [name for way, name in scores.names if way == setting and name != baseline]
            if methods and _has_rows(column):
                try:
                    found, said = _over_rows(scores, column, setting, [baseline, *methods], store, level)
                    raw += found
                    remarks += said
                    continue
                except StackelbergError as error:  # after days of training this must not be what stops the table
                    remarks.append(f"{column.task} is compared over seeds alone: {str(error).removesuffix('.')}.")
            raw += [_over_seeds(scores, column, setting, method, baseline, level) for method in methods]
    raw = [each for each in raw if each[0].seeds]
    judged = [p for _, p in raw if p is not None]
    corrected = iter(holm(judged))
    finals = [(pair, None if p is None else next(corrected)) for pair, p in raw]
    pairs = tuple(replace(pair, p=p, shown=p is not None and p < 1 - level) for pair, p in finals)
    return pairs, list(dict.fromkeys(remarks))


def _has_rows(column: Column) -> bool:
    """Whether a figure is computed from rows that can be drawn anew: a task's score, and a corpus's BLEU."""
    return column.metric == SCORE if column.kind == "nlu" else column.metric.endswith("bleu")


def _over_rows(
    scores: _Scores, column: Column, setting: str, methods: Sequence[str], store: Store, level: float
) -> tuple[list[tuple[Against, float | None]], list[str]]:
    """A task's score or BLEU, rows and seeds drawn anew."""
    finished = [each for method in methods for each in scores.runs(column.task, setting, method).values()]
    there = {each.method for each in finished}
    if methods[0] not in there or len(there) < 2:
        return [], []
    drawn, remarks = (_rows_drawn if column.kind == "nlu" else _sentences_drawn)(column, finished, store)
    unit = 1.0 if column.kind == "nlu" else 100.0  # BLEU is resampled as a fraction
    found = []
    for method in methods[1:]:
        its = drawn.difference(method, methods[0], level) if method in there else None
        if its is not None:
            interval = its.over_both
            if interval is not None:
                interval = replace(interval, low=unit * interval.low, high=unit * interval.high)
            value = unit * its.value
            pair = Against(column, setting, method, methods[0], value, its.seeds, interval, OVER_ROWS, None, False)
            found.append((pair, its.p))
    return found, remarks


def _rows_drawn(column: Column, finished: Sequence[Result], store: Store) -> tuple[Scores, list[str]]:
    runs = [Run.open(each.folder) for each in finished]
    outcomes, judged = outcomes_of(runs, store.folder)
    said = [f"{column.task}: {each}" for each in subsets(runs[0])]
    return judged_scores(outcomes, judged, runs[0].task.metrics, RESAMPLES), said


def _sentences_drawn(column: Column, finished: Sequence[Result], store: Store) -> tuple[Scores, list[str]]:
    from stackelberg.analysis.translating import bleu_scores

    runs = [TranslationRun.open(each.folder) for each in finished]
    outcomes = [Outcome(each.method, each.seed, each.id, each.folder.name, {}) for each in finished]
    return bleu_scores(runs, outcomes, column.metric.partition("/")[0]), []


def _over_seeds(
    scores: _Scores, column: Column, setting: str, method: str, baseline: str, level: float
) -> tuple[Against, float | None]:
    """Any figure, seeds drawn anew."""
    ours, theirs = scores.of(column, setting, method), scores.of(column, setting, baseline)
    apart = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    interval = mean_interval(apart, level=level, method="t") if len(apart) > 1 and np.ptp(apart) else None
    p = float(need("scipy.stats").ttest_1samp(apart, 0.0).pvalue) if interval is not None else None
    value = float(np.mean(apart)) if apart else math.nan
    return Against(column, setting, method, baseline, value, len(apart), interval, "seeds", None, False), p


def _failures(results: Sequence[Result]) -> list[str]:
    return [
        f"{each.method} on {each.task}{f', {each.setting}' if each.setting else ''}, seed {each.seed} is left out: "
        f"{(each.error or 'it failed').removesuffix('.')}."
        for each in results
        if each.state == "failed"
    ]


def as_data(summary: Summary) -> dict[str, Any]:
    """The whole as what JSON can hold; figures as they are in runs' folders."""
    return {
        "study": summary.study.name,
        "title": summary.study.title,
        "baseline": summary.baseline,
        "level": summary.level,
        "columns": [asdict(column) for column in summary.columns],
        "lines": [asdict(line) for line in summary.lines],
        "pairs": [asdict(pair) for pair in summary.pairs],
        "remarks": list(summary.remarks),
        "runs": [
            {
                **{name: getattr(each, name) for name in
                   ("id", "kind", "method", "task", "setting", "seed", "state", "error", "attempts")},
                "folder": each.folder.name,
                "figures": finite(each.figures),
            }
            for each in summary.results
        ],
    }  # fmt: skip
