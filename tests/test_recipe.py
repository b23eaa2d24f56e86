"""Recipes: the shipped ones, what is made of files and flags, and one sentence for everything that is wrong."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

import tiny_runs
from stackelberg import METHODS, SettingError, StackelbergError
from stackelberg.nlu.recipe import Recipe
from stackelberg.nlu.recipe_file import shipped

GLUE = ("cola", "sst-2", "mrpc", "qqp", "sts-b", "mnli", "qnli", "rte", "wnli")


def raw(name: str) -> dict[str, Any]:
    """A shipped file as YAML has it."""
    found: dict[str, Any] = yaml.safe_load(shipped()[name].read_text(encoding="utf-8"))
    return found


# --------------------------------------------------------------------------------------------------
# What is shipped


def test_there_is_a_recipe_for_every_task_of_glue_and_anli() -> None:
    assert set(shipped()) == {*(f"glue/{task}" for task in GLUE), "anli"}


@pytest.mark.parametrize("name", [*GLUE, "anli"])
@pytest.mark.parametrize("form", ["tuned", "paper"])
def test_every_recipe_loads_with_every_method(name: str, form: str) -> None:
    recipes = {method: Recipe.load(name, form=form, method=method) for method in METHODS}
    assert {recipe.task for recipe in recipes.values()} == {name}
    assert len({recipe.key() for recipe in recipes.values()}) == len(METHODS)
    assert all(recipe.form == form and recipe.method == method for method, recipe in recipes.items())


@pytest.mark.parametrize("name", [*(f"glue/{task}" for task in GLUE), "anli"])
def test_the_paper_form_is_the_papers_appendix(name: str) -> None:
    recipe = Recipe.load(name, form="paper")
    assert recipe.betas == (0.9, 0.98) and recipe.weight_decay == 0  # Adam
    assert recipe.epochs == 6 and recipe.patience is not None and recipe.max_steps is None
    assert recipe.clip == 1 and recipe.head_dropout == 0.1
    assert recipe.method == "salt"
    assert recipe.settings == {
        "weight": 1.0, "epsilon": 1.0, "norm": "l2", "steps": 2, "ascent": "adam", "step_size": 1e-5, "init_std": 1e-5,
    }  # fmt: skip
    assert recipe.grid == {
        "learning_rate": [5e-5, 1e-4, 5e-4],
        "batch_size": [4, 8, 16, 32],
        "settings.step_size": [1e-5, "learning_rate"],
        "settings.init_std": [1e-5, 1e-4],
    }
    assert recipe.learning_rate in recipe.grid["learning_rate"] and recipe.batch_size in recipe.grid["batch_size"]
    gaps = " ".join(recipe.gaps)
    for missing in ("α", "learning rate", "batch size", "η", "σ", "stops early"):
        assert missing in gaps


def test_files_repeat_each_other_exactly() -> None:
    """Ten files with the same two sections: a change to one is a change to all."""
    papers = []
    for name in shipped():
        paper = raw(name)["forms"]["paper"]
        paper["gaps"] = [gap for gap in paper["gaps"] if "tokens here" not in gap and "ANLI" not in gap]
        papers.append(paper)
    assert all(paper == papers[0] for paper in papers)
    tuned = [{k: v for k, v in raw(name)["forms"]["tuned"].items() if k != "epochs"} for name in shipped()]
    assert all(form == tuned[0] for form in tuned)


def test_tuned_is_the_default_and_says_that_nothing_was_searched() -> None:
    assert Recipe.load("rte").form == "tuned" and Recipe.load("rte") == Recipe.load("glue/rte") == Recipe.load("RTE")
    for path in shipped().values():
        assert "nobody has searched" in path.read_text(encoding="utf-8")


def test_rte_is_not_cut_at_128() -> None:
    assert Recipe.load("rte").max_length == Recipe.load("rte", form="paper").max_length == 256


def test_another_method_comes_with_its_own_settings() -> None:
    recipe = Recipe.load("rte", form="paper")
    assert recipe.replace(method="plain").settings == {} == Recipe.load("rte", form="paper", method="plain").settings
    assert recipe.replace(method="freelb").settings["form"] == "regularized"
    assert recipe.replace(method="vat", settings={"steps": 1}).settings == {"steps": 1}
    assert recipe.replace(seed=3).settings == recipe.settings
    with pytest.raises(SettingError, match="seeds"):
        recipe.replace(seeds=3)


# --------------------------------------------------------------------------------------------------
# Files and flags


def test_overrides_beat_flags_and_flags_beat_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("task: rte\nepochs: 1\nseed: 1\nlearning_rate: 5e-5\nmethods: {vat: {epsilon: 0.5, steps: 2}}\n")
    recipe = Recipe.load(path, ["seed=3", "settings.steps=4"], seed=2, epochs=2, method="vat", model=None)
    assert (recipe.seed, recipe.epochs, recipe.learning_rate) == (3, 2.0, 5e-5)
    assert recipe.settings == {"epsilon": 0.5, "steps": 4}
    assert Recipe.load(None, ["patience=2", "patience=null"], task="rte").patience is None
    assert Recipe.load("snli").task == "snli"  # a task without a recipe
    assert Recipe.load("rte", ["settings={epsilon: 2}"]).settings["epsilon"] == 2


@pytest.mark.parametrize("said", ["5e-5", "5.0e-5", "0.00005", "5E-5", "+5e-05"])
def test_numbers_as_people_write_them(said: str) -> None:
    assert Recipe.load("rte", [f"learning_rate={said}"]).learning_rate == 5e-5


@pytest.mark.parametrize("form", ["tuned", "paper"])
def test_a_recipe_reads_back_as_it_was_written(form: str, tmp_path: Path) -> None:
    recipe = Recipe.load("sts-b", ["settings.sides=[source]"], form=form, seed=5, model=tiny_runs.model())
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe.to_yaml(), encoding="utf-8")
    again = Recipe.load(path)
    assert again.key() == recipe.key() and again.form == form and again.to_yaml().endswith(recipe.to_yaml()[-40:])
    own = Recipe(train=tiny_runs.own_file(), text="review", label="verdict", labels=("yes", "no", "may be"))
    path.write_text(own.to_yaml(), encoding="utf-8")
    assert Recipe.load(path) == dataclasses.replace(own, train=str(Path(tiny_runs.own_file()).resolve()))


CHANGES: dict[str, Any] = {
    "task": "mrpc", "data": "elsewhere", "train": "a.csv", "dev": "b.csv", "test": "c.csv", "text": "x", "pair": "y",
    "label": "z", "kind": "score", "hold_out": 0.2, "model": "other", "method": "vat", "settings": {"weight": 2},
    "seed": 1, "epochs": 4, "max_steps": 7, "batch_size": 8, "accumulate": 2, "learning_rate": 1e-3,
    "betas": (0.8, 0.9), "weight_decay": 0.3, "warmup": 0.3, "schedule": "cosine", "clip": 0.3,
    "precision": "bfloat16", "weights": "bfloat16", "max_length": 33, "head_dropout": 0.3, "patience": 3,
    "evaluate_every": 5,
}  # fmt: skip


def test_the_key_knows_everything_that_decides_and_nothing_else(tmp_path: Path) -> None:
    base = Recipe(task="rte", test="mine.csv")  # with a file, which may have columns of other names
    fields = {f.name for f in dataclasses.fields(Recipe)}
    assert set(CHANGES) == fields - {*Recipe.ABOUT, "labels", "metrics"}
    keys = {name: dataclasses.replace(base, **{name: value}).key() for name, value in CHANGES.items()}
    assert len({base.key(), *keys.values()}) == len(CHANGES) + 1
    own = Recipe(train="a.csv")
    assert len({own.key(), own.replace(labels=("a", "b")).key(), own.replace(metrics=("f1",)).key()}) == 3
    said = {"form": "paper", "gaps": ("a",), "grid": {"seed": [1]}, "methods": {"vat": {"steps": 1}}}
    assert base.key() == base.replace(**said).key()
    assert Recipe(task="rte", settings={"weight": 1}).key() == Recipe(task="RTE", settings={"weight": 1.0}).key()
    assert "seed is 1 there and 0 here" in base.difference(base.replace(seed=1))


def test_the_key_knows_folders_by_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    near = Recipe(task="rte", data="glue", model="model")
    assert near.key() == Recipe(task="rte", data=str(tmp_path / "glue"), model=str(tmp_path / "model")).key()
    assert near.key() != Recipe(task="rte", data="glue", model="another").key()


# --------------------------------------------------------------------------------------------------
# What is refused


@pytest.mark.parametrize(
    ("source", "overrides", "sentence"),
    [
        ("rtee", [], "recipe 'rtee' is no file.*did you mean 'rte'"),
        ("rte", ["learningrate=1"], "no field 'learningrate'.*did you mean 'learning_rate'"),
        ("rte", ["epsilon=1"], "no field 'epsilon'.*settings.epsilon"),
        ("rte", ["K=1"], "no field 'K'.*settings.steps"),
        ("rte", ["epochs"], "'epochs' should be key=value"),
        ("rte", ["=3"], "'=3' should be key=value"),
        ("rte", ["a.b=1"], "no field 'a'"),
        ("rte", ["epochs.b=1"], "only settings has a dot"),
        ("rte", ["epochs=["], "epochs=…, line 1: not YAML"),
        ("rte", ["epochs=three"], "epochs='three' should be a number above 0"),
        ("rte", ["epochs=0"], "epochs=0 should be a number above 0"),
        ("rte", ["epochs=.nan"], "epochs=nan should be a number"),
        ("rte", ["epochs=true"], "epochs=True should be a number"),
        ("rte", ["batch_size=0"], "batch_size=0 should be a whole number of at least 1"),
        ("rte", ["batch_size=2.5"], "batch_size=2.5 should be a whole number"),
        ("rte", ["max_steps=0"], "max_steps=0 should be"),
        ("rte", ["seed=-1"], "seed=-1 should be"),
        ("rte", ["warmup=2"], "warmup=2 should be"),
        ("rte", ["betas=[0.9]"], r"betas=\[0.9\] should be two numbers"),
        ("rte", ["betas=[0.9, 1]"], r"betas\[1\]=1 should be"),
        ("rte", ["precision=float61"], "precision='float61' is not known.*did you mean 'float16'"),
        ("rte", ["task=rtf"], "task='rtf' is not known.*did you mean 'rte'"),
        ("rte", ["model=no"], "model=False should be a text"),
        ("rte", ["labels=[a, b]"], "labels are of a task of your own"),
        ("rte", ["method=slat"], "method='slat' is not known.*did you mean 'salt'"),
        ("rte", ["settings.epsilon=0"], "epsilon=0 should be a number above 0"),
        ("rte", ["settings.epsilom=1"], "no setting 'epsilom'.*did you mean 'epsilon'"),
        ("rte", ["settings.alpha=1"], "no setting 'alpha'.*called 'weight'"),
        ("rte", ["settings=3"], "settings=3 should be names and values"),
        ("rte", ["settings.task=rte"], "settings.task"),
        ("rte", ["form=papr"], "form='papr': glue/rte has tuned, paper.*did you mean 'paper'"),
        ("snli", ["form=paper"], "snli has no forms"),
        (None, [], "there is nothing to train on"),
        (None, ["train=a.csv", "data=b"], "data='b' is a folder of named tasks"),
        (None, ["train=a.csv", "labels=[yes, no]"], "put quotes around"),
        (None, ["train=a.csv", "metrics=[rouge]"], "metrics='rouge' is not known"),
        (None, ["train=a.csv", "metrics=[]"], r"metrics=\[\] should name at least one"),
        (None, ["train=a.csv", "kind=scores"], "kind='scores' is not known.*did you mean 'score'"),
        ("nowhere.yaml", [], "recipe nowhere.yaml is not there"),
    ],
)
def test_one_sentence_for_what_is_wrong(source: str | None, overrides: list[str], sentence: str) -> None:
    with pytest.raises(StackelbergError, match=sentence) as raised:
        Recipe.load(source, overrides)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("task: rte\nepochs: [\n", "line 3: not YAML"),
        ("task: rte\n\tepochs: 3\n", "line 2: not YAML"),
        ("task: rte\nepochs: 1\nepochs: 2\n", "line 3: not YAML .'epochs' is there twice"),
        ("task: rte\n? [a, b]\n: 3\n", "line 2: not YAML"),
        ("- rte\n", "should hold names and values"),
        ("3: rte\n", "should hold names and values"),
        ("task: !!python/object:os.system x\n", "line 1: not YAML"),
        ("task: 2020-99-99\n", "not a value that a recipe can have"),
        ("", "is empty"),
        ("task: rte\nforms: 3\n", "forms should be"),
        ("task: rte\nforms: {tuned: {epoch: 3}}\n", "form tuned has no field 'epoch'.*did you mean 'epochs'"),
        ("task: rte\nmethods: {salt: 3}\n", "methods.salt=3 should be names and values"),
        ("[" * 5000, "not a value|not YAML"),
    ],
)
def test_a_file_that_is_no_recipe(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(StackelbergError, match=sentence) as raised:
        Recipe.load(path)
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)


def test_a_folder_and_bytes_are_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="is a folder; give a YAML file"):
        Recipe.load(tmp_path)
    (tmp_path / "a.yaml").write_bytes(b"task: \xff\xfe\n")
    with pytest.raises(StackelbergError, match="line 1: byte 0xff is not UTF-8"):
        Recipe.load(tmp_path / "a.yaml")
