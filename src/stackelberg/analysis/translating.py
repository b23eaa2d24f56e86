"""Translation runs compared: their BLEU as it is, and on resampled sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stackelberg.analysis.resampling import draws
from stackelberg.analysis.scores import Outcome, Scores
from stackelberg.analysis.statistics import LEVEL, RESAMPLES, Floats, Interval
from stackelberg.nmt.run import MAIN
from stackelberg.nmt.scores import SAMPLES, paired_bootstrap, resampled_bleu
from stackelberg.nmt.written import Written, pairs

if TYPE_CHECKING:
    from stackelberg.nmt.run import TranslationRun


@dataclass(frozen=True, slots=True)
class Against:
    """A run's BLEU against another's of the same sentences: by the luck of the sentences, and of no seed.

    Args:
        baseline: the other run's folder.
        metric: which BLEU; that of the recipes.
        score: of the run, times 100 as all that follow.
        baseline_score: of the other.
        difference: the run's less the other's.
        interval: of the difference, sentences drawn anew (percentile bootstrap), its level corrected for how many
            others there are (Bonferroni).
        p: of sacrebleu's paired bootstrap, as it is: in effect of one side, and not corrected.
        samples: of sacrebleu's bootstrap.
    """

    baseline: str
    metric: str
    score: float
    baseline_score: float
    difference: float
    interval: Interval
    p: float
    samples: int

    @property
    def shown(self) -> bool:
        """Whether the difference is more than the luck of the sentences: the interval, which has two sides, says so."""
        return self.interval.low > 0 or self.interval.high < 0


def against(written: Written, others: Sequence[Written], *, samples: int = SAMPLES) -> list[Against]:
    """What a run wrote, held against what each of some others wrote of the same sentences."""
    systems, references, tokenized = pairs([written, *others])
    drawn = _drawn(list(systems.values()), references, tokenized, RESAMPLES)
    ours, *names = systems
    tail = (1 - LEVEL) / len(names) / 2
    made = []
    for place, name in enumerate(names, 1):
        both = {name: systems[name], ours: systems[ours]}
        found = paired_bootstrap(both, references, tokenized=tokenized, samples=samples)
        low, high = np.quantile(drawn[1:, 0] - drawn[1:, place], [tail, 1 - tail])
        score, base, p = found[ours].score, found[name].score, found[ours].p
        assert p is not None  # which only the baseline lacks
        interval = Interval(float(low), float(high), 1 - 2 * tail, "percentile")
        made.append(Against(name, MAIN[written.run.recipe.score], score, base, score - base, interval, p, samples))
    return made


def bleu_scores(
    runs: Sequence[TranslationRun], outcomes: Sequence[Outcome], split: str = "test", *, resamples: int = RESAMPLES
) -> Scores:
    """The BLEU of the runs' recipe, as a fraction like every other score.

    Args:
        runs: of one corpus.
        outcomes: one for each of them.
        split: whose sentences are drawn.
        resamples: how many.
    """
    systems, references, tokenized = pairs([Written.of_split(run, split) for run in runs])
    found = _drawn(list(systems.values()), references, tokenized, resamples) / 100
    return Scores(tuple(outcomes), found[0], found[1:], {split: len(references)})


def _drawn(systems: Sequence[Sequence[str]], references: Sequence[str], tokenized: bool, resamples: int) -> Floats:
    """BLEU of all sentences, then of every resample: (1 + resamples) × systems."""
    counts = np.concatenate([np.ones((1, len(references))), *draws(len(references), resamples)])
    return np.asarray(resampled_bleu(systems, references, counts, tokenized=tokenized))
