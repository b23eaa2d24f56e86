"""The few shapes that all batches have, chosen for a corpus so that as little of them as possible is padding.

Few, because every shape is one captured CUDA graph. A shape is a rectangle of (source, target) lengths; it is cut in
two, along either side, where that saves the most padding, until there are as many as allowed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from stackelberg.nmt.cache import Ints

ROWS = 8  # that a batch's rows are a multiple of, where it has that many


class Shape(NamedTuple):
    """Of a batch: how many sentences, and the lengths that they are padded to."""

    rows: int
    source: int
    target: int


@dataclass(frozen=True)
class Region:
    """Sentences with lengths in a rectangle, from above `low` to `high`, both (source, target), in steps."""

    low: tuple[int, int]
    high: tuple[int, int]


@dataclass(frozen=True)
class Cut:
    """The best place to cut a region, and how much padding that saves."""

    saved: int
    region: Region
    parts: tuple[Region, Region]


def shapes_of(source: Ints, target: Ints, *, max_tokens: int, most: int, step: int) -> tuple[list[Shape], Ints]:
    """Shapes, and the number of the one that each sentence is played in.

    Args:
        source: lengths.
        target: lengths.
        max_tokens: of a batch, padding included, on its longer side.
        most: how many shapes there may be.
        step: that lengths are padded to multiples of.
    """
    steps = np.stack([-(-source // step), -(-target // step)])  # (2, sentences)
    table = np.zeros((steps[0].max() + 1, steps[1].max() + 1), np.int64)
    np.add.at(table, (steps[0], steps[1]), 1)
    regions = _regions(table, most)
    number = np.empty(len(source), np.int16)
    shapes: list[Shape] = []
    for region in regions:
        inside = (steps[0] > region.low[0]) & (steps[0] <= region.high[0])
        inside &= (steps[1] > region.low[1]) & (steps[1] <= region.high[1])
        number[inside] = len(shapes)
        lengths = region.high[0] * step, region.high[1] * step
        shapes.append(Shape(_rows(max_tokens // max(lengths), int(inside.sum())), *lengths))
    return shapes, number


def _rows(fit: int, there: int) -> int:
    rows = max(1, min(fit, there))
    return rows - rows % ROWS if rows >= ROWS else rows


def _regions(table: Ints, most: int) -> list[Region]:
    whole = _tight(table, Region((-1, -1), (table.shape[0] - 1, table.shape[1] - 1)))
    cuts = [_best_cut(table, whole)]
    while len(cuts) < most:
        cut = max(cuts, key=lambda each: each.saved)
        if not cut.saved:
            break
        cuts.remove(cut)
        cuts += [_best_cut(table, part) for part in cut.parts]
    return [cut.region for cut in cuts]


def _best_cut(table: Ints, region: Region) -> Cut:
    """Over both sides and all places; counts before and after it, and how long the other side still is there."""
    best = Cut(0, region, (region, region))
    block = table[region.low[0] + 1 : region.high[0] + 1, region.low[1] + 1 : region.high[1] + 1]
    for side in (0, 1):
        part = block if side == 0 else block.T  # (places, lengths of the other side)
        counts = part.sum(1)
        reach = np.where(part > 0, np.arange(part.shape[1]), -1).max(1)  # of each place's sentences
        before, after = np.maximum.accumulate(reach)[:-1], np.maximum.accumulate(reach[::-1])[::-1][1:]
        first = counts.cumsum()[:-1]
        second = counts.sum() - first
        whole = part.shape[0] + part.shape[1]
        places = np.arange(1, part.shape[0])
        # the first part is as long as the place on this side; both as long on the other as their longest
        saved = first * (whole - places - before - 1) + second * (part.shape[1] - after - 1)
        saved = np.where((first > 0) & (second > 0), saved, 0)
        if len(saved) and saved.max() > best.saved:
            place = region.low[side] + 1 + int(saved.argmax())
            high = (place, region.high[1]) if side == 0 else (region.high[0], place)
            low = (place, region.low[1]) if side == 0 else (region.low[0], place)
            parts = _tight(table, Region(region.low, high)), _tight(table, Region(low, region.high))
            best = Cut(int(saved.max()), region, parts)
    return best


def _tight(table: Ints, region: Region) -> Region:
    """Without lengths at its edges that no sentence has."""
    block = table[region.low[0] + 1 : region.high[0] + 1, region.low[1] + 1 : region.high[1] + 1] > 0
    low, high = list(region.low), list(region.high)
    for side in (0, 1):
        there = np.flatnonzero(block.any(1 - side))
        high[side] = region.low[side] + 1 + int(there[-1])
        low[side] = region.low[side] + int(there[0])
    return Region((low[0], low[1]), (high[0], high[1]))
