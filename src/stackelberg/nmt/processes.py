"""The processes of one training, as torchrun starts them; a single one without it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

WAIT = timedelta(hours=6)  # for the first process, which prepares corpora and translates the dev set


@dataclass(frozen=True)
class Processes:
    """How many there are, which this one is, and its device."""

    rank: int
    count: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this one writes and talks."""
        return self.rank == 0

    def wait(self) -> None:
        """For all."""
        if self.count > 1:
            dist.barrier()

    def agree(self, value: Any) -> Any:
        """The first process's value, a few numbers, in all of them."""
        if self.count == 1:
            return value
        held = [value]
        dist.broadcast_object_list(held, src=0, device=self.device)
        return held[0]


@contextmanager
def processes() -> Iterator[Processes]:
    """Joined with the others while inside."""
    count, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    gpu = torch.cuda.is_available()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    joined = count > 1 and not dist.is_initialized()
    if joined:
        dist.init_process_group("nccl" if gpu else "gloo", timeout=WAIT)
    try:
        yield Processes(rank, count, device)
    finally:
        if joined:
            dist.destroy_process_group()
