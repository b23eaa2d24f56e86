"""Which pairs are left out of a training corpus, as the scripts of IWSLT and WMT do, and how many there were."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from stackelberg.nmt.corpus import Corpus, Pair
from stackelberg.nmt.text import TextForm

LONGEST_TEXT = 20_000  # characters; a file that lost its line ends shows here


@dataclass
class Counts:
    """What became of a corpus's pairs."""

    read: int = 0
    kept: int = 0
    empty: int = 0  # a side without a word
    long: int = 0  # too many words, or characters
    uneven: int = 0  # one side many times the other
    pieces: int = 0  # too many pieces of words

    def said(self) -> str:
        """A sentence."""
        reasons = {"an empty side": self.empty, "too many words": self.long, "sides of unlike length": self.uneven,
                   "too many pieces": self.pieces}  # fmt: skip
        left_out = ", ".join(f"{count:,} with {why}" for why, count in reasons.items() if count)
        return f"{self.kept:,} of {self.read:,} pairs" + (f"; left out: {left_out}" if left_out else "")

    def numbers(self) -> dict[str, int]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Cleaning:
    """The usual filters on words, before they are cut into pieces.

    Args:
        max_words: of either side.
        max_ratio: of the longer side's words to the shorter's.
    """

    max_words: int
    max_ratio: float

    def clean(self, corpus: Corpus, form: TextForm, counts: Counts) -> Iterator[Pair]:
        """The pairs that stay, prepared as `form` says, each side's words separated by single spaces."""
        for source, target in corpus.pairs():
            counts.read += 1
            if max(len(source), len(target)) > LONGEST_TEXT:
                counts.long += 1
                continue
            pair = form.prepared_source(source), form.prepared_target(target)
            words = [side.count(" ") + 1 if side else 0 for side in pair]
            if not min(words):
                counts.empty += 1
            elif max(words) > self.max_words:
                counts.long += 1
            elif max(words) > self.max_ratio * min(words):
                counts.uneven += 1
            else:
                counts.kept += 1
                yield pair
