"""Translating sentences: any number of them, of any length, in their order, by whichever engine searches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from stackelberg.errors import SettingError
from stackelberg.game.settings.checks import number, whole
from stackelberg.nmt.codec import Codec

AT_ONCE = 8192  # lines that are sorted by length together
BATCH_TOKENS = 16_384  # of a batch: beams × sentences × length
LONGER, MORE = 2, 20  # a translation has at most 2 × the source's pieces + 20


@dataclass(frozen=True)
class Search:
    """How translations are looked for.

    Args:
        beam: hypotheses that are followed at once; 1 is greedy.
        length_penalty: a hypothesis's log-probability is divided by its length to this power.
        n_best: how many are given for each sentence, best first.
        scored: whether scores are wanted; `nan` stands for those that would cost something and are not.
    """

    beam: int = 5
    length_penalty: float = 1.0
    n_best: int = 1
    scored: bool = False

    def __post_init__(self) -> None:
        """Check them."""
        whole("beam", self.beam, 1)
        whole("n_best", self.n_best, 1)
        number("length_penalty", self.length_penalty)
        if self.n_best > self.beam:
            raise SettingError(f"n_best={self.n_best} is more than beam={self.beam} finds; make the beam larger")


@dataclass(frozen=True)
class Found:
    """What a model wrote for a sentence, and its log-probability over its length to the penalty's power."""

    ids: list[int]
    score: float


@dataclass(frozen=True)
class Translation:
    """A translation: tokenised as the model was trained, put together as people read it, and its score."""

    tokenized: str
    text: str
    score: float


class Engine(Protocol):
    """What searches."""

    longest: int | None  # pieces of a source that it can read

    def search(self, sources: Sequence[Sequence[int]], how: Search, most: int) -> list[list[Found]]:
        """For each source, `n_best` of what was found, at most `most` pieces long."""


class Translator:
    """A model that translates sentences.

    Args:
        engine: that searches.
        codec: between sentences and ids.
        batch_tokens: beams × sentences × length that are searched at once.
    """

    def __init__(self, engine: Engine, codec: Codec, *, batch_tokens: int = BATCH_TOKENS) -> None:
        """See the class."""
        self.engine = engine
        self.codec = codec
        self.batch_tokens = batch_tokens

    def stream(self, lines: Iterable[str], how: Search, *, prepared: bool = False) -> Iterator[list[Translation]]:
        """Each line's translations, in order, many lines at a time."""
        waiting = iter(lines)
        while here := list(islice(waiting, AT_ONCE)):
            yield from self.translate(here, how, prepared=prepared)

    def translate(self, lines: Sequence[str], how: Search, *, prepared: bool = False) -> list[list[Translation]]:
        """Each line's translations, best first; an empty line's is empty.

        A line with more pieces than the model has positions is cut into parts, which are translated one by one.

        Args:
            lines: sentences.
            how: they are searched for.
            prepared: the lines are already tokenised and lower-cased as the model wants them.
        """
        form = self.codec.form
        ready = list(lines) if prepared else [form.prepared_source(line) for line in lines]
        ids = [source if line.strip() else [] for line, source in zip(ready, self.codec.sources(ready), strict=True)]
        parts = [self._parts(source) for source in ids]
        found = self._searched([part for each in parts for part in each], how)
        whole: list[list[Found]] = []
        for each in parts:
            here, found = found[: len(each)], found[len(each) :]
            whole.append([_joined([part[k] for part in here]) for k in range(how.n_best)])
        texts = iter(self.codec.texts([one.ids for each in whole for one in each]))
        return [[Translation(text := next(texts), form.restored(text), one.score) for one in each] for each in whole]

    def best(self, lines: Sequence[str], how: Search, *, prepared: bool = False) -> list[Translation]:
        """The best one of each."""
        return [found[0] for found in self.translate(lines, how, prepared=prepared)]

    def _searched(self, sources: Sequence[list[int]], how: Search) -> list[list[Found]]:
        """Longest first, batches of like lengths, and back in order."""
        order = sorted(range(len(sources)), key=lambda i: -len(sources[i]))
        found: dict[int, list[Found]] = {}
        while order:
            longest = len(sources[order[0]])
            rows = max(1, self.batch_tokens // (longest * how.beam))
            batch, order = order[:rows], order[rows:]
            answers = self.engine.search([sources[i] for i in batch], how, LONGER * longest + MORE)
            found |= dict(zip(batch, answers, strict=True))
        return [found[i] for i in range(len(sources))]

    def _parts(self, source: list[int]) -> list[list[int]]:
        most = self.engine.longest
        if most is None or len(source) <= most:
            return [source] if source else []
        end = source[-1:]  # which ends every part
        body, room = source[:-1], most - 1
        return [body[first : first + room] + end for first in range(0, len(body), room)]


def _joined(parts: Sequence[Found]) -> Found:
    return Found([i for part in parts for i in part.ids], sum(part.score for part in parts) / max(len(parts), 1))
