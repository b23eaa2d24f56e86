"""What a run wrote of sentences that have a reference: scored, and held against what another run wrote of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stackelberg.errors import DataError
from stackelberg.nmt.codec import Codec
from stackelberg.nmt.evaluation import Sentences
from stackelberg.nmt.recipe_data import corpora
from stackelberg.nmt.scores import Score, figures

if TYPE_CHECKING:
    from stackelberg.nmt.corpus import Corpus
    from stackelberg.nmt.run import TranslationRun


@dataclass(frozen=True)
class Written:
    """Translations, one for each sentence.

    Args:
        run: whose.
        of: what the sentences are called.
        tokenized: as the model wrote them.
        text: put together as people read it.
        sentences: with their references.
    """

    run: TranslationRun
    of: str
    tokenized: Sequence[str]
    text: Sequence[str]
    sentences: Sentences

    @classmethod
    def of_split(cls, run: TranslationRun, split: str) -> Written:
        """Of `dev` or `test`, as it was written when the run was trained."""
        tokenized, text = (run.translations(split, tokenized=each) for each in (True, False))
        its = corpora(run.recipe, run.folder)[split]
        return cls(run, split, tokenized, text, Sentences.of(its, Codec.load(run.model_folder)))

    @classmethod
    def of_corpus(cls, run: TranslationRun, corpus: Corpus, name: str) -> Written:
        """Of any sentences, translated now with the search of the run's recipe."""
        these = Sentences.of(corpus, Codec.load(run.model_folder))
        if not len(these):
            raise DataError(f"{corpus.name}: there is no sentence to score")
        found = run.translator.best(these.sources, run.search, prepared=True)
        return cls(run, name, [one.tokenized for one in found], [one.text for one in found], these)

    def figures(self) -> dict[str, Score]:
        """Both BLEUs and chrF."""
        return figures(self.tokenized, self.sentences.references, self.text, self.sentences.running)


def check_comparable(runs: Sequence[TranslationRun]) -> None:
    """Refuse runs whose translations are not of the same kind, before anything is translated."""
    if not runs:
        raise DataError("no runs were given")
    first, seen = runs[0], set()
    for run in runs:
        its, ours = run.recipe, first.recipe
        if run.folder.resolve() in seen:
            raise DataError(f"{run.folder} is given twice; a run is compared with another one")
        seen.add(run.folder.resolve())
        if (its.source, its.target) != (ours.source, ours.target):
            raise DataError(
                f"{run.folder} translates from {its.source} to {its.target} and {first.folder} from {ours.source} to "
                f"{ours.target}: no pairs to compare"
            )
        if its.score != ours.score:
            raise DataError(f"{run.folder} is scored by {its.score}, {first.folder} by {ours.score}")


def pairs(written: Sequence[Written]) -> tuple[dict[str, list[str]], list[str], bool]:
    """Translations of the same sentences by their runs' folders, the references, and whether all are tokenised."""
    check_comparable([each.run for each in written])
    first = written[0]
    tokenized = first.run.recipe.score == "tokenized"
    references = _references(first, tokenized)
    for each in written:
        if _references(each, tokenized) != references:
            raise DataError(
                f"{each.run.folder} and {first.run.folder} have other references of {each.of}: no pairs to compare"
            )
    systems = {str(each.run.folder): list(each.tokenized if tokenized else each.text) for each in written}
    return systems, references, tokenized


def _references(written: Written, tokenized: bool) -> list[str]:
    return list(written.sentences.references if tokenized else written.sentences.running)
