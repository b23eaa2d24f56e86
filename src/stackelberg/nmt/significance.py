"""Runs of one corpus against each other."""

from __future__ import annotations

from collections.abc import Sequence

from stackelberg.nmt.run import TranslationRun
from stackelberg.nmt.scores import SAMPLES, Compared, paired_bootstrap
from stackelberg.nmt.written import Written, pairs


def bootstrap(runs: Sequence[TranslationRun], split: str = "test", *, samples: int = SAMPLES) -> dict[str, Compared]:
    """Runs against the first of them, by paired bootstrap over a split's sentences, in the BLEU of its recipe."""
    systems, references, tokenized = pairs([Written.of_split(run, split) for run in runs])
    return paired_bootstrap(systems, references, tokenized=tokenized, samples=samples)
