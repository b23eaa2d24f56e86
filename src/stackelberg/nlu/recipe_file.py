"""Recipes as YAML: those that are shipped, a user's own, and the changes made to them on a command line.

A file has a recipe's fields. Two sections are particular to files: `forms`, which has fields for each form of the
recipe (`tuned`, `paper`), and `methods`, which has settings for each method, so that another method comes with its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stackelberg.decoding import decode, listing
from stackelberg.errors import SettingError, nearest
from stackelberg.extras import need
from stackelberg.nlu.catalogue import TASKS, find_task

if TYPE_CHECKING:
    from stackelberg.nlu.recipe import Recipe

ENDINGS = (".yaml", ".yml")
DEFAULT_FORM = "tuned"
TRANSLATION = "nmt/"  # begins the names of translation's recipes
NUMBER = re.compile(r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+")  # 5e-5, which YAML 1.1 takes for a text


def shipped() -> dict[str, Path]:
    """The recipes of the package: name to file. Those of translation have other fields and are read in `nmt`."""
    return {name: path for name, path in every_recipe().items() if not name.startswith(TRANSLATION)}


def every_recipe() -> dict[str, Path]:
    """Those of translation too."""
    home = Path(str(files("stackelberg") / "recipes"))
    return {str(path.relative_to(home).with_suffix("")): path for path in sorted(home.rglob("*.yaml"))}


def read(source: str | Path | None, overrides: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's fields from all three; see `Recipe.load`."""
    from stackelberg.nlu.recipe import refuse_unknown

    asked = {name: value for name, value in given.items() if value is not None}
    refuse_unknown(asked, "a recipe")
    nested, wanted = settings_of(asked, "settings"), dict(asked)
    for name, value in map(override, overrides):
        place, _, setting = name.partition(".")
        refuse_unknown({place: value}, "a recipe")
        if place == "settings" and setting:
            nested[setting] = value
        elif setting:
            raise SettingError(f"{name}={value!r}: only settings has a dot in it, as in settings.epsilon=0.5")
        elif place == "settings":
            nested.update(settings_of({place: value}, place))
        else:
            wanted[place] = value
    where, found = _found(source, wanted.get("form"))
    values = {**found, **wanted}
    methods = settings_of(values, "methods")
    its = methods.get(str(values.get("method", "salt")), {})
    if not isinstance(its, Mapping):
        raise SettingError(f"{where}: methods.{values.get('method', 'salt')}={its!r} should be names and values")
    return {**values, "settings": {**its, **settings_of(found, "settings"), **nested}}


def written(recipe: Recipe, *, located: bool = True) -> str:
    """A recipe as YAML: every field that is not what it would be anyway.

    Args:
        recipe: to write.
        located: files and folders by their full paths, so that the file means the same wherever it is read from.
    """
    yaml = need("yaml")
    deciding = recipe.deciding() if located else {}
    values: dict[str, Any] = {}
    for f in fields(recipe):
        default = (
            f.default if f.default is not MISSING else f.default_factory() if callable(f.default_factory) else None
        )
        value = deciding.get(f.name, getattr(recipe, f.name))
        if f.name in ("grid", "gaps", "methods") or (value == default and f.name not in ("method", "model", "seed")):
            continue
        values[f.name] = list(value) if isinstance(value, tuple) else value
    values["settings"] = {k: list(v) if isinstance(v, tuple) else v for k, v in recipe.settings.items()}
    comments = "".join(f"# not said by the recipe's source: {gap}\n" for gap in recipe.gaps)
    return comments + str(yaml.safe_dump(values, sort_keys=False, allow_unicode=True))


def _found(source: str | Path | None, form: Any) -> tuple[str, dict[str, Any]]:
    """The fields of a file in one of its forms, and what to call the file."""
    from stackelberg.nlu.recipe import refuse_unknown

    where, values = _source(source)
    forms = values.pop("forms", None)
    refuse_unknown(values, where)
    chosen = form or values.get("form", DEFAULT_FORM)
    if forms is None:
        if chosen != values.get("form", DEFAULT_FORM):
            raise SettingError(f"form={chosen!r}: {where} has no forms to choose from; leave it out")
        return where, values
    if not isinstance(forms, Mapping) or not all(isinstance(each, Mapping) for each in forms.values()):
        raise SettingError(f"{where}: forms should be names of forms, each with fields of a recipe")
    if chosen not in forms:
        raise SettingError(f"form={chosen!r}: {where} has {', '.join(map(str, forms))}{nearest(chosen, forms)}")
    for name, each in forms.items():
        refuse_unknown(each, f"{where}, form {name}")
    return where, {**values, **forms[chosen], "form": chosen}


def _source(source: str | Path | None) -> tuple[str, dict[str, Any]]:
    if source is None:
        return "the command", {}
    known, name = shipped(), str(source)
    if isinstance(source, Path) or name.endswith(ENDINGS) or Path(name).is_file():
        return name, parsed(Path(source))
    if name in known:
        return name, parsed(known[name])
    try:
        task = find_task(name).name
    except SettingError as error:
        names = [*known, *TASKS]
        raise SettingError(
            f"recipe {name!r} is no file, no recipe of ours and no task; the recipes are {', '.join(known)}"
            f"{nearest(name, names)}"
        ) from error
    for recipe, path in known.items():
        if recipe.rpartition("/")[2] == task:
            return recipe, parsed(path)
    return task, {"task": task}


def parsed(path: Path) -> dict[str, Any]:
    """The names and values of a YAML file."""
    if path.is_dir():
        raise SettingError(f"recipe {path} is a folder; give a YAML file, such as {path / 'recipe.yaml'}")
    if not path.is_file():
        raise SettingError(f"recipe {path} is not there; {listing(path.parent)}")
    values = _yaml(decode(path), str(path))
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise SettingError(f"{path} should hold names and values, such as 'task: rte', one a line")
    return values


def override(said: str) -> tuple[str, Any]:
    """A `key=value`, its value read as YAML."""
    name, equals, value = said.partition("=")
    if not equals or not name.strip():
        raise SettingError(f"{said!r} should be key=value, such as epochs=3 or settings.epsilon=0.5")
    return name.strip(), _yaml(value, f"{name.strip()}=…")


def _yaml(text: str, where: str) -> Any:
    yaml = need("yaml")

    class Loader(yaml.SafeLoader):  # type: ignore[name-defined, misc]
        """Of `yaml.safe_load`, with 5e-5 a number and no name twice."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen: set[str] = set()
            for name, _ in node.value:
                if not isinstance(name.value, str):
                    raise yaml.MarkedYAMLError(problem="a name that is no text", problem_mark=name.start_mark)
                if name.value in seen:
                    raise yaml.MarkedYAMLError(problem=f"{name.value!r} is there twice", problem_mark=name.start_mark)
                seen.add(name.value)
            return super().construct_mapping(node, deep)

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", NUMBER, list("-+.0123456789"))
    try:
        return yaml.load(text, Loader)  # a SafeLoader: no object but numbers, texts, lists and mappings
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise SettingError(f"{where}{line}: not YAML ({problem}); write one 'name: value' a line") from error
    except (ValueError, RecursionError) as error:  # a date that is none, brackets without end
        raise SettingError(f"{where}: not a value that a recipe can have ({error})") from error


def settings_of(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A mapping among a recipe's values; nothing where there is none."""
    found = values.get(name)
    if found is None:
        return {}
    if not isinstance(found, Mapping) or not all(isinstance(key, str) for key in found):
        raise SettingError(f"{name}={found!r} should be names and values, such as {{weight: 2.0}}")
    return dict(found)
