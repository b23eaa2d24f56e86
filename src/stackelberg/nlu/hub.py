"""Tasks from the Hugging Face hub, by `datasets`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stackelberg.errors import DataError
from stackelberg.extras import need
from stackelberg.nlu.examples import Examples, TaskData, join
from stackelberg.nlu.reading import read_examples
from stackelberg.nlu.table import Table
from stackelberg.nlu.task import Hub, NluTask

UNLABELLED = -1  # what the hub's tables have where a label is withheld


def load_hub(task: NluTask, splits: Sequence[str] | None = None, cache: Path | None = None) -> TaskData:
    """The splits of a task that the hub has.

    Args:
        task: from the catalogue.
        splits: those wanted; all when None.
        cache: folder to download to; the hub's own when None.
    """
    hub = task.hub
    if hub is None:
        raise DataError(f"{task.title} is not on the hub; give the folder that it is in")
    absent = [split for split in splits or () if split not in hub.splits]
    if absent:
        raise DataError(f"{task.title} has no {', no '.join(absent)} on the hub, only {', '.join(hub.splits)}")
    rows = _download(hub, cache)
    wanted = {split: hub.splits[split] for split in splits or hub.splits}
    return TaskData(
        task,
        {
            split: join([_read(task, hub, name, rows, labelled=not split.startswith("test")) for name in names])
            for split, names in wanted.items()
        },
    )


def _download(hub: Hub, cache: Path | None) -> Any:
    datasets = need("datasets")
    arguments = {"cache_dir": None if cache is None else str(cache), "revision": hub.revision}
    try:
        return datasets.load_dataset(hub.path, hub.config, **arguments)
    except Exception as error:  # of any kind: the network's, the hub's, the dataset's own
        raise DataError(
            f"{hub.path} could not be had from the hub ({type(error).__name__}: {error}); "
            "give a folder that the task is in, or try again with a connection"
        ) from error


def _read(task: NluTask, hub: Hub, name: str, rows: Any, *, labelled: bool) -> Examples:
    path = Path(hub.path, *([hub.config] if hub.config else []), name)
    if name not in rows:
        raise DataError(f"{path} is not on the hub; {hub.path} has {', '.join(rows)}")
    split = rows[name]
    columns = tuple(split.column_names)
    values = {column: list(split[column]) for column in columns}
    label = hub.columns.label
    if label in values:
        if all(value is None or value == UNLABELLED for value in values[label]):
            values[label] = [None] * len(values[label])  # withheld, as in GLUE's test splits
        elif task.kind == "classes":
            values[label] = [_name(value, split.features[label], task) for value in values[label]]
    table = Table(
        path=path,
        columns=columns,
        rows=list(zip(*(values[column] for column in columns), strict=True)),
        numbers=range(len(split)),
        unit="row",
    )
    return read_examples(table, task, hub.columns, labelled=labelled)


def _name(value: Any, feature: Any, task: NluTask) -> Any:
    """A label by name, since the hub's order of the classes need not be ours."""
    if value is None or value == UNLABELLED:
        return task.no_label
    names = getattr(feature, "names", None)
    if names is not None:
        return names[value]
    return task.labels[value] if isinstance(value, int) and value < len(task.labels) else value
