"""From files to a mapped cache: every line accounted for, nothing half-written, and the text comes back."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stackelberg.errors import DataError
from stackelberg.nmt import prepare as preparing
from stackelberg.nmt.cache import Cache, CacheWriter
from stackelberg.nmt.cleaning import LONGEST_TEXT, Cleaning, Counts
from stackelberg.nmt.corpus import HubRows, TextFiles
from stackelberg.nmt.lines import find_text, read_lines
from stackelberg.nmt.prepare import prepare
from stackelberg.nmt.subwords import Alphabet, finished, learn
from stackelberg.nmt.text import TextForm
from tiny_translation import preparation, synthetic, write_pairs

# Lines


def test_lines_end_at_line_feeds_only(tmp_path: Path) -> None:
    text = "one\u2028still one\ntwo\x0bstill\x85two\x1c\nthree\r\n\nfive"
    (tmp_path / "a.en").write_bytes("\ufeff".encode() + text.encode())
    assert list(read_lines(tmp_path / "a.en")) == ["one\u2028still one", "two\x0bstill\x85two\x1c", "three", "", "five"]
    with gzip.open(tmp_path / "a.en.gz", "wb") as file:
        file.write(text.encode())
    assert len(list(read_lines(tmp_path / "a.en.gz"))) == 5


def test_bytes_that_are_no_text_are_named_by_line(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_bytes(b"fine\nfine too\nna\xefve\n")
    with pytest.raises(DataError, match=r"a\.en, line 3: byte 0xef is not UTF-8.*iconv"):
        list(read_lines(tmp_path / "a.en"))


def test_torn_archives_and_missing_files_are_one_sentence(tmp_path: Path) -> None:
    whole = gzip.compress(b"a line\n" * 100_000)
    (tmp_path / "a.en.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="not a whole gzip file"):
        list(read_lines(tmp_path / "a.en.gz"))
    (tmp_path / "b.en.gz").write_bytes(b"plain")
    with pytest.raises(DataError, match="not a whole gzip file"):
        list(read_lines(tmp_path / "b.en.gz"))
    with pytest.raises(DataError, match=r"train\.en is not there.*tmp|train\.en is not there"):
        find_text(tmp_path, "train", "en")


def test_a_line_without_end_is_cut_and_the_next_one_found(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_bytes("ä".encode() * 1000 + b"\nshort\n")
    found = list(read_lines(tmp_path / "a.en", longest=101))  # cuts a letter in two
    assert found == ["ä" * 50, "short"]


# Corpora


def test_unequal_files_are_refused_with_both_counts(tmp_path: Path) -> None:
    corpus = write_pairs(tmp_path, "train", [("a", "b")] * 5)
    (tmp_path / "train.de").write_text("b\n" * 8)
    with pytest.raises(DataError, match=r"train\.en has 5 lines and .*train\.de has 8"):
        list(corpus.pairs())
    (tmp_path / "train.de").write_text("b\n" * 2)
    with pytest.raises(DataError, match=r"train\.en has 5 lines and .*train\.de has 2"):
        list(corpus.pairs())


def test_what_is_left_out_is_counted() -> None:
    class Few:
        name = "few"

        def pairs(self) -> Any:
            yield from [
                ("a good pair", "ein gutes Paar"),
                ("", "leer"),
                ("empty", "   "),
                ("x " * 11, "y " * 11),
                ("one two three four", "eins"),
                ("z" * (LONGEST_TEXT + 1), "z"),
                ("  spaces \t between ", "Abstände dazwischen"),
            ]

        def fingerprint(self) -> str:
            return ""

    counts = Counts()
    kept = list(Cleaning(10, 3.0).clean(Few(), TextForm(), counts))
    assert kept == [("a good pair", "ein gutes Paar"), ("spaces between", "Abstände dazwischen")]
    assert counts.numbers() == {"read": 7, "kept": 2, "empty": 2, "long": 2, "uneven": 1, "pieces": 0}
    assert counts.said() == (
        "2 of 7 pairs; left out: 2 with an empty side, 2 with too many words, 1 with sides of unlike length"
    )


def test_rows_of_a_data_set_are_pairs(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    rows = [{"translation": {"en": f"word {i}", "de": f"Wort {i}"}} for i in range(4)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    corpus = HubRows(str(tmp_path), None, "train", ("en", "de"))
    assert list(corpus.pairs())[3] == ("word 3", "Wort 3")
    assert corpus.fingerprint() == HubRows(str(tmp_path), None, "train", ("en", "de")).fingerprint()
    with pytest.raises(DataError, match="row 0: no texts in en and fr; it has en, de"):
        list(HubRows(str(tmp_path), None, "train", ("en", "fr")).pairs())
    with pytest.raises(DataError, match="cannot be loaded"):
        list(HubRows(str(tmp_path), None, "nowhere", ("en", "de")).pairs())


# Pieces

LINES = ["the cat sat on the mat , didn't it ?", "the cats sat", "a mat ( flat ) ... 3.14 €"] * 3


@pytest.mark.parametrize("segmentation", ["words", "text"])
def test_merges_are_as_many_as_asked_for_and_text_comes_back(segmentation: Any, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    alphabet = Alphabet()
    for line in LINES:
        alphabet.see(line)
    raw = learn(LINES, alphabet, merges=12, segmentation=segmentation)
    assert len(json.loads(raw.to_str())["model"]["merges"]) == 12
    finished(raw).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) % 8 == 0
    assert (tokenizer.eos_token_id, tokenizer.unk_token_id, tokenizer.pad_token_id) == (0, 1, len(tokenizer) - 1)
    ids = tokenizer(LINES)["input_ids"]
    assert tokenizer.batch_decode(ids, skip_special_tokens=True) == LINES
    assert all(each[-1] == 0 for each in ids)


@pytest.mark.parametrize("segmentation", ["text", "words"])
def test_one_corpus_has_one_vocabulary(segmentation: Any) -> None:
    """Whatever process learns it: pairs that are as frequent as each other are told apart in one way."""
    code = (
        "import random, hashlib; from stackelberg.nmt.subwords import Alphabet, learn; draw = random.Random(0);"
        "lines = [' '.join(''.join(draw.choices('abcdefgh', k=draw.randint(1, 6))) for _ in range(8)) "
        "for _ in range(300)]; alphabet = Alphabet(); [alphabet.see(line) for line in lines];"
        f"found = learn(lines, alphabet, merges=60, segmentation={segmentation!r});"
        "print(hashlib.sha256(found.to_str().encode()).hexdigest(), len(found.get_vocab()))"
    )
    said = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout for _ in range(3)]
    assert len(set(said)) == 1 and said[0].endswith(f" {2 + 60 + (9 if segmentation == 'text' else 16)}\n"), said


def test_sentences_cannot_say_special_tokens(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    alphabet = Alphabet()
    for line in LINES:
        alphabet.see(line)
    finished(learn(LINES, alphabet, merges=5, segmentation="words")).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    ids = tokenizer("the </s> <pad> cat")["input_ids"]
    assert ids.count(0) == 1 and ids[-1] == 0 and tokenizer.pad_token_id not in ids


def test_text_that_is_cut_already_keeps_its_pieces() -> None:
    lines = ["the@@ re is a ca@@ t", "a ca@@ t is there"]
    tokenizer = finished(learn(lines, Alphabet(), merges=1, segmentation="pieces"))
    ids = tokenizer(lines)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids[0]) == [*lines[0].split(), "</s>"]
    assert tokenizer.batch_decode(ids, skip_special_tokens=True) == ["there is a cat", "a cat is there"]


def test_moses_goes_and_comes_back() -> None:
    pytest.importorskip("sacremoses")
    form = TextForm(source="en", target="de", moses=True, lowercase=True, segmentation="words")
    prepared = form.prepared_target('Er sagt: "Das ist gut", nicht wahr?')
    assert prepared == "er sagt : &quot; das ist gut &quot; , nicht wahr ?"
    assert form.restored(prepared) == 'er sagt: "das ist gut", nicht wahr?'
    assert form.restored("") == "" and form.prepared_source("It's") == "it &apos;s"


# The cache


def test_the_cache_holds_what_the_tokenizer_says(tmp_path: Path) -> None:
    prepared = synthetic(tmp_path)
    pairs = list(TextFiles.find(tmp_path / "corpus", "train", "aa", "bb").pairs())
    sources = prepared.codec.sources([source for source, _ in pairs])
    lengths = prepared.cache.lengths("source")
    assert lengths.tolist() == [len(each) for each in sources] and len(prepared.cache) == 300
    rows = np.array([0, 7, 299])
    ids, real = prepared.cache.padded("source", rows, int(lengths[rows].max()) + 2, 999)
    for row, line, there in zip(rows, ids, real, strict=True):
        assert line[there].tolist() == sources[row] and set(line[~there].tolist()) == {999}
    assert prepared.cache.tokens("source") == lengths.sum()


def test_large_vocabularies_take_wider_ids(tmp_path: Path) -> None:
    with CacheWriter(tmp_path, 70_000) as writer:
        writer.add([[1, 69_999]], [[3]])
        writer.add([[5]], [[2, 2]])
        writer.finish({})
    cache = Cache(tmp_path)
    assert cache.padded("source", np.array([1, 0]), 2, 0)[0].tolist() == [[5, 0], [1, 69_999]]
    assert cache.lengths("target").tolist() == [1, 2]


def test_a_torn_cache_is_refused(tmp_path: Path) -> None:
    prepared = synthetic(tmp_path)
    ids = prepared.cache.folder / "target.ids"
    ids.write_bytes(ids.read_bytes()[:-2])
    with pytest.raises(DataError, match="no whole cache"):
        Cache(prepared.cache.folder)


def test_a_cache_is_whole_or_not_there_and_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def torn(*args: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(preparing, "_codec", torn)
        with pytest.raises(KeyboardInterrupt):
            synthetic(tmp_path)
    assert list((tmp_path / "cache").iterdir()) == []
    first = synthetic(tmp_path)
    monkeypatch.setattr(preparing, "_build", torn)  # not called again
    assert synthetic(tmp_path).cache.folder == first.cache.folder


def test_the_key_is_of_all_that_a_cache_is_made_of(tmp_path: Path) -> None:
    corpus = write_pairs(tmp_path, "train", [("a b", "c d")] * 5)
    usual = preparation()
    assert usual.key(corpus) == preparation().key(corpus)
    others = [
        preparation(merges=61),
        preparation(max_length=61),
        preparation(joint=False),
        preparation(segmentation="text"),
    ]
    before = usual.key(corpus)
    assert len({before, *(other.key(corpus) for other in others)}) == 5
    (tmp_path / "train.de").write_text("c e\n" * 5)
    assert usual.key(corpus) != before


def test_a_corpus_of_which_nothing_is_left(tmp_path: Path) -> None:
    corpus = write_pairs(tmp_path, "train", [("", "b")] * 3)
    with pytest.raises(DataError, match=r"nothing is left to train on \(0 of 3 pairs; left out: 3 with an empty side"):
        prepare(corpus, preparation(), tmp_path / "cache")


def test_separate_vocabularies_are_of_one_size(tmp_path: Path) -> None:
    codec = synthetic(tmp_path, joint=False).codec
    assert codec.target is not codec.tokenizer and len(codec.target) == len(codec.tokenizer)
    assert codec.texts(codec.targets(["kba mde"])) == ["kba mde"]
