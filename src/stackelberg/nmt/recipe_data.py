"""The corpus that a recipe means: where its sentences are, and what is done to them."""

from __future__ import annotations

from pathlib import Path

from stackelberg.errors import DataError, SettingError
from stackelberg.nmt.cleaning import Cleaning
from stackelberg.nmt.corpus import Corpus, HubRows, TextFiles
from stackelberg.nmt.prepare import Preparation
from stackelberg.nmt.recipe import TranslationRecipe
from stackelberg.nmt.synthetic import SOURCE, TARGET, write_corpus
from stackelberg.nmt.text import TextForm


def preparation(recipe: TranslationRecipe) -> Preparation:
    """How a recipe wants its corpus."""
    return Preparation(
        form=TextForm(
            source=recipe.source,
            target=recipe.target,
            moses=recipe.moses,
            lowercase=recipe.lowercase,
            segmentation=recipe.segmentation,
            prefix=recipe.prefix,
            source_code=recipe.source_code,
            target_code=recipe.target_code,
        ),
        cleaning=Cleaning(recipe.max_words, recipe.max_ratio),
        max_length=recipe.max_length,
        merges=recipe.merges,
        joint=recipe.joint,
        tokenizer=recipe.model if recipe.pretrained else None,
    )


def corpora(recipe: TranslationRecipe, folder: Path) -> dict[str, Corpus]:
    """The recipe's training, dev and test sentences; `folder` is the run's."""
    splits = {"train": recipe.train, "dev": recipe.dev, **({"test": recipe.test} if recipe.test else {})}
    languages = recipe.source, recipe.target
    if recipe.hub is not None:
        return {name: HubRows(recipe.hub, recipe.hub_config, split, languages) for name, split in splits.items()}
    if recipe.data is None and recipe.synthetic is None:
        raise DataError(
            f"the recipe does not say where its corpus is: give data=FOLDER with {recipe.train}.{recipe.source}, "
            f"{recipe.train}.{recipe.target} and the other files, or hub=NAME"
        )
    home = folder / "corpus" if recipe.data is None else Path(recipe.data)
    return {name: TextFiles.find(home, stem, *languages) for name, stem in splits.items()}


def invent(recipe: TranslationRecipe, folder: Path) -> None:
    """Write the made-up languages into the run's folder, for a recipe that wants them."""
    if (recipe.source, recipe.target) != (SOURCE, TARGET):
        raise SettingError(f"synthetic: its languages are {SOURCE} and {TARGET}; give source={SOURCE} target={TARGET}")
    if not (folder / "corpus").is_dir():
        assert recipe.synthetic is not None
        write_corpus(folder / "corpus", recipe.synthetic)
