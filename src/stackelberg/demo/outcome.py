"""What came of the demo."""

from __future__ import annotations

from pathlib import Path

from stackelberg.analysis.comparison import Comparison
from stackelberg.analysis.playing import Played, comparison_of
from stackelberg.nlu.run import Run
from stackelberg.studies.store import Store


def comparison(store: Store, seeds: int) -> Comparison:
    """Of the finished runs with the first seeds, as `stackelberg compare` has it."""
    asked = [each for each in store.results() if each.seed < seeds]
    failed = [f"{each.method} with seed {each.seed} is left out: {each.error}." for each in asked if each.error]
    runs = tuple(Run.open(each.folder) for each in asked if each.state == "finished")
    return comparison_of(Played(runs, tuple(failed)), store.folder, "plain")


def first_run(store: Store, method: str) -> Path | None:
    """The folder of a method's first finished run."""
    return next((each.folder for each in store.results() if (each.method, each.state) == (method, "finished")), None)
