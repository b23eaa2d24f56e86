"""From a corpus of sentences to its cache: cleaned, a vocabulary learned, cut into ids. Never all of it in memory.

A cache's name is a hash of all it was made from, so what is there is right; it is written whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stackelberg.errors import DataError
from stackelberg.nmt.cache import FORMAT, META, TOKENIZER, Cache, CacheWriter
from stackelberg.nmt.cleaning import Cleaning, Counts
from stackelberg.nmt.codec import Codec
from stackelberg.nmt.corpus import Corpus
from stackelberg.nmt.lines import read_lines
from stackelberg.nmt.subwords import Alphabet, chained, finished, learn, whole_size
from stackelberg.nmt.text import TextForm
from stackelberg.storage import whole_folder

AT_ONCE = 4096  # sentences
HOME = "STACKELBERG_CACHE"  # the environment's name for where caches are


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """All that a cache depends on besides the corpus.

    Args:
        form: what is done to texts.
        cleaning: which pairs are left out.
        max_length: pairs with more pieces on a side are left out too.
        merges: of byte-pair encoding.
        joint: one vocabulary for both languages.
        tokenizer: folder or name of a pretrained one, which is then used instead.
    """

    form: TextForm
    cleaning: Cleaning
    max_length: int
    merges: int = 10_000
    joint: bool = True
    tokenizer: str | None = None

    def key(self, corpus: Corpus) -> str:
        """Equal for equal caches."""
        said = {**asdict(self), "corpus": corpus.fingerprint(), "format": FORMAT}
        if self.tokenizer is not None:
            said["tokenizer"] = _fingerprint(Codec.load(self.tokenizer, self.form))
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Prepared:
    """A corpus ready for training, and what cuts other sentences alike."""

    cache: Cache
    codec: Codec


def home() -> Path:
    """Where caches are kept: `STACKELBERG_CACHE`, or the user's own folder for caches."""
    said = os.environ.get(HOME)
    user = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(said) if said else Path(user) / "stackelberg" / "nmt"


def prepare(
    corpus: Corpus, preparation: Preparation, caches: Path, say: Callable[[str], None] = lambda text: None
) -> Prepared:
    """The corpus's cache, made now if it is not there yet."""
    folder = caches / f"{preparation.form.source}-{preparation.form.target}-{preparation.key(corpus)}"
    if not (folder / META).is_file():
        say(f"preparing {corpus.name}")
        try:
            with whole_folder(folder) as unfinished:
                _build(corpus, preparation, unfinished, say)
        except OSError:
            if not (folder / META).is_file():  # another process may have been faster
                raise
    cache = Cache(folder)
    say(f"{Counts(**cache.meta['counts']).said()} of {corpus.name}")
    return Prepared(cache, Codec.load(folder / TOKENIZER, preparation.form))


def _build(corpus: Corpus, preparation: Preparation, folder: Path, say: Callable[[str], None]) -> None:
    counts = Counts()
    with TemporaryDirectory(prefix="text-", dir=folder) as place:
        clean = Path(place) / "source", Path(place) / "target"
        alphabets = _write_clean(corpus, preparation, counts, clean)
        if not counts.kept:
            raise DataError(f"{corpus.name}: nothing is left to train on ({counts.said()})")
        codec = _codec(preparation, alphabets, clean)
        codec.save(folder / TOKENIZER)
        with CacheWriter(folder, max(len(codec.tokenizer), len(codec.target))) as writer:
            for sources, targets in _encoded(codec, clean):
                fit = [max(map(len, pair)) <= preparation.max_length for pair in zip(sources, targets, strict=True)]
                counts.pieces += fit.count(False)
                counts.kept -= fit.count(False)
                writer.add(_those(sources, fit), _those(targets, fit))
            if not counts.kept:
                raise DataError(f"{corpus.name}: nothing is left to train on ({counts.said()})")
            writer.finish({"counts": counts.numbers(), "corpus": corpus.name})


def _write_clean(
    corpus: Corpus, preparation: Preparation, counts: Counts, paths: tuple[Path, Path]
) -> tuple[Alphabet, Alphabet]:
    alphabets = Alphabet(), Alphabet()
    if preparation.joint:
        alphabets = alphabets[0], alphabets[0]
    with paths[0].open("w", encoding="utf-8", newline="\n") as source:
        with paths[1].open("w", encoding="utf-8", newline="\n") as target:
            for pair in preparation.cleaning.clean(corpus, preparation.form, counts):
                for alphabet, file, line in zip(alphabets, (source, target), pair, strict=True):
                    alphabet.see(line)
                    file.write(line + "\n")
    return alphabets


def _codec(preparation: Preparation, alphabets: tuple[Alphabet, Alphabet], clean: tuple[Path, Path]) -> Codec:
    form, merges = preparation.form, preparation.merges
    if preparation.tokenizer is not None:
        return Codec.load(preparation.tokenizer, form)
    if preparation.joint:
        both = chained(*map(read_lines, clean))
        return Codec(finished(learn(both, alphabets[0], merges=merges, segmentation=form.segmentation)), form)
    source, target = (
        learn(read_lines(path), alphabet, merges=merges, segmentation=form.segmentation)
        for path, alphabet in zip(clean, alphabets, strict=True)
    )
    size = max(whole_size(source), whole_size(target))  # equal, as CTranslate2's converter wants them
    return Codec(finished(source, size), form, finished(target, size))


def _encoded(codec: Codec, clean: tuple[Path, Path]) -> Iterator[tuple[list[list[int]], list[list[int]]]]:
    pairs = zip(*map(read_lines, clean), strict=True)
    while lines := list(islice(pairs, AT_ONCE)):
        yield codec.sources([source for source, _ in lines]), codec.targets([target for _, target in lines])


def _those(sentences: Iterable[list[int]], wanted: Iterable[bool]) -> list[list[int]]:
    return [each for each, take in zip(sentences, wanted, strict=True) if take]


def _fingerprint(codec: Codec) -> str:
    tokenizer: Any = codec.tokenizer
    backend = getattr(tokenizer, "backend_tokenizer", None)
    said = backend.to_str() if backend is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()
