"""BLEU and chrF, all by sacrebleu: of tokens as multi-bleu.perl counts them, and of running text with its signature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stackelberg.errors import DataError, needs

SAMPLES = 1000


@dataclass(frozen=True)
class Score:
    """A figure, times 100, and the signature that says how it was computed."""

    value: float
    signature: str


@dataclass(frozen=True)
class Compared:
    """A system against a baseline, by paired bootstrap over sentences.

    Args:
        score: of the system.
        mean: over the bootstrap's samples.
        half_width: of the 95 % interval around it.
        p: of the difference from the baseline, 1 where there is none; None for the baseline itself.
    """

    score: float
    mean: float
    half_width: float
    p: float | None


def tokenized_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """BLEU-4 of texts that are tokenised: words are what spaces separate, and nothing is smoothed."""
    return _score(_tokenized(), hypotheses, references)


def sacre_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """BLEU-4 of running text, tokenised by sacrebleu's 13a."""
    return _score(_metrics().BLEU(), hypotheses, references)


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """The F-score of character n-grams (chrF2)."""
    return _score(_metrics().CHRF(), hypotheses, references)


def figures(
    hypotheses: Sequence[str], references: Sequence[str], restored: Sequence[str], running: Sequence[str]
) -> dict[str, Score]:
    """All three.

    Args:
        hypotheses: tokenised as the model writes them.
        references: tokenised alike.
        restored: the hypotheses as running text.
        running: the references as they are in their file.
    """
    return {
        "tokenized_bleu": tokenized_bleu(hypotheses, references),
        "sacrebleu": sacre_bleu(restored, running),
        "chrf": chrf(restored, running),
    }


def paired_bootstrap(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[str],
    *,
    tokenized: bool = False,
    samples: int = SAMPLES,
) -> dict[str, Compared]:
    """Each system's BLEU, and how likely so large a difference from the first one is by chance of the sentences.

    Args:
        systems: name to translations of the same sentences, the baseline first.
        references: of the sentences.
        tokenized: the texts are tokenised; words are what spaces separate.
        samples: that are drawn, with replacement.
    """
    for name, hypotheses in systems.items():
        _check(hypotheses, references, name)
    if len(systems) < 2:
        raise DataError(f"{len(systems)} system given; a comparison needs a baseline and at least one other")
    metrics = _metrics()
    from sacrebleu.significance import PairedTest

    named: list[Any] = [(name, list(hypotheses)) for name, hypotheses in systems.items()]
    metric = _tokenized() if tokenized else metrics.BLEU()
    results: Any = PairedTest(named, {"BLEU": metric}, [list(references)], test_type="bs", n_samples=samples)()[1]
    base = results["BLEU"][0].score
    return {
        name: Compared(
            found.score,
            found.mean,
            found.ci,
            1.0 if found.p_value is not None and found.score == base else found.p_value,  # sacrebleu says 0.001
        )
        for (name, _), found in zip(named, results["BLEU"], strict=True)
    }


def resampled_bleu(
    systems: Sequence[Sequence[str]], references: Sequence[str], counts: Any, *, tokenized: bool = False
) -> Any:
    """BLEU of several systems on resamples of the same sentences, times 100: resamples × systems.

    Args:
        systems: translations of the same sentences.
        references: of the sentences.
        counts: resamples × sentences, how often each was drawn.
        tokenized: the texts are tokenised; words are what spaces separate.
    """
    import numpy as np

    metric = _tokenized() if tokenized else _metrics().BLEU()
    columns = []
    for hypotheses in systems:
        _check(hypotheses, references, "the translations")
        found = [metric.corpus_score([given], [[wanted]]) for given, wanted in zip(hypotheses, references, strict=True)]
        sums = counts @ np.array([[*each.counts, *each.totals, each.sys_len, each.ref_len] for each in found])
        order = metric.max_ngram_order
        columns.append(
            [
                metric.compute_bleu(
                    [int(n) for n in row[:order]],
                    [int(n) for n in row[order : 2 * order]],
                    int(row[-2]),
                    int(row[-1]),
                    smooth_method=metric.smooth_method,
                    smooth_value=metric.smooth_value,
                ).score
                for row in sums
            ]
        )
    return np.array(columns).T


def _score(metric: Any, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    _check(hypotheses, references, "the translations")
    found = metric.corpus_score(list(hypotheses), [list(references)])
    return Score(float(found.score), str(metric.get_signature()))


def _check(hypotheses: Sequence[str], references: Sequence[str], name: str) -> None:
    if len(hypotheses) != len(references):
        raise DataError(f"{name}: {len(hypotheses):,} translations of {len(references):,} reference sentences")
    if not references:
        raise DataError("there is no sentence to score")


def _tokenized() -> Any:
    return _metrics().BLEU(tokenize="none", smooth_method="none", force=True)  # which looks tokenised, and is


def _metrics() -> Any:
    with needs("sacrebleu", extra="nmt"):
        from sacrebleu import metrics

    return metrics
