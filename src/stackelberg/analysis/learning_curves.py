"""Learning curves: a figure by step, a line for each method over its seeds, as in the paper's figure of the losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stackelberg.analysis.errors import AnalysisError
from stackelberg.analysis.figure_style import PANEL, legend_below, looks
from stackelberg.extras import need

Curve = Sequence[tuple[int, float]]  # step and figure


def curves_figure(curves: Mapping[str, Sequence[Curve]], *, label: str, title: str | None = None) -> Any:
    """One panel. A line is the mean over a method's seeds at the steps that all of them have, its band their range.

    Args:
        curves: for each method, by the name to print, a curve of each seed.
        label: of the vertical axis.
        title: above the panel.
    """
    if not any(curves.values()):
        raise AnalysisError("there is no curve to draw; give at least one method with one seed")
    figure = need("matplotlib.figure").Figure(figsize=PANEL, layout="constrained")
    panel = figure.subplots()
    for (name, its), look in zip(curves.items(), looks(list(curves)).values(), strict=True):
        steps, values = at_common_steps(its)
        if not steps:
            continue
        if len(its) > 1:
            panel.fill_between(
                steps, values.min(axis=0), values.max(axis=0), color=look.colour, alpha=0.15, linewidth=0
            )
        panel.plot(
            steps,
            values.mean(axis=0),
            color=look.colour,
            linestyle=look.dash,
            marker=look.marker,
            markevery=max(1, len(steps) // 6),
            label=name,
        )
    panel.set_xlabel("step")
    panel.set_ylabel(label)
    panel.grid(axis="y")
    panel.xaxis.set_major_locator(need("matplotlib.ticker").MaxNLocator(5, integer=True))
    if title is not None:
        panel.set_title(title)
    legend_below(figure, len(curves))
    return figure


def at_common_steps(curves: Sequence[Curve]) -> tuple[list[int], Any]:
    """Steps at which every curve has a finite figure, and the figures, curves × steps."""
    by_step = [{step: value for step, value in curve if np.isfinite(value)} for curve in curves]
    common = sorted(set.intersection(*(set(each) for each in by_step))) if by_step else []
    return common, np.array([[each[step] for step in common] for each in by_step])
