"""Runs beside each other, by calibration: figures, a temperature if one is wanted, a diagram."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stackelberg.analysis.errors import AnalysisError
from stackelberg.analysis.reliability_diagram import ENDINGS, reliability_figure, save_figure
from stackelberg.analysis.temperature import fit_temperature, halves
from stackelberg.nlu.calibration import (
    BINS,
    Binning,
    Calibration,
    Floats,
    Reliability,
    measure_calibration,
    reliability,
)

if TYPE_CHECKING:
    from stackelberg.nlu.run import Run

LEAST = 1e-300  # of a probability: its logarithm must be finite


@dataclass(frozen=True)
class Calibrated:
    """One line of the table.

    Args:
        name: of the run, and its temperature where there is one.
        figures: its calibration.
        probabilities: of the rows reported on.
        targets: of these rows.
        bins: M.
        said: what else is known of the line: its split, its temperature and what that was fitted on.
        remarks: what a reader must know.
    """

    name: str
    figures: Calibration
    probabilities: Floats
    targets: Any
    bins: int
    said: Mapping[str, object]
    remarks: tuple[str, ...] = ()

    def reliability(self, binning: Binning) -> Reliability:
        """For the diagram."""
        return reliability(self.probabilities, self.targets, bins=self.bins, binning=binning)


def calibrations(
    runs: Mapping[str, Run],
    *,
    split: str | None = None,
    bins: int = BINS,
    scaled: bool = False,
    fit_on: str | None = None,
) -> list[Calibrated]:
    """Every run as it is, and with a temperature too if one is wanted.

    Args:
        runs: by the name to print.
        split: to report on; the split, or all splits, that judged the run when None.
        bins: M.
        scaled: whether to fit a temperature: on one half of the rows, both lines then being of the other half.
        fit_on: a split to fit it on instead; then both lines are of all rows.
    """
    return [
        line
        for name, run in runs.items()
        for which in ((split,) if split else run.judged_by)
        for line in _of(
            name if len(run.judged_by) == 1 or split else f"{name}, {which}", run, which, bins, scaled, fit_on
        )
    ]


def table(found: Sequence[Calibrated]) -> tuple[list[str], list[list[str]]]:
    """Header and rows; shares in per cent."""
    header = ["run", "rows", "accuracy", "confidence", "ECE, size", "ECE, width", "MCE", "Brier", "NLL"]
    rows = []
    for each in found:
        its = each.figures
        shares = (its.accuracy, its.confidence, its.ece, its.ece_width, its.mce)
        percent = [f"{100 * share:.1f} %" for share in shares]
        rows.append([each.name, f"{its.rows:,}", *percent, f"{its.brier:.3f}", f"{its.nll:.3f}"])
    return header, rows


def diagram(found: Sequence[Calibrated], path: Path, *, binning: Binning = "equal-mass") -> list[Path]:
    """Draw all lines side by side, as PNG and as SVG.

    Args:
        found: what to draw.
        path: of one of the two; the other is beside it.
        binning: of the diagram.
    """
    if path.suffix not in ENDINGS:
        raise AnalysisError(f"{path} should end in {' or '.join(ENDINGS)}")
    figure = reliability_figure({each.name: each.reliability(binning) for each in found})
    paths = [path, path.with_suffix(next(ending for ending in ENDINGS if ending != path.suffix))]
    for each in paths:
        save_figure(figure, each)
    return paths


def _of(name: str, run: Run, split: str, bins: int, scaled: bool, fit_on: str | None) -> list[Calibrated]:
    values, targets = _answers(run, split)
    about: dict[str, object] = {"folder": str(run.folder), "split": split, "temperature": None}
    if not scaled and fit_on is None:
        return [Calibrated(name, measure_calibration(values, targets, bins=bins), values, targets, bins, about)]
    if fit_on == split:
        raise AnalysisError(
            f"a temperature fitted on {split} cannot be reported on it; leave fit_on out to fit it on a half"
        )
    if fit_on is not None:
        logits, wanted = _logits(_answers(run, fit_on)[0]), _answers(run, fit_on)[1]
        label = fit_on
    else:
        fitted, kept = halves(len(values))
        logits, wanted, label = _logits(values[fitted]), targets[fitted], f"one half of {split}"
        values, targets = values[kept], targets[kept]
    temperature = fit_temperature(logits, wanted, split=label)
    reported = split if fit_on is not None else f"the other half of {split}"
    after = temperature.apply(_logits(values), split=reported)
    where = f"T was fitted on {len(wanted):,} rows, {label}; figures are of {len(values):,} others, {reported}."
    about |= {"split": reported}
    fitted_on = {"temperature": temperature.value, "fitted_on": label, "fitted_rows": len(wanted)}
    remarks = [where]
    if label == "train":
        remarks.append("The model has been trained on train and is surer there than elsewhere: fit T on other rows.")
    if temperature.bounded:
        remarks.append(f"{name}: the best temperature is beyond the bound {temperature.value:g}; it tells nothing.")
    return [
        Calibrated(name, measure_calibration(values, targets, bins=bins), values, targets, bins, about),
        Calibrated(
            f"{name}, T = {temperature.value:.2f}",
            measure_calibration(after, targets, bins=bins),
            after,
            targets,
            bins,
            about | fitted_on,
            tuple(remarks),
        ),
    ]


def _answers(run: Run, split: str) -> tuple[Floats, Any]:
    if run.task.kind == "score":
        raise AnalysisError(
            f"{run.folder} gives scores, which have no confidence to be calibrated; give a run on classes"
        )
    values, targets, _ = run.probabilities(split)
    if targets is None:
        raise AnalysisError(f"{run.task.title} has no labels for {split}, so nothing can be said of its calibration")
    return values, targets


def _logits(probabilities: Floats) -> Floats:
    """Up to a constant in each row, which a softmax does not see, logits are log-probabilities."""
    return np.log(np.maximum(probabilities, LEAST))
