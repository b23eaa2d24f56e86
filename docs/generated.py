"""What no hand keeps: the methods, from their registry, the reference, from the public names, pages not listed."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import stackelberg
from stackelberg import METHODS, Game

LEFT_OUT = "left out"  # of a default that is None: the docstring says what then


def methods_page(methods: Mapping[str, type[Game]] = METHODS) -> str:
    """A table of all methods, then each with its settings."""
    rows = [
        f"| [`{name}`](#method-{name}) | `{cls.__name__}` | {_first(cls)} |" for name, cls in sorted(methods.items())
    ]
    table = "\n".join(["| name | class | |", "|---|---|---|", *rows])
    return "\n\n".join([table, *(_method(name, cls) for name, cls in sorted(methods.items()))])


def reference_page() -> str:
    """Every public name that is not a method, by what it is."""
    public = {name: getattr(stackelberg, name) for name in stackelberg.__all__}
    methods = list(METHODS.values())
    rest = {name: thing for name, thing in public.items() if thing not in methods}
    sections: dict[str, list[str]] = {"Classes": [], "Functions": [], "Errors": [], "Data": []}
    for name, thing in rest.items():
        if inspect.isclass(thing) and issubclass(thing, Exception):
            sections["Errors"].append(f".. autoexception:: stackelberg.{name}")
        elif inspect.isclass(thing):
            sections["Classes"].append(f".. autoclass:: stackelberg.{name}\n   :members:")
        elif callable(thing):
            sections["Functions"].append(f".. autofunction:: stackelberg.{name}")
        else:
            sections["Data"].append(f".. py:data:: stackelberg.{name}\n\n   {DATA[name]}")
    return "\n\n".join(
        f"## {title}\n\n```{{eval-rst}}\n" + "\n\n".join(entries) + "\n```" for title, entries in sections.items()
    )


def other_pages() -> str:
    """Those that the index does not name yet: they come under the how-to pages."""
    folder = Path(__file__).parent
    named = (folder / "index.md").read_text(encoding="utf-8").splitlines()
    return "\n".join(sorted(page.stem for page in folder.glob("*.md") if page.stem not in [*named, "index"]))


DATA = {"METHODS": "Every method that has a name, as a mapping from it to the class."}

GENERATED: dict[str, Callable[[], str]] = {
    "index": other_pages,
    "methods": methods_page,
    "reference": reference_page,
}


def _method(name: str, cls: type[Game]) -> str:
    described, settings = _parts(cls)
    rows = [
        f"| `{field.name}` | {_default(field)} | {_cell(settings.get(field.name, ''))} |"
        for field in dataclasses.fields(cls)
        if field.init
    ]
    table = "\n".join(["| setting | default | |", "|---|---|---|", *rows])
    return f"(method-{name})=\n## {name}: `{cls.__name__}`\n\n{described}\n\n{table}"


def _parts(cls: type[Game]) -> tuple[str, dict[str, str]]:
    """A docstring without its example, and what it says of each setting."""
    text = inspect.cleandoc(cls.__doc__ or "")
    described, _, settings = text.partition("\nArgs:\n")
    described = described.partition("\nExample:\n")[0].rstrip()
    entries = re.split(r"\n(?= {4}\w+: )", settings.rstrip())
    pairs = (entry.partition(":")[::2] for entry in entries if entry)
    return described, {name.strip(): meaning.strip() for name, meaning in pairs}


def _first(cls: type[Game]) -> str:
    """The first paragraph, which is the objective or what it is beside another's."""
    return _cell(_parts(cls)[0].partition("\n\n")[0])


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return f"`{field.default_factory()!r}`"
    return LEFT_OUT if field.default is None else f"`{field.default!r}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
