"""All runs of a comparison, one after another; what is finished is never trained again, whenever it was stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stackelberg.analysis.comparison import Comparison, compare, compare_scores
from stackelberg.analysis.errors import AnalysisError
from stackelberg.analysis.scores import Judged, Outcome
from stackelberg.errors import NonFiniteLossError, SettingError, StackelbergError, one_of
from stackelberg.nlu.metrics import predicted
from stackelberg.nmt.recipe_file import is_translation
from stackelberg.nmt.run import MAIN, TranslationRun

if TYPE_CHECKING:
    from stackelberg.nlu.recipe import Recipe
    from stackelberg.nlu.run import Run
    from stackelberg.nmt.recipe import TranslationRecipe

Train = Callable[[Any, Path], "Run | TranslationRun"]


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a comparison is, told before each run.

    Args:
        number: of the run, 1 first.
        total: of all runs.
        method: that it plays.
        seed: that it plays with.
        seconds_left: for this and all later runs, by what runs have taken so far; None before the first is done.
    """

    number: int
    total: int
    method: str
    seed: int
    seconds_left: float | None


@dataclass(frozen=True, slots=True)
class Played:
    """What was trained.

    Args:
        runs: the finished ones, in the order they were played.
        failed: a sentence for each run that diverged.
    """

    runs: tuple[Run | TranslationRun, ...]
    failed: tuple[str, ...]


def plan(
    source: str | Path | None,
    methods: Sequence[str],
    seeds: Sequence[int],
    *,
    overrides: Sequence[str] = (),
    settings: Sequence[str] = (),
    **fields: Any,
) -> list[Recipe] | list[TranslationRecipe]:
    """The recipes of a comparison, seed by seed, so that a table can be had early and a slow hour is shared by all.

    Args:
        source: of every recipe, of understanding or of translation; see their `load`.
        methods: names, each once.
        seeds: each once.
        overrides: `key=value` for all recipes.
        settings: `method.setting=value`, for the recipes of one method.
        **fields: of every recipe.
    """
    from stackelberg.methods import METHODS
    from stackelberg.nlu.recipe import Recipe
    from stackelberg.nmt.recipe import TranslationRecipe

    for name, given in (("methods", methods), ("seeds", seeds)):
        if not given or len(set(given)) < len(given):
            raise SettingError(f"{name}={','.join(map(str, given))} must name each once, and at least one")
    for method in methods:
        one_of("method", method, METHODS)
    for said in overrides:
        name = said.partition("=")[0].strip()
        if name in ("method", "seed"):
            raise SettingError(f"{said!r}: a comparison has several; use --methods and --seeds")
    its = _by_method(settings, methods)
    kind: Any = TranslationRecipe if is_translation(source) else Recipe
    made = {method: kind.load(source, [*overrides, *its[method]], **{**fields, "method": method}) for method in methods}
    return [made[method].replace(seed=seed) for seed in seeds for method in methods]


def seeds_of(text: str) -> list[int]:
    """Seeds as they are said: `5` for five of them, 0 to 4, or the seeds themselves, `3,7,11`."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and part.isascii() for part in parts) or parts == ["0"]:
        raise SettingError(f"--seeds {text!r} should be how many, such as 5, or which, such as 3,7,11")
    return list(range(int(parts[0]))) if len(parts) == 1 else [int(part) for part in parts]


def play(
    recipes: Sequence[Recipe | TranslationRecipe],
    folder: Path,
    train: Train,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Played:
    """Train what is not finished.

    Args:
        recipes: as `plan` makes them.
        folder: of the comparison; a run is in `<method>/<seed>-<key of its recipe>` there.
        train: makes a run or returns at once the one that is there, as `Run.train` does.
        report: told of each run before it begins.
    """
    runs: list[Run | TranslationRun] = []
    failed: list[str] = []
    for number, recipe in enumerate(recipes, 1):
        left = _seconds_left(recipes[number - 1 :], runs)
        report(Progress(number, len(recipes), recipe.method, recipe.seed, left))
        try:
            runs.append(train(recipe, run_folder(folder, recipe)))
        except NonFiniteLossError as error:
            failed.append(f"{recipe.method} with seed {recipe.seed} diverged and is left out: {error}.")
    return Played(tuple(runs), tuple(failed))


def run_folder(folder: Path, recipe: Recipe | TranslationRecipe) -> Path:
    """Where a run of a comparison is."""
    return folder / recipe.method / f"{recipe.seed}-{recipe.key()}"


def comparison_of(played: Played, folder: Path, baseline: str) -> Comparison:
    """Compare what was trained.

    Args:
        played: the runs.
        folder: of the comparison.
        baseline: the method that differences are taken from.
    """
    if not any(run.recipe.method == baseline for run in played.runs):
        said = " ".join((f"no run of {baseline} is finished, and the others are compared with it.", *played.failed))
        raise AnalysisError(said.removesuffix("."))
    first = played.runs[0]
    if isinstance(first, TranslationRun):
        what = f"{first.recipe.source}–{first.recipe.target}"
    else:
        what = first.task.title
    title = f"{what} by {Path(first.recipe.model).name}"
    return compared(played.runs, folder, title=title, baseline=baseline, remarks=[*played.failed, *remarks_of(first)])


def compared(
    runs: Sequence[Run | TranslationRun], folder: Path, *, title: str, baseline: str, remarks: Sequence[str] = ()
) -> Comparison:
    """Finished runs of one task: by its score, or by the BLEU of their recipe on the test set, or dev without one.

    Args:
        runs: of several methods.
        folder: that theirs are in.
        title: the comparison's.
        baseline: the method that differences are taken from.
        remarks: to hand on.
    """
    translations = [run for run in runs if isinstance(run, TranslationRun)]
    if translations:
        from stackelberg.analysis.translating import bleu_scores

        scores = bleu_scores(translations, [_outcome(run, folder) for run in runs], split_of(translations[0]))
        metrics: Sequence[str] = [MAIN[translations[0].recipe.score]]
        return compare_scores(scores, metrics, title=title, baseline=baseline, remarks=remarks)
    its = [run for run in runs if not isinstance(run, TranslationRun)]
    outcomes, judged = outcomes_of(its, folder)
    return compare(outcomes, judged, its[0].task.metrics, title=title, baseline=baseline, remarks=remarks)


def remarks_of(run: Run | TranslationRun) -> list[str]:
    """What must be said beside the figures of runs such as this one."""
    if not isinstance(run, TranslationRun):
        return subsets(run)
    metric = MAIN[run.recipe.score]
    return [f"{metric} by sacrebleu: {run.scores(split_of(run))[metric].signature}."]


def split_of(run: TranslationRun) -> str:
    """The split that a translation run is compared on."""
    return "test" if run.recipe.test else "dev"


def outcomes_of(runs: Sequence[Run], folder: Path) -> tuple[list[Outcome], list[Judged]]:
    """The runs' answers, and the rows that all of them are judged by."""
    outcomes: list[Outcome] = []
    judged: dict[str, Judged] = {}
    for run in runs:
        predictions = {}
        for split in run.judged_by:
            answers, targets, _ = run.probabilities(split)
            if targets is None:
                raise AnalysisError(f"{run.folder} has no labels for {split}, which it is judged by; train it anew")
            before = judged.setdefault(split, Judged(split, targets))
            if not np.array_equal(before.targets, targets):
                raise AnalysisError(
                    f"{run.folder} was judged by other rows of {split} than {runs[0].folder}: the data has changed in "
                    "between; compare into a new folder"
                )
            predictions[split] = predicted(run.task, answers)
        outcomes.append(replace(_outcome(run, folder), predictions=predictions))
    if len({run.judged_by for run in runs}) > 1:
        raise AnalysisError("the runs are judged by different splits; compare into a new folder")
    return outcomes, list(judged.values())


def _outcome(run: Run | TranslationRun, folder: Path) -> Outcome:
    return Outcome(
        method=run.recipe.method,
        seed=run.recipe.seed,
        key=run.recipe.key(),
        folder=str(run.folder.relative_to(folder)),
        predictions={},
        ece=run.figures.get("ece"),
        seconds_per_step=run.figures.get("seconds_per_step"),
        machine=machine_of(run.folder),
        settings=dict(run.recipe.settings),
    )


def subsets(run: Run) -> list[str]:
    """What must be said beside figures that were not made on a task as it was published."""
    try:
        found = run.data.subsets()
    except StackelbergError as error:  # after days of training this must not be what stops the table
        return [f"whether the data is a subset could not be looked up: {error}."]
    return [
        f"{split} is a subset, {here:,} of {published:,} rows: these figures are not those of the whole task."
        for split, (here, published) in found.items()
        if split == "train" or split in run.judged_by
    ]


def _seconds_left(recipes: Sequence[Recipe | TranslationRecipe], runs: Sequence[Run | TranslationRun]) -> float | None:
    taken: dict[str, list[float]] = {}
    for run in runs:
        if "seconds" in run.figures:
            taken.setdefault(run.recipe.method, []).append(run.figures["seconds"])
    if not taken:
        return None
    means = {method: float(np.mean(seconds)) for method, seconds in taken.items()}
    unknown = float(np.mean(list(means.values())))  # of a method that has not been played yet
    return sum(means.get(recipe.method, unknown) for recipe in recipes)


def _by_method(settings: Sequence[str], methods: Sequence[str]) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {method: [] for method in methods}
    for said in settings:
        method, dot, rest = said.partition(".")
        if not dot or "=" not in rest:
            raise SettingError(f"--set {said!r} should be method.setting=value, such as salt.weight=2.0")
        one_of("--set, method", method, methods)
        found[method].append(f"settings.{rest}")
    return found


def machine_of(folder: Path) -> str:
    """What a run's seconds were measured on."""
    path = folder / "versions.json"
    said: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return ", ".join(str(said[name]) for name in ("device", "threads") if name in said)
