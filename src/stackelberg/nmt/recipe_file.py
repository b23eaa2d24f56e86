"""Translation recipes as YAML: those that are shipped, a user's own, and changes made on a command line.

The same two sections are particular to files as in understanding's: `forms` (`tuned`, `paper`), and `methods`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stackelberg.errors import SettingError, nearest
from stackelberg.extras import need
from stackelberg.nlu.recipe_file import DEFAULT_FORM, ENDINGS, TRANSLATION, every_recipe, override, parsed, settings_of

if TYPE_CHECKING:
    from stackelberg.nmt.recipe import TranslationRecipe


def is_translation(source: str | Path | None) -> bool:
    """Whether a recipe, by its name or its file, is one of translation."""
    if source is None:
        return False
    known, name = shipped(), str(source)
    if name in known:
        return True
    if not (isinstance(source, Path) or name.endswith(ENDINGS) or Path(name).is_file()):
        return False
    path = Path(source)
    return path.is_file() and {"source", "target"} <= set(parsed(path))


def read(source: str | Path | None, overrides: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's fields from all three; see `TranslationRecipe.load`."""
    from stackelberg.nmt.recipe import refuse_unknown

    asked = {name: value for name, value in given.items() if value is not None}
    refuse_unknown(asked, "a translation recipe")
    nested, wanted = settings_of(asked, "settings"), dict(asked)
    for name, value in map(override, overrides):
        place, _, setting = name.partition(".")
        refuse_unknown({place: value}, "a translation recipe")
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
    for name in ("source", "target"):
        if name not in values:
            raise SettingError(f"{where} does not say its {name} language; give source and target, such as en and de")
    methods = settings_of(values, "methods")
    its = methods.get(str(values.get("method", "salt")), {})
    if not isinstance(its, Mapping):
        raise SettingError(f"{where}: methods.{values.get('method', 'salt')}={its!r} should be names and values")
    return {**values, "settings": {**its, **settings_of(found, "settings"), **nested}}


def written(recipe: TranslationRecipe, *, located: bool = True) -> str:
    """A recipe as YAML: every field that is not what it would be anyway.

    Args:
        recipe: to write.
        located: folders by their full paths, so that the file means the same wherever it is read from.
    """
    yaml = need("yaml")
    deciding = recipe.deciding() if located else {}
    values: dict[str, Any] = {}
    for f in fields(recipe):
        value = deciding.get(f.name, getattr(recipe, f.name))
        usual = None if f.default is MISSING else f.default
        always = f.name in ("source", "target", "method", "model", "seed")
        if f.name in ("grid", "gaps", "methods", "settings") or (value == usual and not always):
            continue
        values[f.name] = list(value) if isinstance(value, tuple) else value
    values["settings"] = {k: list(v) if isinstance(v, tuple) else v for k, v in recipe.settings.items()}
    comments = "".join(f"# not said by the recipe's source: {gap}\n" for gap in recipe.gaps)
    return comments + str(yaml.safe_dump(values, sort_keys=False, allow_unicode=True))


def shipped() -> dict[str, Path]:
    """The package's recipes of translation: name to file."""
    return {name: path for name, path in every_recipe().items() if name.startswith(TRANSLATION)}


def _found(source: str | Path | None, form: Any) -> tuple[str, dict[str, Any]]:
    """The fields of a file in one of its forms, and what to call the file."""
    from stackelberg.nmt.recipe import refuse_unknown

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
    raise SettingError(
        f"recipe {name!r} is no file and no translation recipe of ours; they are {', '.join(known)}"
        f"{nearest(name, known)}"
    )
