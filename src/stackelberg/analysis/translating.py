"""Translation runs compared: their BLEU as it is, and on resampled sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from stackelberg.analysis.comparison import Outcome, Scores
from stackelberg.analysis.resampling import draws
from stackelberg.analysis.statistics import RESAMPLES
from stackelberg.nmt.scores import resampled_bleu
from stackelberg.nmt.significance import pairs

if TYPE_CHECKING:
    from stackelberg.nmt.run import TranslationRun


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
    systems, references, tokenized = pairs(runs, split)
    counts = np.concatenate([np.ones((1, len(references))), *draws(len(references), resamples)])
    found = resampled_bleu(list(systems.values()), references, counts, tokenized=tokenized) / 100
    return Scores(tuple(outcomes), found[0], found[1:], {split: len(references)})
