"""Each optimizer step's examples several times in a row, for methods that replay their batches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import RandomSampler, Sampler

from ..errors import needs

with needs("accelerate", extra="hf"):
    from accelerate.data_loader import SeedableRandomSampler


class ReplayedSampler(Sampler[int]):
    """`sampler`'s indices in blocks of one step, each block `times` times.

    The last block of an epoch is played once if it is not full: repeated, it would be cut into other batches.
    """

    def __init__(self, sampler: Sampler[int], block: int, times: int, seed: int) -> None:
        """`seed` is that of the order, the same on all ranks; a random order changes with the epoch."""
        if type(sampler) is RandomSampler:
            sampler = SeedableRandomSampler(sampler.data_source, data_seed=seed)
        self.sampler: Any = sampler
        self.block = block
        self.times = times

    def __len__(self) -> int:
        """Indices in an epoch."""
        whole, rest = divmod(len(self.sampler), self.block)
        return whole * self.block * self.times + rest

    def __iter__(self) -> Iterator[int]:
        """One epoch."""
        indices = iter(self.sampler)
        while block := list(islice(indices, self.block)):
            for _ in range(self.times if len(block) == self.block else 1):
                yield from block

    def set_epoch(self, epoch: int) -> None:
        """For the order of that epoch."""
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)
