"""How the documentation is built: `make docs`, with warnings as errors."""

from __future__ import annotations

import sys
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from generated import GENERATED

project = "stackelberg"
author = "The stackelberg authors"
copyright = author
version = release = version_of("stackelberg")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
exclude_patterns = ["Thumbs.db", ".DS_Store"]
default_role = "code"  # docstrings write `name`

myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "separated"
python_use_unqualified_type_names = True

html_theme = "pydata_sphinx_theme"
html_title = "stackelberg"
html_show_sourcelink = False
html_theme_options = {"show_nav_level": 2, "show_toc_level": 2, "secondary_sidebar_items": ["page-toc"]}


def setup(app: Any) -> None:
    """Fill in what is generated: a line `<!-- generated -->` in a page stands for it."""

    def fill(app: Any, page: str, source: list[str]) -> None:
        if page in GENERATED:
            source[0] = source[0].replace("<!-- generated -->", GENERATED[page]())

    def whole(app: Any, what: str, name: str, thing: object, options: Any, lines: list[str]) -> None:
        if what == "property" and lines:  # napoleon takes what stands before a colon for a type
            lines[0] = lines[0].replace(": ", " – ")

    app.connect("source-read", fill)
    app.connect("autodoc-process-docstring", whole, priority=400)
    app.connect("env-get-outdated", lambda app, env, added, changed, removed: list(GENERATED))
