"""The wheel: it has every file of the package, and works where there is nothing else. Needs a package registry."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.soak
ROOT = Path(__file__).parent.parent
PINS = ("-c", ROOT / "constraints.txt")


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, words)), capture_output=True, text=True)


def pip(python: object, *words: object) -> None:
    done = run(python, "-m", "pip", "--disable-pip-version-check", *words)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip(sys.executable, "wheel", "--no-deps", "-w", folder, "--build-constraint", ROOT / "constraints.txt", ROOT)
    (made,) = folder.glob("stackelberg-*.whl")
    return made


def test_it_has_every_file_of_the_package(wheel: Path) -> None:
    package = ROOT / "src" / "stackelberg"
    there = {path.relative_to(package.parent) for path in package.rglob("*") if path.is_file()}
    ours = {str(path) for path in there if "__pycache__" not in path.parts}
    with zipfile.ZipFile(wheel) as packed:
        assert {name for name in packed.namelist() if ".dist-info/" not in name} == ours
    assert {"stackelberg/py.typed", "stackelberg/runs/__init__.py", "stackelberg/recipes/glue/rte.yaml"} <= ours


def test_it_works_where_there_is_nothing_else(wheel: Path, tmp_path: Path) -> None:
    assert run(sys.executable, "-m", "venv", tmp_path / "clean").returncode == 0
    bin = tmp_path / "clean" / "bin"
    pip(bin / "python", "install", *PINS, wheel)
    played = run(bin / "python", ROOT / "examples" / "custom_module.py")
    assert played.returncode == 0 and "epoch 5" in played.stdout, played.stderr
    lacks = run(bin / "stackelberg", "train", "rte")
    assert (lacks.returncode, lacks.stderr) == (
        2,
        "error: this part of stackelberg needs typer, which is not installed: pip install 'stackelberg[cli]'\n",
    )
    pip(bin / "python", "install", *PINS, f"{wheel}[cli]")
    assert run(bin / "stackelberg", "--version").stdout.strip() in wheel.name
    assert "compare" in run(bin / "stackelberg", "--help").stdout
    lacks = run(bin / "stackelberg", "train", "rte", "--quiet")
    assert lacks.returncode == 2 and lacks.stderr.endswith("pip install 'stackelberg[nlu]'\n"), lacks.stderr
    checked = run(bin / "stackelberg", "doctor", "--json")
    assert checked.returncode in (0, 1) and '"salt"' in checked.stdout, checked.stderr
