"""The demo's result as one picture: score, calibration and cost, method by method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stackelberg.analysis.comparison import Comparison
from stackelberg.analysis.figure_style import INK, looks
from stackelberg.extras import need

SIZE = (7.2, 2.3)  # inches


def picture(found: Comparison, title: str) -> Any:
    """Three panels, with a point for every seed and a line for their mean.

    Args:
        found: what came out.
        title: of the task.
    """
    methods = found.methods
    eces = {each.method: [its.ece for its in found.outcomes if its.method == each.method] for each in methods}
    figure = need("matplotlib.figure").Figure(figsize=SIZE, layout="constrained", facecolor="white")
    accuracy, calibration, cost = figure.subplots(1, 3, sharey=True)
    names = [each.method for each in methods]
    for place, (each, look) in enumerate(zip(methods, looks(names).values(), strict=True)):
        _points(accuracy, place, each.scores, look)
        _points(calibration, place, [value for value in eces[each.method] if value is not None], look)
        if each.cost is not None:
            cost.barh(place, each.cost, height=0.55, color=look.colour)
            cost.annotate(f"{each.cost:.1f}", (each.cost, place), (3, 0), textcoords="offset points", va="center")
    accuracy.set(title="accuracy (%)", yticks=range(len(names)), yticklabels=names)
    accuracy.invert_yaxis()
    calibration.set(title="calibration error, ECE (%)")
    cost.set(title="time of a step (× plain)")
    cost.margins(x=0.15)
    for panel in (accuracy, calibration):
        panel.grid(axis="x")
        panel.margins(x=0.08)
    calibration.set_xlim(left=0)
    seeds = max(len(each.seeds) for each in methods)
    rows = sum(found.rows.values())
    figure.supxlabel(f"{title}: {rows:,} rows, {seeds} seed{'s' * (seeds > 1)}", fontsize=8)
    return figure


def _points(panel: Any, place: int, values: Sequence[float], look: Any) -> None:
    percent = [100 * value for value in values]
    panel.scatter(percent, [place] * len(percent), s=22, marker=look.marker, color=look.colour, alpha=0.8, linewidths=0)
    panel.vlines(sum(percent) / len(percent), place - 0.3, place + 0.3, color=INK, linewidth=1.5)
