"""One run of a study, and how the runs of a study are made of its methods, tasks, settings and seeds."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

from stackelberg.errors import SettingError, one_of
from stackelberg.nlu.catalogue import find_task
from stackelberg.nlu.recipe import Recipe
from stackelberg.nmt.recipe import TranslationRecipe
from stackelberg.nmt.recipe_file import is_translation
from stackelberg.runs.recipe_file import every_recipe, is_file, settings_of
from stackelberg.studies.errors import StudyError
from stackelberg.studies.study import OWN_GRID

if TYPE_CHECKING:
    from stackelberg.studies.study import Study

Kind = Literal["nlu", "nmt"]
AnyRecipe = Recipe | TranslationRecipe
Fields = Mapping[str, Any]

METHODS_OWN = "settings."  # begins the names of a method's settings among a recipe's fields


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a study.

    Args:
        id: the key of its recipe, which its folder is named by: equal recipes are one run.
        kind: `nlu`, a `Run`, or `nmt`, a `TranslationRun`.
        method: its name.
        task: its name in the study.
        setting: its name in the study; empty where there is one only, or where settings make no difference to the
            method.
        seed: the recipe's.
        recipe: what is trained.
    """

    id: str
    kind: Kind
    method: str
    task: str
    setting: str
    seed: int
    recipe: AnyRecipe

    @property
    def name(self) -> str:
        """In a sentence."""
        setting = f", {self.setting}" if self.setting else ""
        return f"{self.method} on {self.task}{setting}, seed {self.seed}"


def cells_of(study: Study) -> list[Cell]:
    """Every run of a study, seed by seed."""
    found: dict[str, Cell] = {}
    first = [each for task in study.tasks for each in _of_task(study, task)]
    for seed in study.seeds:
        for cell in first:
            recipe = cell.recipe if cell.recipe.seed == seed else cell.recipe.replace(seed=seed)
            its = Cell(recipe.key(), cell.kind, cell.method, cell.task, cell.setting, seed, recipe)
            if (other := found.get(its.id)) is not None and other.task != its.task:
                raise StudyError(f"{study.name}: the tasks {other.task} and {its.task} are one; leave one out")
            found.setdefault(its.id, its)
    return list(found.values())


def _of_task(study: Study, task: str) -> Iterator[Cell]:
    """A task's cells, each with a seed that does not matter yet."""
    kind, source, fields = _source(task, study.tasks[task])
    for setting, its in _settings(study, kind, source, fields).items():
        for method in study.methods:
            kept, common = (_of_method(given, method, study.methods) for given in (its, {**study.recipe, **fields}))
            recipe = _recipe(kind, source, {**common, **study.methods[method], **kept, "method": method})
            yield Cell("", kind, method, task, setting if kept or not its else "", 0, recipe)


def _source(task: str, fields: Fields) -> tuple[Kind, str | None, Fields]:
    """Which half of the library a task belongs to, the recipe that it changes, and how."""
    rest = dict(fields)
    source = rest.pop("recipe", None) or task
    if not isinstance(source, str):
        raise StudyError(f"{task}: recipe={source!r} should be the name of a recipe, or its file")
    if not is_translation(source) and is_translation(f"nmt/{source}"):
        source = f"nmt/{source}"
    translates = is_translation(source) or {"source", "target"} <= set(rest)
    if {"train", "data", "synthetic"} & set(rest) and not _is_known(source):
        return "nmt" if translates else "nlu", None, rest  # a name of the study's own
    return "nmt" if translates else "nlu", source, rest


def _is_known(source: str) -> bool:
    """Whether a recipe or a task has that name."""
    if is_file(source) or source in every_recipe():
        return True
    try:
        return bool(find_task(source))
    except SettingError:
        return False


def _recipe(kind: Kind, source: str | None, fields: Fields) -> AnyRecipe:
    """A recipe with fields of its own, those of its method by `settings.name`."""
    own = {name.removeprefix(METHODS_OWN): value for name, value in fields.items() if name.startswith(METHODS_OWN)}
    plain = {name: value for name, value in fields.items() if not name.startswith(METHODS_OWN)}
    given = {**plain, "settings": {**settings_of(plain, "settings"), **own}}
    return TranslationRecipe.load(source, **given) if kind == "nmt" else Recipe.load(source, **given)


def _settings(study: Study, kind: Kind, source: str | None, fields: Fields) -> Mapping[str, Fields]:
    """The study's settings by name, or those that its grid makes."""
    if study.grid is None:
        return study.settings
    recipe = _recipe(kind, source, {**study.recipe, **fields, "method": next(iter(study.methods))})
    grid = recipe.grid if study.grid == OWN_GRID else study.grid
    if not isinstance(grid, Mapping) or not grid:
        raise StudyError(f"{study.name}: grid={study.grid!r}, but the recipe {source} has none; give the values to try")
    return dict(_combinations(grid, recipe))


def _combinations(grid: Mapping[str, Sequence[Any]], recipe: AnyRecipe) -> Iterator[tuple[str, Fields]]:
    """Every combination, and a name for it; a value that is another field's name is that field's value."""
    for values in product(*grid.values()):
        chosen = dict(zip(grid, values, strict=True))
        for name, value in chosen.items():
            if isinstance(value, str) and hasattr(recipe, value):
                chosen[name] = chosen.get(value, getattr(recipe, value))
        short = [
            f"{name.removeprefix(METHODS_OWN)}={value:g}"
            if isinstance(value, int | float) and not isinstance(value, bool)
            else f"{name.removeprefix(METHODS_OWN)}={value}"
            for name, value in chosen.items()
        ]
        yield " ".join(short), chosen


def _of_method(fields: Fields, method: str, methods: Collection[str]) -> Fields:
    """Without settings that the method lacks; what no method has is kept, so that its recipe refuses it by name."""
    return {
        name: value
        for name, value in fields.items()
        if _has(method, name) or not any(_has(other, name) for other in methods)
    }


def _has(method: str, name: str) -> bool:
    """Whether a method has that setting; what is no method's setting, every method has."""
    from stackelberg.methods import METHODS, SYMBOLS

    if not name.startswith(METHODS_OWN):
        return True
    one_of("method", method, METHODS)
    setting = name.removeprefix(METHODS_OWN)
    return SYMBOLS.get(setting, setting) in METHODS[method].__dataclass_fields__
