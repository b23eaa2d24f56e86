"""One call for every task that has a name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stackelberg.nlu.catalogue import find_task
from stackelberg.nlu.examples import TaskData
from stackelberg.nlu.folder import load_folder
from stackelberg.nlu.hub import load_hub
from stackelberg.nlu.task import NluTask


def load(task: str | NluTask, folder: Path | str | None = None, *, splits: Sequence[str] | None = None) -> TaskData:
    """Read a task.

    Args:
        task: a name in the catalogue, or a task of your own.
        folder: the task's own folder, or the one that holds a folder for each task; the Hugging Face hub when None.
        splits: those that must be there, and no others; whatever there is when None.
    """
    task = find_task(task) if isinstance(task, str) else task
    return load_hub(task, splits) if folder is None else load_folder(task, Path(folder), splits)
