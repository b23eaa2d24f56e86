"""From finished runs to what the GLUE server takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stackelberg.errors import DataError, SettingError
from stackelberg.nlu.loading import load
from stackelberg.nlu.metrics import predicted
from stackelberg.nlu.submission import FILES

if TYPE_CHECKING:
    from stackelberg.nlu.run import Run


def server_files(run: Run, *, skip_missing: bool) -> list[tuple[str, Any]]:
    """The server's files that a run can fill, predicted now if they are not there yet.

    Args:
        run: of a task of GLUE; MNLI's fills AX too.
        skip_missing: leave AX out where its rows are not there, which is refused otherwise.
    """
    found = []
    for name, file in FILES.items():
        if file.task == run.recipe.task:
            values, _, _ = run.probabilities(file.split)
        elif file.task == "ax" and run.recipe.task == "mnli":
            try:
                values = run.predict(load("ax", run.recipe.data, splits=[file.split])[file.split])
            except DataError:
                if not skip_missing:
                    raise
                continue
        else:
            continue
        found.append((name, predicted(run.task, values)))
    if not found:
        raise SettingError(f"{run.folder} is a run of {run.task.title}, which is no task of the GLUE server")
    return found
