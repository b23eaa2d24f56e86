"""Translation runs scored and compared from the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import tiny_runs
from stackelberg.analysis.playing import comparison_of, plan, play
from stackelberg.analysis.translating import _drawn, against
from stackelberg.cli import app
from stackelberg.errors import DataError, SettingError, StackelbergError
from stackelberg.nlu.run import Run
from stackelberg.nmt.corpus import TextFiles
from stackelberg.nmt.run import TranslationRun
from stackelberg.nmt.scores import paired_bootstrap
from stackelberg.nmt.written import Written, pairs
from tiny_translation import recipe

CHANGES = {"synthetic": 1000, "merges": 200, "batch_tokens": 600, "max_tokens": 640, "warmup": 30, "beam": 2}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`good` and `poor`, runs of which one was trained ten times as long."""
    home = tmp_path_factory.mktemp("home")
    for name, steps in (("good", 120), ("poor", 12)):
        its = recipe(home, max_steps=steps, evaluate_every=steps, seed=len(name), average=1, **CHANGES)
        TranslationRun.train(its, home / name, quiet=True, tensorboard=False)
    return home


def invoke(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def refused(*words: str | Path) -> str:
    """The one sentence with which a command says no."""
    told = invoke(*words)
    assert isinstance(told.exception, StackelbergError), (told.output, told.exception)
    assert "\n" not in str(told.exception)
    return str(told.exception)


def test_the_scores_of_a_run_are_those_of_its_folder(home: Path) -> None:
    run = TranslationRun.open(home / "good")
    told = json.loads(invoke("evaluate", run.folder, "--json").stdout)
    assert list(told) == ["dev", "test"] == list(run.judged_by)
    for split, each in told.items():
        assert each["rows"] == 200
        for name in ("tokenized_bleu", "sacrebleu", "chrf"):
            assert each[name] == run.figures[f"{split}/{name}"]
            assert each["signatures"][name].startswith("nrefs:1|")
    shown = invoke("evaluate", run.folder, "--split", "test").stdout
    assert shown.startswith("aa–bb, test: 200 sentences") and "dev" not in shown
    assert f"{run.figures['test/chrf']:.2f}" in shown and "tok:none" in shown


def test_any_files_are_translated_and_scored(home: Path, tmp_path: Path) -> None:
    corpus = home / "good" / "corpus"
    told = invoke(
        "evaluate", home / "good", "--source", corpus / "test.aa", "--reference", corpus / "test.bb", "--json"
    )
    its = json.loads(told.stdout)["test.aa"]
    kept = TranslationRun.open(home / "good").figures
    assert its["rows"] == 200 and its["chrf"] == pytest.approx(kept["test/chrf"], abs=0.05)
    # of other files, other figures: references that are what the model wrote
    written = TranslationRun.open(home / "good").translations("test")
    (tmp_path / "own").write_text("".join(line + "\n" for line in written))
    its = json.loads(
        invoke(
            "evaluate", home / "good", "--source", corpus / "test.aa", "--reference", tmp_path / "own", "--json"
        ).stdout
    )
    assert its["test.aa"]["sacrebleu"] > 99


def test_a_run_is_held_against_another(home: Path) -> None:
    words = ("evaluate", home / "good", "--split", "test", "--against", home / "poor")
    (its,) = json.loads(invoke(*words, "--json").stdout)["test"]["against"]
    good, poor = (TranslationRun.open(home / name).figures["test/tokenized_bleu"] for name in ("good", "poor"))
    assert (its["score"], its["baseline_score"]) == (pytest.approx(good), pytest.approx(poor))
    assert its["difference"] == pytest.approx(good - poor) and its["difference"] > 5
    assert its["interval"]["low"] < its["difference"] < its["interval"]["high"] and its["interval"]["low"] > 0
    assert its["p"] < 0.01 and its["shown"] and its["metric"] == "tokenized_bleu"
    shown = invoke(*words).stdout
    assert f"points more than {home / 'poor'}, which is more than the luck of these 200 sentences" in shown
    back = invoke("evaluate", home / "poor", "--split", "test", "--against", home / "good").stdout
    assert f"points less than {home / 'good'}" in back and "= −" in back


def test_a_copy_is_no_better_and_several_others_are_corrected_for(home: Path) -> None:
    good, poor = (Written.of_split(TranslationRun.open(home / name), "test") for name in ("good", "poor"))
    twin = Written(poor.run, good.of, good.tokenized, good.text, good.sentences)  # wrote the same
    (found,) = against(good, [twin], samples=100)
    assert found.difference == 0 and found.p == 1 and not found.shown
    third = good.tokenized[:150] + poor.tokenized[150:]  # type: ignore[operator]
    run = TranslationRun(home / "third", good.run.recipe, {})
    mixed = Written(run, good.of, third, third, good.sentences)
    (alone,), (both, _) = against(good, [mixed], samples=100), against(good, [mixed, poor], samples=100)
    assert both.p == alone.p and both.difference == alone.difference
    assert (alone.interval.level, both.interval.level) == (0.95, 0.975)
    assert both.interval.low < alone.interval.low < alone.interval.high < both.interval.high


def test_equal_scores_are_no_difference() -> None:
    """For which sacrebleu itself gives the smallest p there is."""
    lines = ["a b c d e", "f g h i j"]
    found = paired_bootstrap({"one": lines, "two": lines}, lines, tokenized=True, samples=50)
    assert found["two"].p == 1.0 and found["one"].p is None


@pytest.mark.soak
def test_the_words_go_by_an_interval_since_p_has_one_side() -> None:
    """Of systems that are equally good, p finds a difference about twice as often as it should."""
    random = np.random.default_rng(0)
    references = [" ".join(f"w{n}" for n in random.integers(500, size=12)) for _ in range(60)]
    early, excluded, trials = 0, 0, 400
    for _ in range(trials):
        systems = {}
        for name in ("one", "two"):
            wrong = random.uniform(size=(60, 12)) < 0.3
            systems[name] = [
                " ".join("x" if spoilt else word for word, spoilt in zip(line.split(), row, strict=True))
                for line, row in zip(references, wrong, strict=True)
            ]
        p = paired_bootstrap(systems, references, tokenized=True, samples=300)["two"].p
        drawn = _drawn(list(systems.values()), references, True, 300)
        low, high = np.quantile(drawn[1:, 0] - drawn[1:, 1], [0.025, 0.975])
        early, excluded = early + (p is not None and p < 0.05), excluded + (low > 0 or high < 0)
    assert 0.02 < excluded / trials < 0.09 < early / trials < 0.15


def test_what_cannot_be_scored_is_a_sentence(home: Path, tmp_path: Path) -> None:
    good, corpus = home / "good", home / "good" / "corpus"
    source, reference = corpus / "test.aa", corpus / "test.bb"
    short, none = tmp_path / "short", tmp_path / "none"
    short.write_text("".join(reference.read_text().splitlines(keepends=True)[:-3]))
    none.write_text("")
    understood = Run.train(tiny_runs.recipe(), tmp_path / "understood", quiet=True, tensorboard=False).folder
    evaluate = ("evaluate", good)
    assert "has 200 lines and" in refused(*evaluate, "--source", source, "--reference", short)
    assert "has 197: lines of the same number" in refused(*evaluate, "--source", source, "--reference", short)
    assert "nowhere cannot be read" in refused(*evaluate, "--source", source, "--reference", tmp_path / "nowhere")
    assert "there is no sentence to score" in refused(*evaluate, "--source", none, "--reference", none)
    assert "is given without --reference; scores need both" in refused(*evaluate, "--source", source)
    assert "is given without --source; scores need both" in refused(*evaluate, "--reference", reference)
    both = refused(*evaluate, "--split", "dev", "--source", source, "--reference", reference)
    assert "--split dev and --source" in both
    assert "has no scores of 'tset'; it has dev, test" in refused(*evaluate, "--split", "tset")
    assert "translates; give --source FILE --reference FILE" in refused(*evaluate, "--data", corpus)
    assert "is given twice" in refused(*evaluate, "--against", good)
    assert "is no run" in refused(*evaluate, "--against", tmp_path)
    assert "is a run of understanding" in refused(*evaluate, "--against", understood)
    for flag, said in (("--source", source), ("--reference", reference), ("--against", good)):
        assert f"{flag} {said} is for runs of translation" in refused("evaluate", understood, flag, said)
    assert "is no run" in refused("evaluate", tmp_path, "--against", good)


def test_runs_without_pairs_are_a_sentence(home: Path, tmp_path: Path) -> None:
    good = TranslationRun.open(home / "good")
    other = tmp_path / "other"
    shutil.copytree(home / "poor", other)
    path = other / "corpus" / "test.bb"
    path.write_text(path.read_text().replace(path.read_text().split()[0], "x", 1))
    assert "have other references of test: no pairs" in refused(
        "evaluate", good.folder, "--split", "test", "--against", other
    )
    shutil.rmtree(other / "corpus")
    assert "is not there, nor with .gz" in refused("evaluate", good.folder, "--split", "test", "--against", other)
    written = Written.of_split(good, "test")
    for changes, said in (
        ({"source": "cc"}, "translates from cc to bb and .* from aa to bb: no pairs"),
        ({"score": "sacrebleu"}, "is scored by sacrebleu"),
    ):
        stranger = TranslationRun(other, good.recipe.replace(**changes), {})
        with pytest.raises(DataError, match=said):
            pairs([written, Written(stranger, "test", written.tokenized, written.text, written.sentences)])
    torn = tmp_path / "torn"
    shutil.copytree(good.folder, torn)
    (torn / "translations" / "scores.json").write_text('{"dev": {')
    assert "is not as a run writes it" in refused("evaluate", torn)


def test_the_sentences_of_a_file_are_pairs_too(home: Path) -> None:
    files = TextFiles.find(home / "good" / "corpus", "dev", "aa", "bb")
    good, poor = (Written.of_corpus(TranslationRun.open(home / name), files, "dev.aa") for name in ("good", "poor"))
    (found,) = against(good, [poor], samples=100)
    kept = TranslationRun.open(home / "good").figures["dev/tokenized_bleu"]
    assert found.score == pytest.approx(kept, abs=0.1) and found.difference > 5


def words_of(home: Path, out: Path, *more: str) -> list[str | Path]:
    fields = recipe(home, max_steps=6, evaluate_every=3, warmup=4)
    (home / "small.yaml").write_text(fields.replace(seed=0).to_yaml())
    return ["compare", home / "small.yaml", "--methods", "plain,r3f", "--out", out, "--quiet", *more]


def test_methods_and_seeds_of_a_translation_recipe_are_compared(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = []
    own = TranslationRun._train.__func__  # type: ignore[attr-defined]

    def train(cls: type[TranslationRun], *given: object) -> TranslationRun:
        trained.append(given[1])
        return own(cls, *given)

    monkeypatch.setattr(TranslationRun, "_train", classmethod(train))
    assert invoke(*words_of(home, tmp_path, "--seeds", "1")).exit_code == 0
    said = invoke(*words_of(home, tmp_path, "--seeds", "2"))
    assert said.exit_code == 0, said.exception
    assert len(trained) == len(set(trained)) == 4  # two of them by the first command, and not again
    found = json.loads((tmp_path / "comparison.json").read_text())
    assert (
        found["title"] == "aa–bb by tiny" and found["metrics"] == ["tokenized_bleu"] and found["rows"] == {"test": 200}
    )
    assert [each["method"] for each in found["methods"]] == ["plain", "r3f"] and found["baseline"] == "plain"
    for each in found["methods"]:
        runs = [
            TranslationRun.open(tmp_path / run["folder"]) for run in found["runs"] if run["method"] == each["method"]
        ]
        figures = [run.figures["test/tokenized_bleu"] / 100 for run in runs]
        assert each["scores"] == pytest.approx(figures) and each["score"]["mean"] == pytest.approx(np.mean(figures))
        assert each["cost"] > 0 and each["ece"] is None
    assert found["pairs"][0]["difference"]["seeds"] == 2
    assert any("tokenized_bleu by sacrebleu: nrefs:1|" in each for each in found["sentences"])
    assert "r3f" in (tmp_path / "comparison.md").read_text() and "× plain" in said.stdout


def test_a_translation_run_that_diverges_is_left_out(home: Path, tmp_path: Path) -> None:
    from stackelberg.errors import NonFiniteLossError

    def train(its: object, folder: Path) -> TranslationRun:
        if folder.parent.name == "r3f":
            raise NonFiniteLossError("the loss is nan at step 3")
        shutil.copytree(home / "poor", folder)
        return TranslationRun.open(folder)

    recipes = plan("nmt/tiny", ["plain", "r3f"], [4], overrides=["max_steps=4"])
    assert [type(each).__name__ for each in recipes] == ["TranslationRecipe"] * 2
    found = comparison_of(play(recipes, tmp_path, train), tmp_path, "plain")
    assert [each.method for each in found.methods] == ["plain"]
    assert "r3f with seed 4 diverged and is left out: the loss is nan at step 3." in found.remarks


def test_wrong_comparisons_of_translations_are_a_sentence(home: Path, tmp_path: Path) -> None:
    assert "are two recipes" in refused("compare", "nmt/tiny", "--recipe", "nmt/tiny", "--out", tmp_path)
    assert "are two recipes" in refused("compare", "nmt/tiny", "rte", "--out", tmp_path)
    assert "has no field 'task'" in refused("compare", "nmt/tiny", "--task", "rte", "--out", tmp_path)
    assert "use --methods and --seeds" in refused("compare", "nmt/tiny", "seed=3", "--out", tmp_path)
    assert "nmt/tinny" in refused("compare", "nmt/tinny", "--out", tmp_path)
    with pytest.raises(SettingError, match="batch_size"):
        plan("nmt/tiny", ["plain"], [0], overrides=["batch_size=3"])
    assert not list(tmp_path.iterdir())
