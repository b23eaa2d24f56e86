"""How the runs of a study are made of its methods, tasks, settings and seeds."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from stackelberg.errors import SettingError, one_of
from stackelberg.game.settings.checks import whole
from stackelberg.nlu.catalogue import find_task
from stackelberg.nlu.recipe import Recipe
from stackelberg.nmt.recipe import TranslationRecipe
from stackelberg.nmt.recipe_file import is_translation
from stackelberg.runs.recipe_file import every_recipe, is_file, settings_of
from stackelberg.studies.cell import AnyRecipe, Cell, Kind
from stackelberg.studies.errors import StudyError

Fields = Mapping[str, Any]

METHODS_OWN = "settings."  # begins the names of a method's settings among a recipe's fields
OWN_GRID = "recipe"  # the word for the grid that the tasks' recipes have


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is run; `stackelberg.studies.study` says what each name means."""

    name: str
    methods: Mapping[str, Mapping[str, Any]]
    tasks: Mapping[str, Mapping[str, Any]]
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"": {}})
    grid: Mapping[str, Sequence[Any]] | str | None = None
    seeds: tuple[int, ...] = (0, 1, 2)
    recipe: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Refuse what can be known to be wrong without a recipe."""
        from stackelberg.methods import METHODS

        for name, kind in (("methods", "method"), ("tasks", "task"), ("settings", "setting"), ("seeds", "seed")):
            if not getattr(self, name):
                raise StudyError(f"{self.name} has no {name}; give at least one {kind}")
        for method in self.methods:
            one_of("method", method, METHODS)
        for seed in self.seeds:
            whole("seeds", seed, 0)
        if len(set(self.seeds)) < len(self.seeds):
            raise StudyError(f"seeds={list(self.seeds)} must name each once")
        if self.grid is not None and self.settings != {"": {}}:
            raise StudyError(f"{self.name} has both settings and a grid; give one of them")
        if self.grid not in (None, OWN_GRID):
            self._check_grid()

    def cells(self) -> list[Cell]:
        """Every run, seed by seed, so that a table can be had early and a slow hour is shared by all methods."""
        found: dict[str, Cell] = {}
        first = [each for task in self.tasks for each in _of_task(self, task)]
        for seed in self.seeds:
            for cell in first:
                recipe = cell.recipe if cell.recipe.seed == seed else cell.recipe.replace(seed=seed)
                its = Cell(recipe.key(), cell.method, cell.task, cell.setting, seed, recipe)
                if (other := found.get(its.id)) is not None and other.task != its.task:
                    raise StudyError(f"{self.name}: the tasks {other.task} and {its.task} are one; leave one out")
                found.setdefault(its.id, its)
        return list(found.values())

    def has(self, method: str, task: str, setting: str, seed: int) -> bool:
        """Whether it asks for such a run; its settings are looked at where they have names of their own."""
        named = self.grid is not None or setting in ("", *self.settings)
        return named and method in self.methods and task in self.tasks and seed in self.seeds

    def _check_grid(self) -> None:
        its = list(self.grid.values()) if isinstance(self.grid, Mapping) else []
        if not its or not all(isinstance(values, list) and values for values in its):
            raise StudyError(
                f"{self.name}: grid={self.grid!r} should be fields, each with a list of values to try, such as "
                "{learning_rate: [1.0e-5, 1.0e-4]}"
            )


def _of_task(plan: Plan, task: str) -> Iterator[Cell]:
    """A task's cells, each with a seed that does not matter yet."""
    kind, source, fields = _source(task, plan.tasks[task])
    for setting, its in _settings(plan, kind, source, fields).items():
        for method in plan.methods:
            kept, common = (_of_method(given, method, plan.methods) for given in (its, {**plan.recipe, **fields}))
            recipe = _recipe(kind, source, {**common, **plan.methods[method], **kept, "method": method})
            yield Cell("", method, task, setting if kept or not its else "", 0, recipe)


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


def _settings(plan: Plan, kind: Kind, source: str | None, fields: Fields) -> Mapping[str, Fields]:
    """The study's settings by name, or those that its grid makes."""
    if plan.grid is None:
        return plan.settings
    recipe = _recipe(kind, source, {**plan.recipe, **fields, "method": next(iter(plan.methods))})
    grid = recipe.grid if plan.grid == OWN_GRID else plan.grid
    if not isinstance(grid, Mapping) or not grid:
        raise StudyError(f"{plan.name}: grid={plan.grid!r}, but the recipe {source} has none; give the values to try")
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
