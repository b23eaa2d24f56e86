"""A corpus as ids on the disk, mapped into memory as it is read: millions of pairs open at once and cost no memory.

source.ids, target.ids      every sentence's ids, one after the other (uint16, or uint32 for large vocabularies)
source.ends, target.ends    where each sentence ends among them (int64)
meta.json                   counts, and the type of the ids
tokenizer/                  what cut the sentences into ids
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from stackelberg.errors import DataError
from stackelberg.storage import write_whole

META, TOKENIZER = "meta.json", "tokenizer"
FORMAT = 1  # raised whenever the files mean something else
LENGTHS_AT_ONCE = 1 << 18

Side = Literal["source", "target"]
SIDES: tuple[Side, ...] = ("source", "target")
Ints = NDArray[Any]


class Cache:
    """A corpus that was written by `CacheWriter`."""

    def __init__(self, folder: Path) -> None:
        """Map it."""
        self.folder = folder
        try:
            self.meta: dict[str, Any] = json.loads((folder / META).read_text(encoding="utf-8"))
            kind = np.dtype(self.meta["ids"])
            self._ids = {side: _mapped(folder / f"{side}.ids", kind) for side in SIDES}
            self._ends = {side: _mapped(folder / f"{side}.ends", np.dtype(np.int64)) for side in SIDES}
        except (OSError, ValueError, KeyError) as error:
            raise DataError(
                f"{folder} is no whole cache of a corpus ({error}); remove it, and it is made anew"
            ) from error
        if len({len(ends) for ends in self._ends.values()}) > 1 or any(
            len(self._ids[side]) != (self._ends[side][-1] if len(self) else 0) for side in SIDES
        ):
            raise DataError(f"{folder} is no whole cache of a corpus; remove it, and it is made anew")

    def __len__(self) -> int:
        return len(self._ends["source"])

    def tokens(self, side: Side) -> int:
        """How many ids a side has."""
        return len(self._ids[side])

    def lengths(self, side: Side) -> Ints:
        """Of every sentence, int32; gone through piece by piece, so that no page need stay."""
        ends, found = self._ends[side], np.empty(len(self), np.int32)
        for first in range(0, len(self), LENGTHS_AT_ONCE):
            here = np.asarray(ends[first : first + LENGTHS_AT_ONCE])
            found[first : first + len(here)] = np.diff(here, prepend=ends[first - 1] if first else 0)
        return found

    def padded(self, side: Side, rows: Ints, length: int, pad: int) -> tuple[Ints, Ints]:
        """Some sentences' ids, (rows, length) int64, filled up with `pad`, and the mask of real ones."""
        ends = self._ends[side]
        last = np.asarray(ends[rows])
        first = np.where(rows > 0, ends[np.maximum(rows - 1, 0)], 0)
        places = first[:, None] + np.arange(length)
        real = places < last[:, None]
        ids = self._ids[side][np.where(real, places, 0)].astype(np.int64)
        return np.where(real, ids, pad), real


class CacheWriter:
    """Writes a corpus a batch of sentences at a time, into a folder that is not yet the cache's own."""

    def __init__(self, folder: Path, vocabulary: int) -> None:
        """`vocabulary`: one more than the largest id."""
        self.folder = folder
        self.kind = np.dtype(np.uint16 if vocabulary <= 1 << 16 else np.uint32)
        self._ids = {side: (folder / f"{side}.ids").open("wb") for side in SIDES}
        self._ends = {side: (folder / f"{side}.ends").open("wb") for side in SIDES}
        self._written = dict.fromkeys(SIDES, 0)

    def add(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> None:
        """Pairs of sentences."""
        for side, sentences in zip(SIDES, (sources, targets), strict=True):
            self.add_flat(
                side,
                np.fromiter((i for each in sentences for i in each), self.kind),
                np.fromiter(map(len, sentences), np.int64, len(sentences)),
            )

    def add_flat(self, side: Side, ids: Ints, lengths: Ints) -> None:
        """One side's ids, one sentence after the other, and how many are whose."""
        _write(self._ids[side], ids.astype(self.kind, copy=False))
        _write(self._ends[side], self._written[side] + np.cumsum(lengths, dtype=np.int64))
        self._written[side] += int(lengths.sum())

    def finish(self, meta: dict[str, Any]) -> None:
        """Close the files, and say what is in them."""
        self._close()
        said = {**meta, "ids": self.kind.name, "format": FORMAT}
        write_whole(self.folder / META, json.dumps(said, indent=2, ensure_ascii=False) + "\n")

    def _close(self) -> None:
        for file in (*self._ids.values(), *self._ends.values()):
            file.close()

    def __enter__(self) -> CacheWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()


def _write(file: IO[bytes], values: Ints) -> None:
    file.write(np.ascontiguousarray(values).data)


def _mapped(path: Path, kind: np.dtype[Any]) -> Ints:
    if path.stat().st_size == 0:  # which cannot be mapped
        return np.empty(0, kind)
    return np.memmap(path, kind, "r")
