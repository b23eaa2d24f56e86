"""What a run was made with: versions and hardware."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

PACKAGES = ("stackelberg", "torch", "transformers", "accelerate", "tokenizers", "numpy", "scipy", "scikit-learn")


def provenance(*packages: str) -> dict[str, Any]:
    """For versions.json: what every run is made with, and `packages` of this one."""
    versions = {}
    for package in (*PACKAGES, *packages):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    gpu = torch.cuda.is_available()
    return {
        **versions,
        "python": platform.python_version(),
        "system": platform.platform(),
        "device": torch.cuda.get_device_name(0) if gpu else f"CPU, {_processor()}",
        "cuda": torch.version.cuda if gpu else None,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
