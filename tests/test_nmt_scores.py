"""Scores: sacrebleu's, checked against BLEU written out from its definition."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from stackelberg.errors import DataError
from stackelberg.nmt.scores import chrf, figures, paired_bootstrap, sacre_bleu, tokenized_bleu


def bleu_by_hand(hypotheses: list[str], references: list[str]) -> float:
    """Papineni et al. (2002) as multi-bleu.perl computes it: corpus counts, 4-grams, no smoothing."""
    right, there = [0] * 4, [0] * 4
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        h, r = hypothesis.split(), reference.split()
        for n in range(4):
            ours = Counter(tuple(h[i : i + n + 1]) for i in range(len(h) - n))
            theirs = Counter(tuple(r[i : i + n + 1]) for i in range(len(r) - n))
            right[n] += sum((ours & theirs).values())
            there[n] += max(0, len(h) - n)
    if not min(right):
        return 0.0
    length, wanted = (sum(len(each.split()) for each in side) for side in (hypotheses, references))
    brevity = min(1.0, math.exp(1 - wanted / length))
    return 100 * brevity * math.exp(sum(math.log(a / b) for a, b in zip(right, there, strict=True)) / 4)


CASES = {
    "equal": (["a b c d e", "f g h i"], ["a b c d e", "f g h i"]),
    "one wrong": (["a b c d e f", "f g h i"], ["a b c d x f", "f g h i"]),
    "short": (["a b c d", "f g h i"], ["a b c d e f g", "f g h i j"]),
    "long": (["a b c d e f g", "f g h i j"], ["a b c d", "f g h i"]),
    "clipped": (["the the the the the cat sat on a mat"], ["the cat sat on a mat the end of it"]),
    "no 4-gram": (["a b c", "d e f"], ["a b c", "d e f"]),
    "punctuation stays": (["a, b c-d . e &apos;s f"], ["a, b c-d . e &apos;s g"]),
    "case counts": (["The cat sat on the mat ."], ["the cat sat on the mat ."]),
    "empty translation": (["", "a b c d e"], ["x y", "a b c d e"]),
}


@pytest.mark.parametrize("case", CASES)
def test_bleu_of_tokens_is_multi_bleus(case: str) -> None:
    hypotheses, references = CASES[case]
    assert tokenized_bleu(hypotheses, references).value == pytest.approx(bleu_by_hand(hypotheses, references))


def test_a_figure_worked_out_on_paper() -> None:
    # 5/6, 3/5, 2/4, 1/3 right; as long as the reference
    found = tokenized_bleu(["a b c d x f"], ["a b c d e f"])
    assert found.value == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    assert "tok:none" in found.signature and "smooth:none" in found.signature


def test_running_text_is_tokenised_and_signed() -> None:
    found = sacre_bleu(["Hello, my good world!"], ["Hello , my good world !"])
    assert found.value == pytest.approx(100.0)
    assert found.signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert 0 < chrf(["abc def"], ["abc dex"]).value < 100
    assert set(figures(["a b"], ["a b"], ["a b"], ["a b"])) == {"tokenized_bleu", "sacrebleu", "chrf"}


def test_counts_must_agree() -> None:
    with pytest.raises(DataError, match="1 translations of 2 reference sentences"):
        tokenized_bleu(["a"], ["a", "b"])
    with pytest.raises(DataError, match="no sentence"):
        sacre_bleu([], [])
    with pytest.raises(DataError, match="a baseline and at least one other"):
        paired_bootstrap({"a": ["b"]}, ["b"])


def test_a_better_system_shows_and_an_equal_one_does_not() -> None:
    references = [f"the {i} cats sat on the {i + 1} mats in the sun" for i in range(60)]
    worse = [line.replace("sun", "rain") if i % 2 else line for i, line in enumerate(references)]
    twin = [line.replace("sun", "rain") if not i % 2 else line for i, line in enumerate(references)]
    found = paired_bootstrap(
        {"base": worse, "twin": twin, "right": references}, references, tokenized=True, samples=200
    )
    assert found["base"].p is None and found["base"].score == pytest.approx(tokenized_bleu(worse, references).value)
    assert found["right"].p is not None and found["right"].p < 0.01
    assert found["twin"].p is not None and found["twin"].p > 0.3
