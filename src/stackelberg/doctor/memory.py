"""How much memory there is, and how much a computation asks for at its peak."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from weakref import finalize

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

GIB = 2**30


def available(device: torch.device) -> int:
    """Bytes that can still be had on a device, within a container's own limit."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    info = Path("/proc/meminfo")
    if not info.exists():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    lines = dict(line.split(":", 1) for line in info.read_text().splitlines())
    free = int(lines["MemAvailable"].split()[0]) * 1024
    group = Path("/sys/fs/cgroup")
    limit = group / "memory.max"
    if limit.exists() and (most := limit.read_text().strip()).isdigit():
        free = min(free, int(most) - int((group / "memory.current").read_text()))
    return max(free, 0)


def peak(run: Callable[[], object], held: Iterable[Tensor], device: torch.device) -> int:
    """Bytes that `run` asks for at its worst moment, beside `held`, which is there already."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        torch.cuda.synchronize(device)
        most: int = torch.cuda.max_memory_allocated(device)
        return most - before
    counted = _Counted(held)
    with counted:
        run()
    return counted.most


class _Counted(TorchDispatchMode):
    """Counts the storages that operations make, from when they are made until nothing holds them."""

    def __init__(self, held: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self._known = {x.untyped_storage()._cdata for x in held}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        for x in tree_leaves(found):
            if isinstance(x, Tensor):
                self._count(x.untyped_storage())
        return found

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.now += size
        self.most = max(self.most, self.now)
        finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size
