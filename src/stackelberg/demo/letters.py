"""Made-up letters to a hotel, in English: which desk should answer? Small, synthetic, and not solved by its own rows.

A letter complains about one or two things of one desk, and often praises a thing of another, which decides nothing.
What is hard is the gap between the rows to learn from and the rows to be judged by:

- in training some of a desk's words are frequent and others rare, the n-th of them in proportion to 1/√n, and the last
  are never seen; when judged, all are equally frequent;
- in training praise comes first and the complaint after it; when judged, it may be the other way round, and some words
  are misspelt;
- a tenth of the training rows have a wrong label.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

WRONG = 0.1  # share of the training rows with a wrong label
MISSPELT = 0.04  # share of the judged rows' words for things that are misspelt
PRAISED = 0.3  # share of letters that praise a thing of another desk
TWICE = 0.5  # share of letters with a second complaint
NEVER_SEEN = 2  # of each desk's words, the last: in no training row

DESKS = {
    "kitchen": (
        "breakfast dinner soup coffee menu waiter bread fish dessert salad lunch chef wine cheese sauce eggs pasta "
        "steak cake rice butter juice pancakes omelette"
    ).split(),
    "rooms": (
        "bed shower window pillows towels carpet bathroom heating balcony lamp door sheets curtains mattress wardrobe "
        "sink blanket mirror television ceiling toilet kettle bathtub hangers"
    ).split(),
    "accounts": (
        "bill invoice payment refund deposit price card receipt booking voucher discount tax fee charge total currency "
        "cancellation bank reservation cheque transfer surcharge rebate instalment"
    ).split(),
}
OPENINGS = ("", "dear sir ,", "last summer ,", "on our second visit ,", "as a regular guest ,", "with three children ,")
CLOSINGS = ("", "yours sincerely .", "many thanks .")
COMPLAINTS = (
    "the {} was wrong",
    "nobody could explain the {}",
    "we complain about the {}",
    "the {} was a disappointment",
    "we were not happy with the {}",
    "please look at the {}",
)
SECOND = ("and the {}", "and also the {}", "not to mention the {}")
PRAISE = ("the {} was fine", "we liked the {}", "nothing against the {}", "my sister praised the {}")


@dataclass(frozen=True, slots=True)
class Letter:
    """One row.

    Args:
        text: words and marks with a space between them.
        desk: of `DESKS`, that should answer it.
    """

    text: str
    desk: str


def learnt(rows: int, seed: int) -> list[Letter]:
    """Rows to train on."""
    draw = random.Random(f"learnt {seed}")
    found = []
    for _ in range(rows):
        letter = _letter(draw, judged=False)
        if draw.random() < WRONG:
            letter = Letter(letter.text, draw.choice([desk for desk in DESKS if desk != letter.desk]))
        found.append(letter)
    return found


def judged(rows: int, seed: int) -> list[Letter]:
    """Rows to be judged by."""
    draw = random.Random(f"judged {seed}")
    return [_letter(draw, judged=True) for _ in range(rows)]


def _letter(draw: random.Random, judged: bool) -> Letter:
    desk = draw.choice(list(DESKS))

    def thing(of: str) -> str:
        word = _word(draw, DESKS[of], judged)
        return _misspelt(draw, word) if judged and draw.random() < MISSPELT else word

    complaint = draw.choice(COMPLAINTS).format(thing(desk))
    if draw.random() < TWICE:
        complaint += " " + draw.choice(SECOND).format(thing(desk))
    if draw.random() < PRAISED:
        praise = draw.choice(PRAISE).format(thing(draw.choice([other for other in DESKS if other != desk])))
        last = judged and draw.random() < 0.5
        complaint = f"{complaint} , though {praise}" if last else f"{praise} , but {complaint}"
    parts = (draw.choice(OPENINGS), complaint, ".", draw.choice(CLOSINGS))
    return Letter(" ".join(part for part in parts if part), desk)


def _word(draw: random.Random, words: Sequence[str], judged: bool) -> str:
    if judged:
        return draw.choice(words)
    seen = words[:-NEVER_SEEN]
    return draw.choices(seen, [rank**-0.5 for rank in range(1, len(seen) + 1)])[0]


def _misspelt(draw: random.Random, word: str) -> str:
    """With two of its letters changed round."""
    at = draw.randrange(len(word) - 1)
    return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
