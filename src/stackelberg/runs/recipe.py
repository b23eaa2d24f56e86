"""What the recipes of understanding and of translation have in common: how they are checked, compared and written."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from stackelberg.errors import SettingError, nearest
from stackelberg.game.settings.checks import number, whole
from stackelberg.runs.recipe_file import changed, override, written

LARGEST_SEED = 2**32 - 1  # numpy's
MAPPINGS = ("settings", "grid", "methods")
ALWAYS = ("method", "model", "seed")  # written even where they are what they would be anyway
NEVER = ("grid", "gaps", "methods", "settings")  # the last in its own way


class BaseRecipe:
    """The base of both, which are frozen dataclasses with fields of their own beside those named here."""

    NOUN: ClassVar[str]
    ABOUT: ClassVar[tuple[str, ...]]  # fields that decide nothing: where the values came from
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    method: str
    settings: Mapping[str, Any]
    methods: Mapping[str, Mapping[str, Any]]
    gaps: tuple[str, ...]
    seed: int
    betas: tuple[float, float]

    @classmethod
    @abstractmethod
    def load(cls, recipe: str | Path | None = None, overrides: Sequence[str] = (), /, **fields: Any) -> Self:
        """A recipe from a file or a shipped one, changed."""

    def replace(self, **changes: Any) -> Self:
        """The recipe with other values. Another `method` comes with the settings that the recipe's file has for it."""
        if changes.get("method", self.method) != self.method and "settings" not in changes:
            changes["settings"] = self.methods.get(changes["method"], {})
        self._refuse_unknown(changes, "the recipe")
        return dataclasses.replace(self, **changes)

    def key(self) -> str:
        """A short hash of everything that decides the result: equal recipes, equal keys."""
        said = json.dumps({name: _plain(value) for name, value in self.deciding().items()}, sort_keys=True, default=str)
        return hashlib.sha256(said.encode()).hexdigest()[:12]

    def deciding(self) -> dict[str, Any]:
        """Every field that decides the result; files and folders by where they really are."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in self.ABOUT}

    def difference(self, other: Self) -> str:
        """What decides differently in another recipe, for an error's sentence."""
        ours, theirs = self.deciding(), other.deciding()
        names = [name for name in ours if _plain(ours[name]) != _plain(theirs[name])]
        return ", ".join(f"{name} is {theirs[name]!r} there and {ours[name]!r} here" for name in names)

    def to_yaml(self, *, located: bool = True) -> str:
        """As a file that `load` reads: every field that is not what it would be anyway.

        Args:
            located: files and folders by their full paths, so that the file means the same wherever it is read from.
        """
        values = {f.name: getattr(self, f.name) for f in fields(self)} | (self.deciding() if located else {})
        told = [
            f.name for f in fields(self) if f.name not in NEVER and (f.name in ALWAYS or values[f.name] != f.default)
        ]
        return written({**{name: values[name] for name in told}, "settings": self.settings}, self.gaps)

    @classmethod
    def _changed(
        cls, found: tuple[str, dict[str, Any]], overrides: Sequence[str], given: Mapping[str, Any]
    ) -> dict[str, Any]:
        asked = {name: value for name, value in given.items() if value is not None}
        said = [override(each) for each in overrides]
        cls._refuse_unknown([*asked, *(name.partition(".")[0] for name, _ in said)], f"a {cls.NOUN}")
        return changed(found, asked, said, cls._refuse_unknown)

    @classmethod
    def _refuse_unknown(cls, names: Iterable[str], where: str) -> None:
        """Refuse what is no field, suggesting the nearest or saying that it is the method's."""
        known = [f.name for f in fields(cls)]
        for name in names:
            if name not in known:
                meant = _meant(name, known) or f"; a {cls.NOUN} has {', '.join(known)}"
                raise SettingError(f"{where} has no field {name!r}{meant}")

    def _check_mappings(self) -> None:
        for name in MAPPINGS:
            value = getattr(self, name)
            if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
                raise SettingError(f"{name}={value!r} should be names and values, such as {{weight: 2.0}}")
            object.__setattr__(self, name, dict(value))

    def _check_seed_and_betas(self) -> None:
        whole("seed", self.seed, 0)
        number("seed", self.seed, most=LARGEST_SEED)
        betas: Any = self.betas
        if isinstance(betas, str) or not isinstance(betas, Sequence) or len(betas) != 2:
            raise SettingError(f"betas={betas!r} should be two numbers, such as {list(type(self).betas)}")
        for place, beta in enumerate(betas):
            number(f"betas[{place}]", beta, least=0, most=0.999999)
        object.__setattr__(self, "betas", (float(betas[0]), float(betas[1])))

    def _make_floats(self) -> None:
        """Numbers that were checked, 1 and 1.0 alike."""
        for f in fields(self):
            if f.type in ("float", "float | None") and getattr(self, f.name) is not None:
                object.__setattr__(self, f.name, float(getattr(self, f.name)))

    def _check_method(self) -> None:
        from stackelberg.methods import create  # last, since it is torch that takes its time

        if "task" in self.settings:
            raise SettingError("settings.task is for models outside a recipe; leave it out")
        create(self.method, **self.settings)


def _meant(name: str, known: Sequence[str]) -> str:
    from stackelberg.methods import METHODS, SYMBOLS

    its = [method for method, cls in METHODS.items() for f in fields(cls) if f.init and f.name == name]
    if its or name in SYMBOLS:
        return f" (a setting of the method goes into settings: settings.{SYMBOLS.get(name, name)})"
    return nearest(name, known)


def _plain(value: Any) -> Any:
    """One way to write each value: 1 and 1.0 are one number, a tuple is a list."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
