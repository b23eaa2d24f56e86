"""What a method costs: time and memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stackelberg.analysis.playing import machine_of
from stackelberg.analysis.statistics import spread
from stackelberg.reports.document import NOTHING, Cell, Column, Rows, Section, Table, compact
from stackelberg.studies.arms import Arm
from stackelberg.studies.comparing import Group

COLUMNS = ("ms a step", "× plain", "tokens a second", "peak GiB", "steps", "seconds in all")


def costs(arms: Sequence[Arm], groups: Sequence[Group]) -> Section | None:
    """The section; None where nothing was timed."""
    timed = [arm for arm in arms if _values(arm, "seconds_per_step")]
    if not timed:
        return None
    bodies = []
    for task in dict.fromkeys(arm.task for arm in timed):
        its = [arm for arm in timed if arm.task == task]
        bodies.append(Rows([_row(arm, groups) for arm in its], its[0].title))
    columns = [Column("method", number=False), *map(Column, COLUMNS)]
    known = sorted({machine_of(each.run.folder) for arm in timed for each in arm.runs} - {""})
    machines = [f"{device}, threads: {threads}" for device, _, threads in (one.rpartition(", ") for one in known)]
    notes = [
        "A run's time of a step is the median of what it logged, evaluations and checkpoints left out; ± is the "
        "standard deviation over seeds. × plain is of the same seed on the same machine. Peak memory is PyTorch's, and "
        "is measured on GPUs alone.",
        f"Measured on {'; '.join(machines) or 'a machine that is not known'}."
        + " Different machines are not compared." * (len(machines) > 1),
    ]
    return Section("cost", "Cost", [compact(Table("Time and memory", columns, bodies, notes))])


def _row(arm: Arm, groups: Sequence[Group]) -> list[Cell]:
    step, tokens = _values(arm, "seconds_per_step"), _values(arm, "tokens_per_second")
    memory, steps, seconds = (_values(arm, name) for name in ("peak_gib", "steps", "seconds"))
    ratio = _ratio(arm, groups)
    mean = spread(step).mean if step else 0.0
    return [
        Cell(arm.name),
        Cell(spread(step).text(1000, 0 if mean >= 0.1 else 1) if step else NOTHING),
        Cell(f"{ratio:.2f}" if ratio is not None else NOTHING),
        Cell(f"{np.mean(tokens):,.0f}" if tokens else NOTHING),
        Cell(f"{max(memory):.2f}" if memory else NOTHING),
        Cell(f"{np.mean(steps):,.0f}" if steps else NOTHING),
        Cell(f"{np.mean(seconds):,.0f}" if seconds else NOTHING),
    ]


def _ratio(arm: Arm, groups: Sequence[Group]) -> float | None:
    for group in groups:
        if group.comparison is not None and any(each is arm for each in group.arms):
            return next(each.cost for each in group.comparison.methods if each.method == arm.method)
    return None


def _values(arm: Arm, name: str) -> list[float]:
    return [each.figures[name] for each in arm.runs if name in each.figures]
