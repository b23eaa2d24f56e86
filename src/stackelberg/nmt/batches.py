"""Micro-batches as tensors, made while the step before them runs."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from stackelberg.game.task import IGNORED
from stackelberg.nmt.cache import Cache, Ints

T = TypeVar("T")
R = TypeVar("R")

AHEAD = 2  # steps made before they are needed


def tensors(cache: Cache, rows: Ints, source: int, target: int, pad: int) -> dict[str, Tensor]:
    """What a model is called with: source ids and their mask, labels with −100 where there is no target.

    Args:
        cache: the corpus.
        rows: places of the sentences.
        source: length to fill sources up to.
        target: length to fill labels up to.
        pad: the id to fill sources up with.
    """
    ids, real = cache.padded("source", rows, source, pad)
    labels, _ = cache.padded("target", rows, target, IGNORED)
    return {
        "input_ids": torch.from_numpy(ids),
        "attention_mask": torch.from_numpy(real.astype(np.int64)),
        "labels": torch.from_numpy(labels),
    }


def of_sentences(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], pad: int) -> dict[str, Tensor]:
    """The same of a few sentences at hand, as long as their longest."""
    ids = filled(sources, pad)
    return {
        "input_ids": ids,
        "attention_mask": filled([[1] * len(each) for each in sources], 0),
        "labels": filled(targets, IGNORED),
    }


def filled(sentences: Sequence[Sequence[int]], pad: int) -> Tensor:
    """Ids of unequal sentences as one tensor, (sentences, longest)."""
    longest = max(map(len, sentences))
    return torch.tensor([[*each, *[pad] * (longest - len(each))] for each in sentences])


def on(device: torch.device, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """On the device, without waiting for it."""
    if device.type == "cpu":
        return batch
    return {name: x.pin_memory().to(device, non_blocking=True) for name, x in batch.items()}


def ahead(items: Iterator[T], make: Callable[[T], R]) -> Generator[R]:
    """`make` of each item, in order, by a thread that is a little ahead."""
    with ThreadPoolExecutor(1) as thread:
        coming = [thread.submit(make, item) for item in islice(items, AHEAD)]
        try:
            while coming:
                made = coming.pop(0).result()
                coming += [thread.submit(make, item) for item in islice(items, 1)]
                yield made
        finally:
            for each in coming:
                each.cancel()
