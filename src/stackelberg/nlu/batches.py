"""Rows as batches, padded to few lengths where a GPU replays one captured graph for each shape of a batch.

On a CPU a batch is as long as its longest row. On a GPU it is padded to the next of a few lengths, chosen so that
each is the right one for as many batches as any other: with F the share of rows no longer than l, the longest of B
random rows is no longer than l with probability F(l)^B, so the lengths are at F⁻¹(q^(1/B)) for q = 1/n … 1.
Padding changes no result but for rounding.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any

BUCKETS = 6  # lengths, so that with a last batch of fewer rows there are twelve shapes
MULTIPLE = 8  # of tokens: what tensor cores like


def bucket_lengths(lengths: Sequence[int], rows: int, buckets: int = BUCKETS) -> tuple[int, ...]:
    """The lengths that batches of so many rows are padded to."""
    ordered = sorted(lengths)
    places = [math.ceil((each / buckets) ** (1 / rows) * len(ordered)) - 1 for each in range(1, buckets + 1)]
    return tuple(sorted({math.ceil(ordered[place] / MULTIPLE) * MULTIPLE for place in places}))


class Padding:
    """A collator.

    Args:
        tokenizer: whose padding it is.
        model: that will be called; what it does not take is left out.
        lengths: to pad to; the longest row's when empty.
        longest: no batch is padded beyond this, the model's number of positions.
    """

    def __init__(self, tokenizer: Any, model: Any, lengths: Sequence[int] = (), longest: int | None = None) -> None:
        self.tokenizer = tokenizer
        self.lengths = tuple(sorted({min(length, longest or length) for length in lengths}))
        self.takes = set(inspect.signature(type(model).forward).parameters)

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """One batch of tensors."""
        known = [{name: value for name, value in row.items() if name in self.takes} for row in rows]
        longest = max(len(row["input_ids"]) for row in known)
        length = next((length for length in self.lengths if length >= longest), longest)
        return dict(self.tokenizer.pad(known, padding="max_length", max_length=length, return_tensors="pt"))
