"""Optional packages, imported where they are used."""

from __future__ import annotations

import importlib
from typing import Any

from stackelberg.errors import needs

EXTRAS = {
    "accelerate": "nlu",
    "datasets": "hf",
    "jinja2": "report",
    "markupsafe": "report",
    "matplotlib": "report",
    "numpy": "nlu",
    "ray": "cluster",
    "scipy": "nlu",
    "sklearn": "nlu",
    "transformers": "hf",
    "yaml": "nlu",
}


def need(module: str) -> Any:
    """The module of that (dotted) name, or an error that says how to install the package it is in."""
    package = module.partition(".")[0]
    with needs(package, extra=EXTRAS[package]):
        importlib.import_module(package)
        return importlib.import_module(module)
