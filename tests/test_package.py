"""The package as it is imported: lazy, complete, and its examples true."""

from __future__ import annotations

import ast
import doctest
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import stackelberg

PACKAGE = Path(stackelberg.__file__).parent


def test_importing_it_does_not_import_torch() -> None:
    """So that a command line can answer `--help` at once."""
    code = "import sys, stackelberg; dir(stackelberg); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_is_there() -> None:
    """And no other is."""
    for name in stackelberg.__all__:
        assert getattr(stackelberg, name) is not None
    assert stackelberg.__version__
    with pytest.raises(AttributeError, match="salty"):
        _ = stackelberg.salty


@pytest.mark.parametrize("module", ["methods", "methods.salt", "game.task"])
def test_examples_in_docstrings_run(module: str) -> None:
    """Doctest."""
    outcome = doctest.testmod(importlib.import_module(f"stackelberg.{module}"))
    assert outcome.attempted > 0 and outcome.failed == 0


# Each may import what stands before it, and itself.
LAYERS = [
    {"errors"}, {"storage", "decoding", "extras"}, {"game"}, {"methods"}, {"adapters"}, {"runs"}, {"nlu"}, {"nmt"},
    {"analysis", "doctor"}, {"studies"}, {"reports"}, {"demo"}, {"cli"}, {"__main__", "__init__"},
]  # fmt: skip
DEPTH = {name: depth for depth, names in enumerate(LAYERS) for name in names}


def imported(file: Path) -> Iterator[str]:
    """The packages of ours that a file imports, anywhere in it."""
    here = ("stackelberg", *file.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else ()
            path = [*base, *(node.module or "").split(".")] if node.module else list(base)
            names = [".".join([*path, alias.name]) for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            first, _, rest = name.partition(".")
            if first == "stackelberg" and rest.split(".")[0] in DEPTH:
                yield rest.split(".")[0]


def test_imports_point_one_way() -> None:
    for file in PACKAGE.rglob("*.py"):
        owner = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for name in imported(file):
            assert name == owner or DEPTH[name] < DEPTH[owner], f"{file.name} of {owner} imports {name}"


@pytest.mark.parametrize(
    ("package", "code", "extra"),
    [
        ("typer", "from stackelberg.__main__ import main; main()", "cli"),
        ("transformers", "from stackelberg.__main__ import main; import stackelberg.adapters.trainer", "hf"),
        ("lightning", "import stackelberg; stackelberg.GameCallback", "lightning"),
    ],
)
def test_a_missing_extra_is_named_with_the_command_that_installs_it(package: str, code: str, extra: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.modules[{package!r}] = None; {code}"], capture_output=True, text=True
    )
    assert done.returncode != 0
    assert f"needs {package}, which is not installed: pip install 'stackelberg[{extra}]'" in done.stderr
    if package == "typer":  # the command says it and nothing else
        assert done.returncode == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
