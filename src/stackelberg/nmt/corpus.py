"""Parallel corpora: two files whose lines are translations of each other, or rows of a data set on the hub."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Protocol

from stackelberg.errors import DataError, needs
from stackelberg.nmt.lines import digest, find_text, read_lines

Pair = tuple[str, str]


class Corpus(Protocol):
    """Pairs of sentences that can be gone through again and again."""

    @property
    def name(self) -> str:
        """For messages."""

    def pairs(self) -> Iterator[Pair]:
        """Source and target, in order."""

    def fingerprint(self) -> str:
        """Equal for equal content."""


@dataclass(frozen=True)
class TextFiles:
    """Two files with equally many lines."""

    source: Path
    target: Path

    @classmethod
    def find(cls, folder: Path, stem: str, source: str, target: str) -> TextFiles:
        """`stem.source` and `stem.target` in a folder."""
        return cls(find_text(folder, stem, source), find_text(folder, stem, target))

    @property
    def name(self) -> str:
        """Both files'."""
        return f"{self.source} and {self.target.name}"

    def pairs(self) -> Iterator[Pair]:
        """Line by line; unequal numbers of lines are an error, since no one knows where they went apart."""
        seen = 0
        both = zip_longest(read_lines(self.source), read_lines(self.target))
        for source, target in both:
            if source is None or target is None:
                longer = seen + 1 + sum(1 for _ in both)
                counts = (seen, longer) if source is None else (longer, seen)
                raise DataError(
                    f"{self.source} has {counts[0]:,} lines and {self.target} has {counts[1]:,}: lines of the same "
                    "number should be translations of each other; get the files again"
                )
            seen += 1
            yield source, target

    def fingerprint(self) -> str:
        """Of both files' bytes."""
        return f"{digest(self.source)}-{digest(self.target)}"


@dataclass(frozen=True)
class HubRows:
    """A split of a data set on the hub (or of a folder that `datasets` reads).

    Its rows have a `translation` with a text for each language, or a column for each language.
    """

    dataset: str
    config: str | None
    split: str
    languages: tuple[str, str]

    @property
    def name(self) -> str:
        """Data set and split."""
        return f"{self.dataset}, {self.split}"

    def pairs(self) -> Iterator[Pair]:
        """Row by row."""
        for number, row in enumerate(self._rows()):
            texts = row.get("translation", row)
            if not all(isinstance(texts.get(language), str) for language in self.languages):
                raise DataError(
                    f"{self.name}, row {number}: no texts in {' and '.join(self.languages)}; it has {', '.join(texts)}"
                )
            yield texts[self.languages[0]], texts[self.languages[1]]

    def fingerprint(self) -> str:
        """As `datasets` keeps it."""
        return str(self._rows()._fingerprint)

    def _rows(self) -> Any:
        with needs("datasets", extra="hf"):
            import datasets

        try:
            return datasets.load_dataset(self.dataset, self.config, split=self.split)
        except (OSError, ValueError) as error:
            raise DataError(f"{self.name} cannot be loaded: {str(error).splitlines()[0]}") from error
