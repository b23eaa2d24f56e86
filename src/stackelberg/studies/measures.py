"""What a study measures of a run once it is trained, beside the figures that every run has.

    probing: {tasks: [cr, mr], draws: 10, pooling: first, data: FOLDER}    probing/cr: mean accuracy of linear heads
    robustness: {data: FOLDER}                                             robustness/dev/anli-r1, .../anli-all
    predictions: {}                                                        none: what the GLUE server needs is kept

`data` is the recipe's where it is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from pathlib import Path
from typing import Any

from stackelberg.errors import one_of
from stackelberg.game.settings.checks import whole
from stackelberg.studies.errors import StudyError


def measure(run: Any, name: str, options: Mapping[str, Any]) -> dict[str, float]:
    """The figures of one measure.

    Args:
        run: of language understanding, finished.
        name: of the measure.
        options: the study's for it.
    """
    one_of("measure", name, MEASURES)
    if not hasattr(run, "classifier"):
        raise StudyError(f"{name} is measured of runs of language understanding, and {run.folder} translates")
    return MEASURES[name](run, **options)


def check_options(name: str, options: Any) -> None:
    """Refuse what a measure does not take, or lacks."""
    one_of("measure", name, MEASURES)
    if not isinstance(options, Mapping):
        raise StudyError(f"measures, {name}: {options!r} should be names and values, such as {{}}")
    takes = dict(list(signature(MEASURES[name]).parameters.items())[1:])
    for each in options:
        one_of(f"measures, {name}", each, takes)
    for each, its in takes.items():
        if its.default is its.empty and each not in options:
            raise StudyError(f"measures, {name} has no {each}; give them, such as {each}: [cr, mr]")
    tasks = options.get("tasks", ["cr"])
    if not isinstance(tasks, list) or not tasks or not all(isinstance(task, str) for task in tasks):
        raise StudyError(f"measures, {name}: tasks={tasks!r} should be a list of names, such as [cr, mr]")
    whole("draws", options.get("draws", 1), 1)


def _probing(
    run: Any,
    tasks: list[str],
    draws: int = 10,
    pooling: Any = "first",
    max_length: int = 128,
    data: str | None = None,
) -> dict[str, float]:
    from stackelberg.analysis.frozen import FrozenEncoder
    from stackelberg.analysis.probing import probe, probing_task

    encoder = FrozenEncoder(run.model_folder, pooling=pooling, max_length=max_length)
    found = {}
    for name in tasks:
        task = probing_task(name, _folder(run, data))
        accuracies = probe(encoder, task, seeds=draws, cache=run.folder / "probing").accuracies
        found[f"probing/{Path(name).stem}"] = sum(accuracies) / len(accuracies)
    return found


def _robustness(run: Any, data: str | None = None) -> dict[str, float]:
    from stackelberg.analysis.robustness import measure_robustness, trials

    its = measure_robustness(run.classifier, trials(run.task, _folder(run, data)), precision=run.recipe.precision)
    found = {f"robustness/{each.split}/{_slug(each.title)}": each.accuracy.value for each in its.adversarial}
    return found | {f"robustness/{_slug(each.title)}": each.every.value for each in its.attacked}


def _predictions(run: Any) -> dict[str, float]:
    from stackelberg.nlu.submitting import server_files

    server_files(run, skip_missing=True)
    return {}


def _folder(run: Any, data: str | None) -> Path | None:
    chosen = data or run.recipe.data
    return None if chosen is None else Path(chosen)


def _slug(title: str) -> str:
    return title.lower().replace(" ", "-")


MEASURES: dict[str, Callable[..., dict[str, float]]] = {
    "probing": _probing,
    "robustness": _robustness,
    "predictions": _predictions,
}
