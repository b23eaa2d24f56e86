"""Parameter studies: a score along one setting, a line for each method, as in the paper's figures over K and ε."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stackelberg.analysis.errors import AnalysisError
from stackelberg.analysis.figure_style import PANEL, legend_below, looks
from stackelberg.analysis.statistics import spread
from stackelberg.extras import need


def sweep_figure(
    lines: Mapping[str, Mapping[float, Sequence[float]]],
    *,
    along: str,
    label: str = "score (%)",
    title: str | None = None,
    scale: float = 100.0,
    flat: Mapping[str, Sequence[float]] | None = None,
) -> Any:
    """One panel: means with their standard deviation over seeds; methods stand a little apart so that none hides one.

    Args:
        lines: for each method, by the name to print, the scores of its seeds at each value of the setting.
        along: the setting, with its symbol.
        label: of the vertical axis.
        title: above the panel.
        scale: that scores are multiplied by.
        flat: scores of methods that do not have the setting, drawn as a line across.
    """
    if not any(lines.values()):
        raise AnalysisError("there is no line to draw; give at least one method with one value")
    figure = need("matplotlib.figure").Figure(figsize=PANEL, layout="constrained")
    panel = figure.subplots()
    values = sorted({value for line in lines.values() for value in line})
    places = {value: float(place) for place, value in enumerate(values)}
    its_look = looks([*lines, *(flat or {})])
    for number, (name, line) in enumerate(lines.items()):
        look = its_look[name]
        apart = 0.08 * (number - (len(lines) - 1) / 2)
        spreads = [spread(line[value]) for value in sorted(line)]
        panel.errorbar(
            [places[value] + apart for value in sorted(line)],
            [scale * each.mean for each in spreads],
            yerr=[scale * (each.deviation or 0.0) for each in spreads],
            color=look.colour,
            linestyle=look.dash,
            marker=look.marker,
            capsize=2,
            elinewidth=0.8,
            label=name,
        )
    for name, scores in (flat or {}).items():
        mean = scale * spread(scores).mean
        panel.axhline(mean, color=its_look[name].colour, linestyle=its_look[name].dash, label=name)
    panel.set_xticks(range(len(values)), [f"{value:g}" for value in values])
    panel.set_xlim(-0.4, len(values) - 0.6)
    panel.set_xlabel(along)
    panel.set_ylabel(label)
    panel.grid(axis="y")
    if title is not None:
        panel.set_title(title)
    legend_below(figure, len(its_look))
    return figure
