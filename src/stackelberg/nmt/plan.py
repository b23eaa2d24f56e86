"""Which sentences are played when: a function of the seed and the step alone, so that resuming needs no state.

Each shape has its own endless stream of its sentences, shuffled anew for every pass over them, from which whole batches
are cut: every batch of a shape has the same size. An epoch holds the batches whose turn it is, in random order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from stackelberg.nmt.cache import Cache, Ints
from stackelberg.nmt.shapes import Shape, shapes_of


@dataclass(frozen=True)
class MicroBatch:
    """Sentences that the model sees at once: their places in the corpus."""

    rows: Ints
    shape: Shape


@dataclass(frozen=True)
class Position:
    """Where the next step begins: an epoch, and how many of its micro-batches were played."""

    epoch: int = 0
    played: int = 0


class Plan:
    """All steps of a training.

    Args:
        cache: the corpus.
        seed: of every shuffle.
        batch_tokens: real target tokens of a step, at least; micro-batches are gathered until they have as many.
        max_tokens: of a micro-batch, padding included, on its longer side.
        least: micro-batches that a step has at any rate, one for every process.
        most: how many shapes there may be.
        step: that lengths are padded to multiples of.
    """

    def __init__(
        self,
        cache: Cache,
        *,
        seed: int,
        batch_tokens: int,
        max_tokens: int,
        least: int = 1,
        most: int = 20,
        step: int = 1,
    ) -> None:
        """Choose the shapes."""
        self.seed, self.batch_tokens, self.least = seed, batch_tokens, least
        source, target = cache.lengths("source"), cache.lengths("target")
        self.shapes, number = shapes_of(source, target, max_tokens=max_tokens, most=most, step=step)
        order = np.argsort(number, kind="stable").astype(np.int32)
        self._members = np.split(order, np.searchsorted(number[order], np.arange(1, len(self.shapes))))
        self._lengths = source, target
        self.padding = 1 - (int(source.sum()) + int(target.sum())) / sum(
            len(rows) * (shape.source + shape.target) for rows, shape in zip(self._members, self.shapes, strict=True)
        )
        self._shuffled = lru_cache(maxsize=2 * len(self.shapes))(self._shuffle)

    def steps(self, position: Position = Position()) -> Iterator[tuple[list[MicroBatch], Position]]:
        """From a position on, without end: each step's micro-batches, and where the next one begins."""
        gathered: list[MicroBatch] = []
        tokens, epoch, played = 0, position.epoch, position.played
        while True:
            order = self._epoch(epoch)
            for place in range(played, len(order)):
                batch = self._batch(*order[place])
                gathered.append(batch)
                tokens += self.target_tokens(batch)
                if tokens >= self.batch_tokens and len(gathered) >= self.least:
                    yield gathered, Position(epoch, place + 1)
                    gathered, tokens = [], 0
            epoch, played = epoch + 1, 0

    def target_tokens(self, batch: MicroBatch) -> int:
        """Real target tokens, which losses are means over."""
        return int(self._lengths[1][batch.rows].sum())

    def tokens(self, batch: MicroBatch) -> int:
        """Real tokens of both sides."""
        return int(self._lengths[0][batch.rows].sum()) + self.target_tokens(batch)

    def _epoch(self, epoch: int) -> Ints:
        """(shape, number of its batch) for each of an epoch's batches."""
        found = []
        for number, (rows, shape) in enumerate(zip(self._members, self.shapes, strict=True)):
            first, last = epoch * len(rows) // shape.rows, (epoch + 1) * len(rows) // shape.rows
            found.append(np.stack([np.full(last - first, number), np.arange(first, last)], 1))
        order: Ints = np.random.default_rng([self.seed, epoch]).permutation(np.concatenate(found))
        return order

    def _batch(self, number: int, place: int) -> MicroBatch:
        rows, shape = self._members[number], self.shapes[number]
        first, parts = int(place) * shape.rows, []
        last = first + shape.rows
        while first < last:  # it may begin in one pass over the shape's sentences and end in the next
            around, within = divmod(first, len(rows))
            parts.append(self._shuffled(int(number), around)[within : within + last - first])
            first += len(parts[-1])
        return MicroBatch(np.concatenate(parts), shape)

    def _shuffle(self, number: int, around: int) -> Ints:
        shuffled: Ints = np.random.default_rng([self.seed, number, around]).permutation(self._members[number])
        return shuffled
