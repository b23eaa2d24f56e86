"""A study's folder: what has become of every run.

study.yaml        what was asked for           runs/<id>/       a run's folder, as `Run` makes it, and in it
study.sqlite      a row a run                  runs/<id>/cell.json   what it is in the study, and what was measured
logs/<id>.log     what the run said

Run folders are the truth: what is finished there is finished whatever the row says, and rows are made from them again
when the database is lost. Several processes may work on one folder: a run is claimed by one of them at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from stackelberg.studies.study import Study

State = Literal["waiting", "running", "finished", "failed"]


@dataclass(frozen=True, slots=True)
class Result:
    """What is known of a run.

    Args:
        id: of its cell; the other names of a cell follow.
        state: `failed` where it cannot be trained, or was given up.
        figures: of a finished run as `Run.figures` has them (`score`, `ece`, `seconds_per_step`; of translation
            `test/sacrebleu`, times 100 already), and what was measured: `probing/cr`, `robustness/dev/anli-r1`.
        folder: the run's, there or not.
        error: a sentence, of one that failed.
        who: the process that has it, of one that is running.
        attempts: how often it was begun.
        started: seconds since 1970, None if it was not.
        finished: likewise.
    """

    id: str
    kind: str
    method: str
    task: str
    setting: str
    seed: int
    state: State
    folder: Path
    figures: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None
    who: str | None = None
    attempts: int = 0
    started: float | None = None
    finished: float | None = None


class Store:
    """The folder of a study.

    Args:
        folder: that a study was begun in; `Store.begin` makes one.
    """

    def __init__(self, folder: Path | str) -> None:
        raise NotImplementedError

    @property
    def study(self) -> Study:
        """As it was asked for last."""
        raise NotImplementedError

    def results(self) -> list[Result]:
        """Every run, in the study's order."""
        raise NotImplementedError
