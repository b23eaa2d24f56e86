"""Studies as YAML: those that are shipped, a user's own, and the changes made to them on a command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from stackelberg.decoding import listing
from stackelberg.errors import nearest, one_of
from stackelberg.extras import need
from stackelberg.runs.recipe_file import is_file, override, parsed
from stackelberg.studies.errors import StudyError
from stackelberg.studies.shows import SHOWN, Show

PATHS = ("data", "model", "train", "dev", "test", "cache")  # fields of a recipe that may be places on this machine
SEVERAL = ("methods", "tasks", "settings")  # names with fields of recipes each

Values = dict[str, Any]


def shipped() -> dict[str, Path]:
    """The studies of the package: name to file."""
    home = Path(str(files("stackelberg.studies") / "shipped"))
    return {path.stem: path for path in sorted(home.glob("*.yaml"))}


def read(source: str | Path, overrides: Sequence[str], smoke: Path | None, names: Sequence[str]) -> Values:
    """A study's fields.

    Args:
        source: as `Study.load` has it; so are the next two.
        overrides: changes.
        smoke: the folder of the smallest size.
        names: that a study has.
    """
    name, values = _source(source)
    smallest = _mapping(values.pop("smoke", None) or {}, f"{name}: smoke")
    for each, where in ((values, name), (smallest, f"{name}, smoke")):
        _refuse_unknown(each, where, names)
    values = _spelled({"name": Path(name).stem, **values}, name)
    changes = [override(said) for said in overrides]
    if smoke is not None:
        from stackelberg.studies.smoke import shrink

        for place, value in smallest.items():
            _change_study(values, place, value)
        shrink(values, smoke, [place for place, _ in changes], _named(smallest.get("tasks") or {}, name))
    for place, value in changes:
        _change(values, place, value, names)
    for its in (values["recipe"], *(each for several in SEVERAL for each in values[several].values())):
        _locate(its)
    for task, its in values["tasks"].items():
        source = its.get("recipe") or task
        if isinstance(source, str) and Path(source).is_file():
            its["recipe"] = str(Path(source).resolve())
    return values


def written(study: Any) -> str:
    """A study as YAML, everything said."""
    values = {f.name: getattr(study, f.name) for f in fields(study)}
    values["seeds"] = list(study.seeds)
    values["remarks"], values["metrics"] = list(study.remarks), list(study.metrics)
    values["shows"] = [{name: value for name, value in asdict(show).items() if value} for show in study.shows]
    said = {name: value for name, value in values.items() if value not in (None, {}, [])}
    return str(need("yaml").safe_dump(_plain(said), sort_keys=False, allow_unicode=True))


def _source(source: str | Path) -> tuple[str, Values]:
    known, name = shipped(), str(source)
    if is_file(source):
        path = Path(source)
        if not path.is_file():
            raise StudyError(f"study {name} is not there; {listing(path.parent)}")
        return name, parsed(path)
    if name not in known:
        raise StudyError(
            f"study {name!r} is no file and none of ours, which are {', '.join(known)}{nearest(name, known)}"
        )
    return name, parsed(known[name])


def _spelled(values: Values, where: str) -> Values:
    """What may be written in several ways, in one."""
    for name in ("methods", "tasks"):
        if not values.get(name):
            raise StudyError(f"{where} has no {name}; give at least one")
    for name in SEVERAL:
        values[name] = _named(values[name], f"{where}: {name}") if values.get(name) else {"": {}}
    values["title"] = str(values.get("title") or values["name"])
    values["recipe"] = dict(_mapping(values.get("recipe") or {}, f"{where}: recipe"))
    values["measures"] = dict(_mapping(values.get("measures") or {}, f"{where}: measures"))
    values["seeds"] = _seeds(values.get("seeds", 3))
    values["shows"] = _shows(values.get("shows") or [{"what": "table"}], where)
    for name in ("remarks", "metrics"):
        values[name] = _texts(values.get(name) or (), f"{where}: {name}")
    return values


def _change(values: Values, name: str, value: Any, names: Sequence[str]) -> None:
    """One `key=value` of the command line."""
    place, dot, rest = name.partition(".")
    if not dot and place in names:
        _change_study(values, place, value)
        return
    task = next((its for its in values["tasks"] if place in (its, its.rpartition("/")[2])), None)
    if dot and task is not None:
        values["tasks"][task][rest] = value
    elif dot and place in values["methods"]:
        values["methods"][place][rest if rest.startswith("settings.") else f"settings.{rest}"] = value
    else:
        _refuse_unknown_field(name, values, names)
        values["recipe"][name] = value
        for its in (*values["tasks"].values(), *values["methods"].values()):
            its.pop(name, None)  # the command line is stronger than the file


def _change_study(values: Values, name: str, value: Any) -> None:
    if name in SEVERAL:
        chosen = [each.strip() for each in value.split(",")] if isinstance(value, str) else value
        its = _named(chosen, name)
        if name == "settings":
            for each in its:
                one_of("settings", each, values[name])
        values[name] = {each: dict(values[name].get(each, {})) | fields_ for each, fields_ in its.items()}
        if values.get("baseline") not in values["methods"]:
            values.pop("baseline", None)
    elif name == "seeds":
        values[name] = _seeds(value)
    elif name in ("metrics", "remarks"):
        values[name] = _texts(value.split(",") if isinstance(value, str) else value, name)
    elif name == "shows":
        values[name] = _shows(value, name)
    elif name in ("recipe", "measures"):
        values[name] = values[name] | _mapping(value, name)
    else:
        values[name] = value


def _refuse_unknown_field(name: str, values: Values, names: Sequence[str]) -> None:
    from stackelberg.nlu.recipe import Recipe
    from stackelberg.nmt.recipe import TranslationRecipe

    known = sorted({f.name for its in (Recipe, TranslationRecipe) for f in fields(its)} - {"seed", "method"})
    place, dot, _ = name.partition(".")
    if place in known and (not dot or place == "settings"):
        return
    if name in ("seed", "method"):
        raise StudyError(f"{name}: a study has several; give {name}s=...")
    if dot:
        raise StudyError(
            f"{name}: {place!r} is no task and no method of this study; "
            f"it has {', '.join((*values['tasks'], *values['methods']))}"
        )
    raise StudyError(f"{name!r} is no name of a study and no field of a recipe{nearest(name, [*names, *known])}")


def _refuse_unknown(values: Values, where: str, names: Sequence[str]) -> None:
    for name in values:
        if name not in names:
            raise StudyError(
                f"{where} has a name that studies do not have, {name!r}; they have {', '.join(names)}"
                f"{nearest(name, names)}"
            )


def _named(value: Any, where: str) -> dict[str, Values]:
    """A list of names, or names with fields."""
    if isinstance(value, str):
        value = [value]
    if isinstance(value, Mapping):
        return {str(name): dict(_mapping(its or {}, f"{where}, {name}")) for name, its in value.items()}
    if not isinstance(value, Sequence) or not all(isinstance(name, str) for name in value):
        raise StudyError(f"{where}: {value!r} should be a list of names, or names with fields of their recipes")
    if len(set(value)) < len(value):
        raise StudyError(f"{where}: {', '.join(value)} must name each once")
    return {name: {} for name in value}


def _seeds(value: Any) -> tuple[int, ...]:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return tuple(range(value))
    if isinstance(value, str):
        value = [int(each) if each.strip().isdecimal() else each for each in value.split(",")]
    if isinstance(value, Sequence) and value and all(type(each) is int and each >= 0 for each in value):
        return tuple(value)
    raise StudyError(f"seeds={value!r} should be how many, such as 5, or which, such as [3, 7, 11]")


def _texts(value: Any, where: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(each, str) for each in value):
        raise StudyError(f"{where}={value!r} should be a list of texts")
    return tuple(value)


def _shows(value: Any, where: str) -> tuple[Any, ...]:
    known = [f.name for f in dataclasses.fields(Show)]
    found = []
    if not isinstance(value, list):
        raise StudyError(f"{where}: shows={value!r} should be a list, such as [{{what: table}}]")
    for each in value:
        its = _mapping(each, f"{where}: shows")
        for name in its:
            one_of(f"{where}: shows", name, known)
        one_of(f"{where}: shows, what", its.get("what"), SHOWN)
        found.append(Show(**its))
    return tuple(found)


def _mapping(value: Any, where: str) -> Values:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise StudyError(f"{where} should be names and values, and is {value!r}")
    return dict(value)


def _locate(its: Values) -> None:
    """Places on this machine by their full paths, so that they are the same from wherever the study goes on."""
    translates = "source" in its and "target" in its
    for name in PATHS:
        value = its.get(name)
        if isinstance(value, str) and not (translates and name in ("train", "dev", "test")) and Path(value).exists():
            its[name] = str(Path(value).resolve())


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
