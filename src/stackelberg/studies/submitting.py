"""The GLUE server's files from a study's runs: of each task, the run that is best on the development set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stackelberg.nlu.run import Run
from stackelberg.nlu.submission import write_submission
from stackelberg.nlu.submitting import server_files
from stackelberg.studies.result import Result
from stackelberg.studies.store import Store

if TYPE_CHECKING:
    from stackelberg.studies.study import Study

SCORE = "score"


def write_submissions(study: Study, store: Store) -> list[str]:
    """A zip for each method with a finished run; what is in each, in words."""
    said = []
    results = {each.id: each for each in store.results()}
    finished = [results[cell.id] for cell in study.cells() if results[cell.id].state == "finished"]
    for method in study.methods:
        best: dict[str, Result] = {}
        for each in finished:
            if each.method == method and each.figures[SCORE] > _score(best.get(each.task)):
                best[each.task] = each
        if not best:
            continue
        predictions: dict[str, Any] = {}
        for each in best.values():
            predictions |= dict(server_files(Run.open(each.folder), skip_missing=True))
        path = store.folder / f"submission-{method}.zip"
        written = write_submission(path, predictions, missing="majority")
        runs = ", ".join(f"{each.task} of seed {each.seed}" for each in best.values())
        filled = f"; one constant label throughout: {', '.join(written.filled)}" if written.filled else ""
        said.append(f"{path}: the best on the development set, {runs}{filled}")
    return said


def _score(result: Result | None) -> float:
    return float("-inf") if result is None else result.figures[SCORE]
