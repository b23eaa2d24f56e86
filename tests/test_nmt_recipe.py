"""Translation recipes: those of the paper word for word, and mistakes told before anything is done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stackelberg.cli import app
from stackelberg.errors import SettingError
from stackelberg.nmt.recipe import TranslationRecipe
from stackelberg.nmt.recipe_file import is_translation, shipped

PAPER = {  # table "Hyper-parameters for machine translation"
    "nmt/iwslt15-en-vi": (64_000, 1e-3, 1e-5, 1e-4, 0.1, 1, 10, 1.0),
    "nmt/iwslt14-de-en": (64_000, 1e-3, 1e-4, 1e-4, 0.3, 1, 9, 1.5),
    "nmt/iwslt16-fr-en": (64_000, 1e-3, 1e-5, 1e-5, 0.3, 1, 10, 2.0),
    "nmt/wmt16-en-de": (450_000, 1e-3, 1e-4, 1e-4, 0.3, 1, 4, 0.6),
}
MODELS = {"nmt/iwslt14-de-en": "iwslt", "nmt/wmt16-en-de": "big"}


def load(name: str | None = None, *overrides: str, **fields: Any) -> TranslationRecipe:
    return TranslationRecipe.load(name, overrides, **fields)


def test_what_is_shipped() -> None:
    assert set(shipped()) == {*PAPER, "nmt/multi30k-en-de", "nmt/tiny"}
    for name in shipped():
        recipe = load(name)
        assert recipe.form == "tuned" and recipe.method == "salt" and not recipe.gaps
        assert recipe.replace(method="plain").settings == {}


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_table_word_for_word(name: str) -> None:
    recipe = load(name, form="paper")
    settings = recipe.settings
    found = (
        recipe.batch_tokens, recipe.learning_rate, settings["step_size"], settings["init_std"], settings["epsilon"],
        settings["steps"], recipe.beam, recipe.length_penalty,
    )  # fmt: skip
    assert found == PAPER[name]
    assert recipe.model == MODELS.get(name, "base") and recipe.betas == (0.9, 0.98)
    assert settings["norm"] == "l2" and settings.get("per", "sentence") == "sentence" and "sides" not in settings
    assert recipe.space == "lookup" and any("α" in gap for gap in recipe.gaps)
    if name != "nmt/wmt16-en-de":
        assert recipe.merges == 10_000


def test_a_recipe_is_written_and_read(tmp_path: Path) -> None:
    recipe = load("nmt/iwslt14-de-en", "settings.epsilon=0.5", form="paper", data=str(tmp_path), max_steps=7)
    (tmp_path / "recipe.yaml").write_text(recipe.to_yaml())
    again = load(str(tmp_path / "recipe.yaml"))
    assert again.key() == recipe.key() and again.settings["epsilon"] == 0.5 and again.form == "paper"
    assert recipe.replace(save_every=3, cache="x").key() == recipe.key()
    assert recipe.replace(seed=1).key() != recipe.key()
    assert recipe.difference(recipe.replace(seed=1)) == "seed is 1 there and 0 here"


def test_which_half_a_recipe_is_of(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("source: en\ntarget: de\ndata: corpus\n")
    (tmp_path / "rte.yaml").write_text("task: rte\n")
    assert is_translation("nmt/tiny") and is_translation(tmp_path / "mine.yaml")
    assert not any(is_translation(each) for each in ("rte", "glue/rte", None, tmp_path / "rte.yaml", "nowhere.yaml"))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"source": "en"}, "does not say its target language"),
        ({"target": "en"}, "are one language"),
        ({"batch_size": 3}, "has no field 'batch_size'"),
        ({"epsilon": 0.1}, "settings.epsilon"),
        ({"moses": True}, "moses=True makes words of the text"),
        ({"segmentation": "bpe"}, "segmentation='bpe' is not known"),
        ({"data": "x", "hub": "y"}, "data and hub are both given"),
        ({"max_tokens": 100}, "a sentence must fit into"),
        ({"model": "some/t5", "segmentation": "pieces"}, "is for a model trained from scratch"),
        ({"max_ratio": 0.5}, "max_ratio=0.5 should be a number at least 1"),
        ({"label_smoothing": 1.0}, "label_smoothing=1.0 should be"),
        ({"betas": [0.9]}, "should be two numbers"),
        ({"average": 0}, "average=0 should be"),
        ({"space": "scaled"}, "space='scaled' is not known"),
        ({"method": "salt", "settings": {"steps": -1}}, "steps=-1"),
        ({"source": False}, "put quotes around it"),
        ({"hub_config": "en-de"}, "goes with hub"),
    ],
)
def test_mistakes_are_one_sentence(fields: dict[str, Any], said: str) -> None:
    usual = {} if fields == {"source": "en"} else {"source": "en", "target": "de"}
    with pytest.raises(SettingError, match=said.replace("(", r"\(")):
        load(**{**usual, **fields})


def test_unknown_recipes_and_forms() -> None:
    with pytest.raises(SettingError, match=r"no translation recipe of ours.*did you mean 'nmt/tiny'"):
        load("nmt/tiney")
    with pytest.raises(SettingError, match="form='paper': nmt/multi30k-en-de has tuned"):
        load("nmt/multi30k-en-de", form="paper")


def test_the_command_tells_what_is_missing(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["train", "nmt/multi30k-en-de", "--out", str(tmp_path / "run"), "-q"])
    assert "give data=FOLDER with train.en, train.de" in str(told.exception)
    told = CliRunner().invoke(
        app, ["train", "nmt/multi30k-en-de", "--data", str(tmp_path), "--out", str(tmp_path / "run"), "-q"]
    )
    assert "train.en is not there, nor with .gz" in str(told.exception)
    told = CliRunner().invoke(app, ["train", "nmt/tiny", "--epochs", "3"])
    assert "a translation recipe has no field 'epochs'" in str(told.exception)
