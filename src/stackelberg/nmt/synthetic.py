"""A made-up pair of languages for trying things out: learned in a minute, and not by copying.

A source sentence is made of phrases, each of one to three words of a class: modifiers, then a head. The target has
another word for every word, puts the head first, and marks it by the number of its modifiers.
"""

from __future__ import annotations

import random
from pathlib import Path

from stackelberg.storage import whole_folder

SOURCE, TARGET = "aa", "bb"
HEADS, MODIFIERS = 16, 12
PHRASES = (1, 2, 3)
HELD_OUT = 200  # sentences of dev and of test
SYLLABLES = ("ba", "de", "fi", "go", "hu", "ka", "le", "mi", "no", "pu", "ra", "se", "ti", "vo", "zu")
ENDINGS = ("", "n", "st")  # of a head without, with one, and with two modifiers


def sentence(draw: random.Random) -> tuple[str, str]:
    """A source sentence and its translation."""
    source, target = [], []
    for _ in range(draw.choice(PHRASES)):
        head = draw.randrange(HEADS)
        modifiers = [draw.randrange(MODIFIERS) for _ in range(draw.randrange(len(ENDINGS)))]
        source += [*(_word("x", each) for each in modifiers), _word("h", head)]
        target += [_word("k", head) + ENDINGS[len(modifiers)], *(_word("m", each) for each in reversed(modifiers))]
    return " ".join(source), " ".join(target)


def write_corpus(folder: Path, pairs: int, seed: int = 0) -> None:
    """`train`, `dev` and `test`, no sentence in two of them, in a folder that is not there yet."""
    draw = random.Random(seed)
    seen: set[str] = set()
    with whole_folder(folder) as unfinished:
        for split, count in (("test", HELD_OUT), ("dev", HELD_OUT), ("train", pairs)):
            held_out = seen if split == "train" else set()
            found: list[tuple[str, str]] = []
            while len(found) < count:
                pair = sentence(draw)
                if pair[0] in held_out or (split != "train" and pair[0] in seen):
                    continue
                if split != "train":
                    seen.add(pair[0])
                found.append(pair)
            for side, language in enumerate((SOURCE, TARGET)):
                text = "".join(pair[side] + "\n" for pair in found)
                (unfinished / f"{split}.{language}").write_text(text, encoding="utf-8", newline="\n")


def _word(first: str, number: int) -> str:
    high, low = divmod(number, len(SYLLABLES))
    return first + SYLLABLES[low] + (SYLLABLES[-high - 1] if high else "")
