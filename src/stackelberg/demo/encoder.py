"""The demo's encoder: a small BERT with random weights that knows the words of its letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from stackelberg.studies.small_bert import write_small_bert

LAYERS, WIDTH, HEADS = 2, 64, 4
POSITIONS = 48
LENGTH = 1.4  # of a word's vector, as in BERT-base, so that a perturbation of size ε means what it means there


def write_encoder(folder: Path, texts: Iterable[str]) -> None:
    """An encoder and a tokenizer that knows the words of the texts and no others, frequent ones first."""
    counts = Counter(word for text in texts for word in text.split())
    words = sorted(counts, key=lambda word: (-counts[word], word))
    write_small_bert(
        folder,
        words,
        layers=LAYERS,
        width=WIDTH,
        heads=HEADS,
        inner=2 * WIDTH,
        positions=POSITIONS,
        length=LENGTH,
    )
