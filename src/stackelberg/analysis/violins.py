"""Violin plots: how figures of several methods are spread over seeds, one panel a task, as in the paper's figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stackelberg.analysis.errors import AnalysisError
from stackelberg.analysis.figure_style import looks
from stackelberg.extras import need

WIDTH, HEIGHT = 0.75, 3.0  # inches of a violin, and of a panel
COLUMNS = 3


def violin_figure(
    panels: Mapping[str, Mapping[str, Sequence[float]]], *, label: str = "accuracy (%)", title: str | None = None
) -> Any:
    """A violin for every method in every panel, with each value as a point and their mean as a line.

    Panels have scales of their own, which do not begin at 0: they show spread, not size.

    Args:
        panels: for each task, by the name to print, the values of each method as fractions.
        label: of the vertical axis.
        title: above all panels.
    """
    if not panels or not all(panels.values()):
        raise AnalysisError("there is nothing to draw; give at least one method with at least one value")
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    widest = max(len(methods) for methods in panels.values())
    figure = need("matplotlib.figure").Figure(
        figsize=(columns * max(2.2, WIDTH * widest + 0.7), rows * HEIGHT), layout="constrained"
    )
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for place, (panel, (name, methods)) in enumerate(zip(axes, panels.items(), strict=False)):
        _draw(panel, methods)
        panel.set_title(name, fontsize=10)
        if place % columns == 0:
            panel.set_ylabel(label)
    for panel in axes[len(panels) :]:
        panel.remove()
    if title is not None:
        figure.suptitle(title, fontsize=11)
    return figure


def _draw(panel: Any, methods: Mapping[str, Sequence[float]]) -> None:
    for place, (values, look) in enumerate(zip(methods.values(), looks(list(methods)).values(), strict=True)):
        percent = 100 * np.asarray(values, dtype=np.float64)
        if np.ptp(percent) > 0:  # a density needs two different values
            for body in panel.violinplot(percent, [place], widths=0.8, showextrema=False)["bodies"]:
                body.set(facecolor=look.colour, edgecolor="black", linewidth=0.6, alpha=0.75)
        beside = 0.06 * np.resize([0, 1, -1], len(percent))  # or equal values would be one point
        panel.scatter(place + beside, percent, s=7, color="black", alpha=0.6, linewidths=0, zorder=3)
        panel.hlines(percent.mean(), place - 0.25, place + 0.25, color="black", linewidth=1.8, zorder=4)
    longest = max(map(len, methods))
    turned = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if longest > 8 else {}
    panel.set_xticks(range(len(methods)), list(methods), fontsize=9, **turned)
    panel.set_xlim(-0.6, len(methods) - 0.4)
    panel.set_axisbelow(True)
    panel.grid(axis="y", linewidth=0.4)
    panel.spines[["top", "right"]].set_visible(False)
