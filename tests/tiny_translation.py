"""Small corpora and recipes for the tests of translation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stackelberg.nmt.cleaning import Cleaning
from stackelberg.nmt.corpus import TextFiles
from stackelberg.nmt.prepare import Preparation, Prepared, prepare
from stackelberg.nmt.recipe import TranslationRecipe
from stackelberg.nmt.synthetic import SOURCE, TARGET, write_corpus
from stackelberg.nmt.text import TextForm


def write_pairs(
    folder: Path, stem: str, pairs: list[tuple[str, str]], ends: tuple[str, str] = ("en", "de")
) -> TextFiles:
    folder.mkdir(parents=True, exist_ok=True)
    for side, end in enumerate(ends):
        (folder / f"{stem}.{end}").write_text("".join(pair[side] + "\n" for pair in pairs), encoding="utf-8")
    return TextFiles.find(folder, stem, *ends)


def preparation(**changes: Any) -> Preparation:
    form = TextForm(source=SOURCE, target=TARGET, segmentation=changes.pop("segmentation", "words"))
    usual: dict[str, Any] = {"form": form, "cleaning": Cleaning(50, 9.0), "max_length": 60, "merges": 60}
    return Preparation(**{**usual, **changes})


def synthetic(home: Path, pairs: int = 300, **changes: Any) -> Prepared:
    """The made-up languages, prepared."""
    if not (home / "corpus").is_dir():
        write_corpus(home / "corpus", pairs)
    return prepare(TextFiles.find(home / "corpus", "train", SOURCE, TARGET), preparation(**changes), home / "cache")


def recipe(home: Path, **changes: Any) -> TranslationRecipe:
    """A run of a few steps on 300 pairs."""
    usual: dict[str, Any] = {
        "method": "plain",
        "synthetic": 300,
        "merges": 60,
        "batch_tokens": 150,
        "max_tokens": 160,
        "max_length": 60,
        "shapes": 3,
        "max_steps": 8,
        "warmup": 4,
        "evaluate_every": 4,
        "cache": str(home / "cache"),
        "beam": 2,
    }
    return TranslationRecipe.load("nmt/tiny", **{**usual, **changes})
