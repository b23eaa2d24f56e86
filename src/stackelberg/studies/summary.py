"""What came of a study: mean and spread over seeds, and the comparisons that `comparing` makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stackelberg.analysis.statistics import LEVEL, Interval, Spread, spread
from stackelberg.runs.records import finite
from stackelberg.studies.arms import Arm, arms_of, opened
from stackelberg.studies.comparing import Group, Measured, compared
from stackelberg.studies.figures import metrics_of
from stackelberg.studies.result import Result
from stackelberg.studies.store import Store

if TYPE_CHECKING:
    from stackelberg.studies.study import Study

OVER_ROWS, OVER_SEEDS = "rows and seeds", "seeds"


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
        baseline: what methods are compared with; several by `or`, where a task lacks the first.
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


def summarize(study: Study, store: Store) -> Summary:
    """Of what is finished.

    Args:
        study: whose runs are looked at.
        store: where they are.
    """
    cells = study.cells()
    found = {each.id: each for each in store.results()}
    results = tuple(found[cell.id] for cell in cells if cell.id in found)
    runs, broken = opened(results)
    arms = arms_of(results, runs)
    there = {(_task(arm), arm.setting, arm.method): arm for arm in arms}
    wanted = [Column(cell.task, cell.kind, metric) for cell in cells for metric in metrics_of(study, cell)]
    columns = tuple(column for column in dict.fromkeys(wanted) if not _lacks(column, arms))
    lines = []
    for setting, method in dict.fromkeys((cell.setting, cell.method) for cell in cells):
        its = [there.get((column.task, setting, method)) for column in columns]
        lines.append(_line(method, setting, columns, its))
    groups, measured = compared(arms, study.baseline, study.metrics)
    pairs = (*(pair for group in groups for pair in _of_scores(group)), *_of_figures(measured))
    baselines = dict.fromkeys(pair.baseline for pair in pairs)
    baseline = " or ".join(baselines) or study.baseline or next(iter(study.methods))
    said = [f"{_task(group.arms[0])}: {each}" for group in groups for each in group.remarks]
    nowhere = dict.fromkeys(column.metric for column in wanted) if arms else {}
    said += [f"No run has {name}." for name in nowhere if not any(column.metric == name for column in columns)]
    remarks = (*_failures(results), *broken, *dict.fromkeys(said), *study.remarks)
    return Summary(study, columns, tuple(lines), pairs, baseline, LEVEL, results, remarks)


def _task(arm: Arm) -> str:
    """Its name in the study."""
    return arm.runs[0].result.task


def _lacks(column: Column, arms: Sequence[Arm]) -> bool:
    """Whether runs of a task are finished and none has the figure: memory, where there is no GPU."""
    its = [arm for arm in arms if _task(arm) == column.task]
    return bool(its) and not any(column.metric in each.figures for arm in its for each in arm.runs)


def _line(method: str, setting: str, columns: Sequence[Column], arms: Sequence[Arm | None]) -> Line:
    """Of the table; an arm for each column."""
    values = [{} if arm is None else arm.figures(column.metric) for column, arm in zip(columns, arms, strict=True)]
    spreads = tuple(spread(list(its.values())) if its else None for its in values)
    alike = len({(column.kind, column.metric) for column in columns}) == 1 and len(columns) > 1
    whole = [seed for seed in values[0] if all(seed in its for its in values)] if alike else []
    means = [float(np.mean([its[seed] for its in values])) for seed in whole]
    return Line(method, setting, spreads, spread(means) if means else None)


def _of_scores(group: Group) -> Iterator[Against]:
    """A group's comparisons, in the units of its runs' figures: BLEU is compared as a fraction."""
    for pair in () if group.comparison is None else group.comparison.pairs:
        arm, its = next(arm for arm in group.arms if arm.method == pair.method), pair.difference
        if its is None:
            continue
        unit = 100.0 if arm.kind == "nmt" else 1.0
        both = its.over_both
        interval = None if both is None else replace(both, low=unit * both.low, high=unit * both.high)
        column = Column(_task(arm), arm.kind, arm.score_name)
        yield Against(column, arm.setting, arm.method, pair.baseline, unit * its.value, its.seeds, interval, OVER_ROWS,
                      pair.p, pair.shown)  # fmt: skip


def _of_figures(measured: Sequence[Measured]) -> Iterator[Against]:
    """The comparisons of all other figures."""
    for each in measured:
        if each.baseline is not None and each.difference is not None:
            column = Column(_task(each.arm), each.arm.kind, each.name)
            yield Against(column, each.arm.setting, each.arm.method, each.baseline, each.difference, each.seeds,
                          each.interval, OVER_SEEDS, each.p, each.shown)  # fmt: skip


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
