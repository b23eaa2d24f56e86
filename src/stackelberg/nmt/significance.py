"""Runs of one corpus against each other."""

from __future__ import annotations

from collections.abc import Sequence

from stackelberg.errors import DataError
from stackelberg.nmt.codec import Codec
from stackelberg.nmt.evaluation import Sentences
from stackelberg.nmt.recipe_data import corpora
from stackelberg.nmt.run import TranslationRun
from stackelberg.nmt.scores import Compared, paired_bootstrap


def bootstrap(runs: Sequence[TranslationRun], split: str = "test", *, samples: int = 1000) -> dict[str, Compared]:
    """Runs against the first of them, by paired bootstrap over a split's sentences, in the BLEU of its recipe."""
    systems, references, tokenized = pairs(runs, split)
    return paired_bootstrap(systems, references, tokenized=tokenized, samples=samples)


def pairs(runs: Sequence[TranslationRun], split: str) -> tuple[dict[str, list[str]], list[str], bool]:
    """Each run's translations by its folder, what they should have been, and whether both are tokenised."""
    if not runs:
        raise DataError("no runs were given")
    first = runs[0]
    tokenized = first.recipe.score == "tokenized"
    references = []
    for run in runs:
        if run.recipe.score != first.recipe.score:
            raise DataError(f"{run.folder} is scored by {run.recipe.score}, {first.folder} by {first.recipe.score}")
        these = Sentences.of(corpora(run.recipe, run.folder)[split], Codec.load(run.model_folder))
        references.append(list(these.references if tokenized else these.running))
        if references[-1] != references[0]:
            raise DataError(f"{run.folder} and {first.folder} have other references of {split}: no pairs to compare")
    systems = {str(run.folder): run.translations(split, tokenized=tokenized) for run in runs}
    return systems, references[0], tokenized
