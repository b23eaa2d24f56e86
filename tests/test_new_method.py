"""A new method takes one file: it plays, is compared, documented and tested with no other change."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import stackelberg
import tiny_runs
import zoo

TESTS = Path(__file__).parent
TOY = TESTS / "toy_method.py"
BORROWED = """from stackelberg.methods.plain import Plain


class Borrowed(Plain):
    \"\"\"F = L, from a package of somebody else's.\"\"\"

    name = "borrowed"
"""

# What the project's tests and pages make of it, and what a user does.
ALL = """
import sys
import pytest
cells = "toy and (test_method_plays or test_sample)"
if pytest.main(["-q", "-p", "no:cacheprovider", "-k", cells, {matrix!r}]):
    sys.exit("the matrix failed")
from stackelberg import METHODS, cli
assert METHODS["toy"].__module__ == "stackelberg.methods.toy", METHODS["toy"].__module__
sys.path.insert(0, {docs!r})
import generated
page = generated.methods_page()
assert "| [`toy`](#method-toy) | `Toy` | F = L + α L(x + δ), with δ one signed step on the label loss. |" in page
assert "## borrowed: `Borrowed`" in page
sys.argv = {compare!r}
cli.main()
"""


def test_one_file_is_enough(tmp_path: Path) -> None:
    assert len(TOY.read_text(encoding="utf-8").splitlines()) < 40
    package = tmp_path / "installed" / "stackelberg"
    shutil.copytree(Path(stackelberg.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(TOY, package / "methods" / "toy.py")
    theirs = tmp_path / "installed"
    (theirs / "borrowing.py").write_text(BORROWED)
    about = theirs / "borrowing-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: borrowing\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[stackelberg.methods]\nthem = borrowing\n")

    out = tmp_path / "compared"
    compare = ["stackelberg", "compare", "max_steps=1", "max_length=16", "--methods", "plain,toy,borrowed", "--quiet"]
    compare += ["--task", "sst-2", "--data", tiny_runs.data(), "--model", tiny_runs.model()]
    compare += ["--seeds", "1", "--out", str(out)]
    script = ALL.format(docs=str(TESTS.parent / "docs"), compare=compare, matrix=str(TESTS / "test_matrix.py"))
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(theirs)},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    table = (out / "comparison.md").read_text(encoding="utf-8")
    assert "| toy |" in table and "| borrowed |" in table
    assert int(re.search(r"^(\d+) passed", done.stdout, re.MULTILINE)[1]) >= len(zoo.ARCHS)
