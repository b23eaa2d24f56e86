"""Can confidence be trusted? Calibration errors of every method, and reliability diagrams."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stackelberg.analysis.reliability_diagram import reliability_figure
from stackelberg.analysis.statistics import spread
from stackelberg.errors import StackelbergError
from stackelberg.nlu.calibration import reliability
from stackelberg.nmt.run import TranslationRun
from stackelberg.reports.document import NOTHING, Block, Cell, Column, Gallery, Picture, Rows, Section, Table, compact
from stackelberg.reports.quoted import ECE, source, tables
from stackelberg.studies.arms import Arm, unvaried

PER_CENT = {"ece": "ECE, bins of equal size", "ece_width": "ECE, equal width", "mce": "MCE", "confidence": "confidence"}
AS_THEY_ARE = {"brier": "Brier", "nll": "NLL"}


def calibration(arms: Sequence[Arm]) -> Section | None:
    """The section; None where no task has classes."""
    names = (*PER_CENT, *AS_THEY_ARE)
    its = [arm for arm in arms if all(name in each.figures for each in arm.runs for name in names)]
    if not its:
        return None
    paper = tables()[ECE]
    alike = unvaried(its)
    comparable = [arm for arm in alike if arm.of_the_task_itself]
    quoted = any(paper.figure(arm.method, arm.task) for arm in comparable)
    columns = [Column("method", number=False)]
    columns += [Column(title) for title in (*PER_CENT.values(), *AS_THEY_ARE.values())]
    columns[2:2] = [Column("ECE, paper", quoted=True)] * quoted
    bodies = []
    for task in dict.fromkeys(arm.task for arm in its):
        of_task = [arm for arm in its if arm.task == task]
        least = min(spread([each.figures[ECE] for each in arm.runs]).mean for arm in of_task)
        rows = []
        for arm in of_task:
            figures = {name: spread([each.figures[name] for each in arm.runs]) for name in names}
            row = [Cell(arm.name)]
            row += [
                Cell(figures[name].text(100), best=name == ECE and figures[name].mean <= least and len(of_task) > 1)
                for name in PER_CENT
            ]
            row += [Cell(figures[name].text(1, 3)) for name in AS_THEY_ARE]
            if quoted:
                found = paper.figure(arm.method, task) if arm in comparable else None
                row.insert(2, Cell(found.text if found else NOTHING))
            rows.append(row)
        bodies.append(Rows(rows, of_task[0].title))
    notes = [
        "ECE, MCE and mean confidence in per cent, 10 bins; Brier from 0 to 2; NLL in nats. ± is the standard "
        "deviation over seeds. Underlined: the lowest mean ECE, which is not thereby shown to be lower."
    ]
    if quoted:
        notes.append(f"“ECE, paper” is quoted from {source()}, {paper.place}: {paper.about}")
    blocks: list[Block] = [compact(Table("Calibration", columns, bodies, notes))]
    for task in dict.fromkeys(arm.task for arm in alike):
        of_task = [arm for arm in alike if arm.task == task]
        pictures = [picture for arm in of_task if (picture := _diagram(arm)) is not None]
        if pictures:
            about = (
                "Accuracy of ten bins of equal size, from the least sure rows to the surest, and each bin's mean "
                "confidence. The rows of all seeds are drawn together, so that the ECE above a panel is not the mean "
                "of the seeds' in the table."
            )
            blocks.append(Gallery(f"Reliability on {of_task[0].title}", about, pictures))
    return Section("calibration", "Calibration", blocks)


def _diagram(arm: Arm) -> Picture | None:
    values, targets = [], []
    for each in arm.runs:
        if isinstance(each.run, TranslationRun):
            return None
        for split in each.run.judged_by:
            try:
                found, wanted, _ = each.run.probabilities(split)
            except (StackelbergError, OSError):
                return None
            if wanted is None:
                return None
            values.append(found)
            targets.append(wanted)
    diagram = reliability(np.concatenate(values), np.concatenate(targets))
    worst = max(diagram.bins, key=lambda each: each.gap)
    return Picture(
        name=f"reliability-{arm.task}-{arm.name}",
        alt=(
            f"Reliability diagram of {arm.name} on {arm.title}: {len(diagram.bins)} bins, ECE {diagram.ece:.1%}; the "
            f"widest gap is at confidence {worst.confidence:.2f}, where the accuracy is {worst.accuracy:.2f}."
        ),
        caption="",
        draw=lambda: reliability_figure({arm.name: diagram}),
    )
