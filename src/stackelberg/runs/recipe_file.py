"""Recipes as YAML: those that are shipped, a user's own, and the changes made to them on a command line.

A file has a recipe's fields. Two sections are particular to files: `forms`, which has fields for each form of the
recipe (`tuned`, `paper`), and `methods`, which has settings for each method, so that another method comes with its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from stackelberg.decoding import decode, listing
from stackelberg.errors import SettingError, nearest
from stackelberg.extras import need

ENDINGS = (".yaml", ".yml")
DEFAULT_FORM = "tuned"
NUMBER = re.compile(r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+")  # 5e-5, which YAML 1.1 takes for a text

Refuse = Callable[[Iterable[str], str], None]  # names that are no fields, and what they are in


def every_recipe() -> dict[str, Path]:
    """The recipes of the package: name to file."""
    home = Path(str(files("stackelberg") / "recipes"))
    return {str(path.relative_to(home).with_suffix("")): path for path in sorted(home.rglob("*.yaml"))}


def look_up(source: str | Path | None, shipped: Mapping[str, Path]) -> tuple[str, dict[str, Any]] | None:
    """What to call a file or a shipped recipe, and what is in it; None for a name that is neither."""
    if source is None:
        return "the command", {}
    name = str(source)
    if is_file(source):
        return name, parsed(Path(source))
    return (name, parsed(shipped[name])) if name in shipped else None


def is_file(source: str | Path) -> bool:
    """Whether a recipe is given by its file and not by its name."""
    return isinstance(source, Path) or source.endswith(ENDINGS) or Path(source).is_file()


def changed(
    found: tuple[str, dict[str, Any]],
    given: Mapping[str, Any],
    overrides: Iterable[tuple[str, Any]],
    refuse: Refuse,
) -> dict[str, Any]:
    """A recipe's fields: those found in a file, in the form that is asked for, under those given and overridden."""
    nested, wanted = settings_of(given, "settings"), dict(given)
    for name, value in overrides:
        place, _, setting = name.partition(".")
        if place == "settings" and setting:
            nested[setting] = value
        elif setting:
            raise SettingError(f"{name}={value!r}: only settings has a dot in it, as in settings.epsilon=0.5")
        elif place == "settings":
            nested.update(settings_of({place: value}, place))
        else:
            wanted[place] = value
    where, values = found
    values = _in_form(where, values, wanted.get("form"), refuse)
    its = {**values, **wanted}
    methods, method = settings_of(its, "methods"), str(its.get("method", "salt"))
    usual = methods.get(method, {})
    if not isinstance(usual, Mapping):
        raise SettingError(f"{where}: methods.{method}={usual!r} should be names and values")
    return {**its, "settings": {**usual, **settings_of(values, "settings"), **nested}}


def written(values: Mapping[str, Any], gaps: Sequence[str]) -> str:
    """Fields as YAML, with what their source does not say as comments."""
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    plain["settings"] = {k: list(v) if isinstance(v, tuple) else v for k, v in values["settings"].items()}
    comments = "".join(f"# not said by the recipe's source: {gap}\n" for gap in gaps)
    return comments + str(need("yaml").safe_dump(plain, sort_keys=False, allow_unicode=True))


def _in_form(where: str, found: Mapping[str, Any], form: Any, refuse: Refuse) -> dict[str, Any]:
    values = dict(found)
    forms = values.pop("forms", None)
    refuse(values, where)
    chosen = form or values.get("form", DEFAULT_FORM)
    if forms is None:
        if chosen != values.get("form", DEFAULT_FORM):
            raise SettingError(f"form={chosen!r}: {where} has no forms to choose from; leave it out")
        return values
    if not isinstance(forms, Mapping) or not all(isinstance(each, Mapping) for each in forms.values()):
        raise SettingError(f"{where}: forms should be names of forms, each with fields of a recipe")
    if chosen not in forms:
        raise SettingError(f"form={chosen!r}: {where} has {', '.join(map(str, forms))}{nearest(chosen, forms)}")
    for name, each in forms.items():
        refuse(each, f"{where}, form {name}")
    return {**values, **forms[chosen], "form": chosen}


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
