"""Is everything here that the library needs: versions, extras, devices, a compiler?"""

from __future__ import annotations

import os
import platform
import shutil
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import torch
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from .finding import Finding, Level
from .memory import GIB, available

PACKAGE = "stackelberg"


def versions() -> Iterator[Finding]:
    """Python and the packages of the core, against the ranges of the package's own metadata."""
    supported = SpecifierSet(metadata.metadata(PACKAGE)["Requires-Python"])
    mine = platform.python_version()
    fits = supported.contains(mine, prereleases=True)
    yield Finding("ok" if fits else "failure", "python", _against("Python", mine, supported, fits), {"version": mine})
    for requirement in _requirements(""):
        yield _installed(requirement, missing="failure")
    transformers = next((r for r in _requirements("hf") if r.name == "transformers"), None)
    if transformers is not None:
        yield _installed(transformers, missing="note")


def extras() -> Iterator[Finding]:
    """Which extras are complete, and the command for those that are not."""
    for extra in sorted(metadata.metadata(PACKAGE).get_all("Provides-Extra") or ()):
        wanted = _requirements(extra)
        found = {r.name: _version(r.name) for r in wanted}
        absent = [name for name, version in found.items() if version is None]
        old = [str(r) for r in wanted if (v := found[r.name]) and not r.specifier.contains(v, prereleases=True)]
        command = f"pip install '{PACKAGE}[{extra}]'"
        facts = {"packages": found, "install": command}
        if old:
            says = f"extra {extra}: {', '.join(old)} is asked for, another version is installed: {command}"
            yield Finding("warning", f"extra.{extra}", says, facts)
        elif absent:
            yield Finding("note", f"extra.{extra}", f"extra {extra} lacks {', '.join(absent)}: {command}", facts)
        else:
            listed = ", ".join(f"{name} {version}" for name, version in found.items())
            yield Finding("ok", f"extra.{extra}", f"extra {extra}: {listed}", facts)


def devices() -> Iterator[Finding]:
    """Each GPU with its memory and number formats, or the CPU."""
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        half, tf32 = torch.cuda.is_bf16_supported(), properties.major >= 8
        says = (
            f"GPU {index}: {properties.name}, {properties.total_memory / GIB:.0f} GiB, bfloat16 "
            f"{'yes' if half else 'no'}, TF32 {'yes' if tf32 else 'no'}"
            f"{', switched on' if tf32 and torch.backends.cuda.matmul.allow_tf32 else ''}"
        )
        facts = {"memory": properties.total_memory, "bfloat16": half, "tf32": tf32}
        yield Finding("ok", f"gpu.{index}", says, facts)
    memory = available(torch.device("cpu"))
    says = (
        f"CPU: {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}, "
        f"{memory / GIB:.0f} GiB of memory free"
    )
    yield Finding("ok", "cpu", says, {"threads": torch.get_num_threads(), "memory": memory})
    if not torch.cuda.is_available():
        yield Finding("note", "gpu", "there is no GPU that torch can use; every method plays on the CPU, eagerly")


def compiler() -> Iterator[Finding]:
    """What mode='compiled' and mode='graph' (and 'auto' on a GPU) build their kernels with."""
    on_gpu = torch.cuda.is_available()
    names = [os.environ.get("CXX", ""), "g++", "clang++", "c++"]
    path = next((found for name in names if name and (found := shutil.which(name))), None)
    missing = ["a C++ compiler (on Debian: apt-get install g++)"] if path is None else []
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        missing.append("Python's headers (on Debian: apt-get install python3-dev)")
    if on_gpu and find_spec("triton") is None:
        missing.append("triton (it comes with torch's CUDA builds)")
    if missing:
        level: Level = "warning" if on_gpu else "note"
        says = f"torch.compile lacks {' and '.join(missing)}; until then play with mode='eager'"
        yield Finding(level, "compiler", says, {"missing": missing})
    else:
        yield Finding("ok", "compiler", f"torch.compile finds {path}", {"path": path})


def _requirements(extra: str) -> list[Requirement]:
    """Those of one extra, or of the core."""
    every = [Requirement(line) for line in metadata.requires(PACKAGE) or ()]
    if not extra:
        return [r for r in every if r.marker is None or r.marker.evaluate({"extra": ""})]
    core = {str(r) for r in _requirements("")}
    return [r for r in every if str(r) not in core and r.marker is not None and r.marker.evaluate({"extra": extra})]


def _installed(requirement: Requirement, missing: Level) -> Finding:
    version = _version(requirement.name)
    if version is None:
        return Finding(missing, requirement.name, f"{requirement.name} is not installed", {"version": None})
    fits = requirement.specifier.contains(version, prereleases=True)
    says = _against(requirement.name, version, requirement.specifier, fits)
    return Finding("ok" if fits else "failure", requirement.name, says, {"version": version})


def _against(name: str, version: str, supported: SpecifierSet, fits: bool) -> str:
    if fits:
        return f"{name} {version} (supported: {supported})"
    fix = "install another Python" if name == "Python" else f"pip install -U '{name}{supported}'"
    return f"{name} {version} is outside the supported range {supported}: {fix}"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
