"""Figures of runs: which one a table shows, and how it is printed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stackelberg.nmt.recipe import TranslationRecipe
from stackelberg.nmt.run import MAIN

if TYPE_CHECKING:
    from stackelberg.analysis.statistics import Interval, Spread
    from stackelberg.studies.cell import Cell
    from stackelberg.studies.study import Study

NOTHING = "–"
COSTS = ("seconds", "seconds_per_step", "peak_gib")
LOSSES = ("nll", "brier", "mse", "dev/loss")
UNTESTED = (*COSTS, "tokens_per_second", "steps", "best_step")  # measured, and never said to be more than luck
AS_THEY_ARE = (*UNTESTED, *LOSSES)
LOWER_IS_BETTER = (*COSTS, *LOSSES, "ece", "ece_width", "mce")
UNITS = {"seconds_per_step": "s a step", "peak_gib": "GiB", "seconds": "s", "tokens_per_second": "tokens a second"}


def metrics_of(study: Study, cell: Cell) -> tuple[str, ...]:
    """The figures that a study's table has of a run's task: its score, or BLEU on its test set."""
    if study.metrics:
        return study.metrics
    if not isinstance(cell.recipe, TranslationRecipe):
        return ("score",)
    split = "test" if cell.recipe.test else "dev"
    return (f"{split}/{MAIN[cell.recipe.score]}",)


def scale(kind: str, metric: str) -> float:
    """What a figure is multiplied by to be printed: fractions by 100; BLEU is so already."""
    return 1.0 if kind == "nmt" or metric in AS_THEY_ARE else 100.0


def digits(metric: str) -> int:
    """Behind the point."""
    return 3 if metric in AS_THEY_ARE else 1


def figure_text(its: Spread, kind: str, metric: str) -> str:
    """A mean with its standard deviation."""
    return its.text(scale(kind, metric), digits(metric))


def size_text(value: float, kind: str, metric: str) -> str:
    """How large a difference is, whatever its sign: in points, but of figures that are printed as they are."""
    size = f"{abs(value) * scale(kind, metric):.{digits(metric)}f}"
    return size if metric in AS_THEY_ARE else f"{size} points"


def signed_text(value: float, kind: str, metric: str) -> str:
    """A difference."""
    return f"{value * scale(kind, metric):+.{digits(metric)}f}".replace("-", "−")


def interval_text(its: Interval | None, kind: str, metric: str) -> str:
    """Of a difference; a dash where there is none."""
    return NOTHING if its is None else " to ".join(signed_text(end, kind, metric) for end in (its.low, its.high))


def titles(columns: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Of tables' columns, by task and metric: what they differ in."""
    several = len({metric for _, metric in columns}) > 1
    tasks = len({task for task, _ in columns}) > 1
    found = {}
    for task, metric in columns:
        name, shown = task.rpartition("/")[2], metric.removeprefix("robustness/").removeprefix("probing/")
        said = several or metric in AS_THEY_ARE
        parts = [name] * (tasks or not said) + [UNITS.get(metric, shown.replace("/", " "))] * said
        found[task, metric] = ", ".join(parts)
    return found
