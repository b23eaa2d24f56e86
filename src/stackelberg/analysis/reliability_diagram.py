"""Reliability diagrams, several methods side by side as in the paper's figure."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stackelberg.analysis.errors import AnalysisError
from stackelberg.analysis.figure_style import INK, SKY, VERMILION
from stackelberg.extras import need
from stackelberg.nlu.calibration import Bin, Reliability
from stackelberg.storage import write_whole

ACCURACY, GAP, LINE = SKY, VERMILION, INK  # the gap is hatched besides, for eyes and printers that see no colours
ENDINGS = (".png", ".svg")
INCHES = 3.4  # a panel's side
COLUMNS = 4


def reliability_figure(diagrams: Mapping[str, Reliability], *, title: str | None = None) -> Any:
    """One panel a method: bars for the accuracy of each bin, its mean confidence, the gap between them, and the ECE.

    Bins of equal width stand where their confidences are, with the diagonal of perfect calibration. Bins of equal mass
    crowd near confidence 1 and would be too thin to see there: they stand one beside the other at the same width, the
    mean confidence of each below it and drawn as a step, which is what a perfect model's bars would reach.

    Args:
        diagrams: for each method, by the name to print, its reliability on one split, all binned by one rule.
        title: above all panels.
    """
    if not diagrams:
        raise AnalysisError("there is no method to draw; give at least one")
    if len({each.binning for each in diagrams.values()}) > 1:
        raise AnalysisError("methods binned by different rules cannot be compared; give all of them one binning")
    columns = min(COLUMNS, len(diagrams))
    rows = -(-len(diagrams) // columns)
    figure = need("matplotlib.figure").Figure(figsize=(INCHES * columns, INCHES * rows + 0.5), layout="constrained")
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False).ravel()
    for place, (panel, (name, diagram)) in enumerate(zip(panels, diagrams.items(), strict=False)):
        if diagram.binning == "equal-width":
            _draw_by_confidence(panel, diagram.bins)
        else:
            _draw_by_rank(panel, diagram.bins)
        panel.set_title(f"{name} (ECE: {diagram.ece:.2%})", fontsize=10)
        panel.set_ylim(0, 1)
        panel.set_axisbelow(True)
        panel.grid(axis="y", linewidth=0.4)
        if place % columns == 0:
            panel.set_ylabel("accuracy")
    for panel in panels[len(diagrams) :]:
        panel.remove()
    handles, names = panels[0].get_legend_handles_labels()
    wide = len(names) if columns > 1 else 2
    figure.legend(handles, names, loc="outside lower center", ncols=wide, fontsize=8, frameon=False)
    if title is not None:
        figure.suptitle(title, fontsize=11)
    return figure


def save_figure(figure: Any, path: Path | str) -> None:
    """Write a figure, as PNG or SVG by what the name ends in; a figure drawn anew from the same data is the same file.

    Args:
        figure: of matplotlib.
        path: where to; an earlier file stays until the new one is whole.
    """
    path = Path(path)
    if path.suffix not in ENDINGS:
        raise AnalysisError(f"{path} should end in {' or '.join(ENDINGS)}")
    buffer = io.BytesIO()
    with need("matplotlib").rc_context({"svg.hashsalt": "stackelberg"}):
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(buffer, format=path.suffix[1:], dpi=200, metadata=metadata)
    write_whole(path, buffer.getvalue())


def _draw_by_confidence(panel: Any, bins: Sequence[Bin]) -> None:
    full = [each for each in bins if each.count]
    places = [(each.lower + each.upper) / 2 for each in full]
    _draw_bars(panel, full, places, [each.upper - each.lower for each in full])
    panel.plot([0, 1], [0, 1], color=LINE, linestyle="--", linewidth=1, label="perfect calibration")
    panel.set_xlim(0, 1)
    panel.set_xlabel("confidence")


def _draw_by_rank(panel: Any, bins: Sequence[Bin]) -> None:
    places = [float(number) for number in range(len(bins))]
    _draw_bars(panel, bins, places, [1.0] * len(bins))
    for number, (place, each) in enumerate(zip(places, bins, strict=True)):
        panel.plot(
            [place - 0.5, place + 0.5],
            [each.confidence] * 2,
            color=LINE,
            linewidth=1.5,
            solid_capstyle="butt",
            label="perfect calibration" if number == 0 else None,
        )
    panel.set_xlim(-0.5, len(bins) - 0.5)
    panel.set_xticks(places, [f"{each.confidence:.3f}" for each in bins], rotation=90, fontsize=7)
    panel.set_xlabel("mean confidence, bins of equal size")


def _draw_bars(panel: Any, bins: Sequence[Bin], places: Sequence[float], widths: Sequence[float]) -> None:
    panel.bar(places, [each.accuracy for each in bins], widths, color=ACCURACY, edgecolor="white", label="accuracy")
    panel.bar(
        places,
        [each.gap for each in bins],
        widths,
        bottom=[min(each.accuracy, each.confidence) for each in bins],
        color="none",
        edgecolor=GAP,
        hatch="////",
        linewidth=0.8,
        label="gap to confidence",
    )
