"""Optional packages, imported where they are used; a missing one is a sentence with the command that installs it."""

from __future__ import annotations

import importlib
from typing import Any

from stackelberg.errors import MissingPackageError

EXTRAS = {
    "accelerate": "nlu",
    "datasets": "hf",
    "matplotlib": "report",
    "numpy": "nlu",
    "scipy": "nlu",
    "sklearn": "nlu",
    "torchmetrics": "nlu",
    "transformers": "hf",
    "yaml": "nlu",
}


def need(module: str) -> Any:
    """The module of that (dotted) name, or an error that says how to install the package it is in."""
    package = module.partition(".")[0]
    try:
        importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package or package not in EXTRAS:  # a fault inside a package that is installed
            raise
        raise missing(package) from error
    return importlib.import_module(module)


def missing(package: str) -> MissingPackageError:
    """The error for a package that is not installed."""
    return MissingPackageError(
        f"{package} is not installed, and this needs it; run: pip install 'stackelberg[{EXTRAS[package]}]'",
        name=package,
    )
