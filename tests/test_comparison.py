"""Comparisons: no more is said than is shown, and whatever is killed goes on to the same table."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from stackelberg.analysis import AnalysisError
from stackelberg.analysis.comparison import Comparison, compare
from stackelberg.analysis.comparison_report import as_data, difference_table, markdown, score_table, sentences
from stackelberg.analysis.playing import Played, comparison_of, plan, play, run_folder, seeds_of
from stackelberg.analysis.scores import Judged, Outcome
from stackelberg.cli import app
from stackelberg.errors import NonFiniteLossError, SettingError
from stackelberg.nlu import find_task
from stackelberg.nlu.metrics import METRICS
from stackelberg.nlu.predictions import as_tsv
from stackelberg.nlu.recipe import Recipe
from stackelberg.nlu.recipe_data import read_data
from stackelberg.nlu.run import Run
from stackelberg.storage import write_whole
from tiny import finished_run, save_model, write_tsv
from tiny import sentences as drawn_sentences

ROWS = 400
TARGETS = np.random.default_rng(0).integers(2, size=ROWS)


def outcome(method: str, seed: int, right: float, *, alike: bool = False, **changes: object) -> Outcome:
    """A run that gets such a share of the rows right, by luck of its own or the same rows in every seed."""
    luck = np.random.default_rng(0 if alike else [seed, *method.encode()]).uniform(size=ROWS) < right
    made = Outcome(method, seed, f"key{seed}", f"{method}/{seed}", {"dev": np.where(luck, TARGETS, 1 - TARGETS)})
    return replace(made, **changes)  # type: ignore[arg-type]


def compared(shares: dict[str, float], seeds: int = 5, **arguments: object) -> Comparison:
    outcomes = [outcome(method, seed, share) for seed in range(seeds) for method, share in shares.items()]
    return compare(outcomes, [Judged("dev", TARGETS)], ["accuracy"], title="Test", **arguments)  # type: ignore[arg-type]


def test_a_large_difference_is_shown_and_a_small_one_is_not() -> None:
    found = compared({"plain": 0.70, "vat": 0.71, "salt": 0.85})
    by_name = {pair.method: pair for pair in found.pairs}
    assert by_name["salt"].shown and not by_name["vat"].shown and found.best == "salt"
    assert by_name["salt"].p is not None and by_name["salt"].p < 0.001
    said = "\n".join(sentences(found))
    assert "salt scored" in said and "which is shown (p < 0.001 after Holm's correction)" in said
    assert "not shown to be more than luck" in said and "salt is shown to be better than every other method" in said
    header, rows = score_table(found)
    assert [row[1].startswith("**") for row in rows] == [False, False, True] and header[1] == "accuracy (%)"
    assert "5 seeds on 400 rows cannot show a difference smaller than" in said


def test_the_best_is_not_marked_when_it_is_luck() -> None:
    found = compared({"plain": 0.70, "salt": 0.71})
    assert found.best is None and "none is marked as the best" in "\n".join(sentences(found))
    assert not any("**" in cell for row in score_table(found)[1] for cell in row)
    # better than plain, and not shown to be better than each other
    found = compared({"plain": 0.70, "vat": 0.85, "salt": 0.86})
    assert all(pair.shown for pair in found.pairs) and found.best is None


def test_what_cannot_be_shown_is_what_is_not_shown() -> None:
    found = compared({"plain": 0.70, "vat": 0.72, "smart": 0.71})
    for pair in found.pairs:
        assert pair.least is not None and pair.found is not None and pair.difference is not None
        assert pair.least < pair.found
        assert (abs(pair.difference.value) > pair.least) == (pair.p is not None and pair.p < 0.05)
    # Holm's first step is at 5 % over the number of comparisons
    alone = compared({"plain": 0.70, "vat": 0.72})
    assert alone.pairs[0].least < found.pairs[0].least  # type: ignore[operator]


def test_one_seed_and_equal_runs_are_sentences() -> None:
    one = compared({"plain": 0.7, "salt": 0.8}, seeds=1)
    said = "\n".join(sentences(one))
    assert "with the one seed both have" in said and "play at least three" in said
    assert one.best is None and not one.pairs[0].shown and "nan" not in markdown(one)
    outcomes = [outcome(method, seed, 0.7, alike=True) for seed in range(3) for method in ("plain", "vat")]
    same = compare(outcomes, [Judged("dev", TARGETS)], ["accuracy"], title="Test")
    assert "vat and plain have the same score in every seed" in sentences(same)[0] and "nan" not in markdown(same)
    alone = compared({"plain": 0.7}, seeds=2)
    assert not alone.pairs and "±" in markdown(alone) and "every other" not in "\n".join(sentences(alone))
    apart = [
        Outcome(method, seed, "", "", {"dev": TARGETS if method == "salt" else 1 - TARGETS})
        for seed in range(2)
        for method in ("plain", "salt")
    ]
    found = compare(apart, [Judged("dev", TARGETS)], ["accuracy"], title="Test")
    assert "no spread to judge the difference by" in sentences(found)[0] and not found.pairs[0].shown


def test_runs_without_a_seed_in_common() -> None:
    found = compare(
        [outcome("plain", 0, 0.7), outcome("salt", 1, 0.7)], [Judged("dev", TARGETS)], ["accuracy"], title="Test"
    )
    assert "no seed in common" in sentences(found)[0] and difference_table(found)[1][0][1] == "–"


def test_cost_is_of_the_same_seed_on_the_same_machine() -> None:
    outcomes = [
        outcome("plain", 0, 0.7, seconds_per_step=0.1, machine="a"),
        outcome("salt", 0, 0.7, seconds_per_step=0.35, machine="a"),
        outcome("plain", 1, 0.7, seconds_per_step=0.2, machine="a"),  # a slow hour, slow for both
        outcome("salt", 1, 0.7, seconds_per_step=0.7, machine="a"),
        outcome("vat", 0, 0.7, seconds_per_step=0.01, machine="b"),  # another machine: nothing to compare with
    ]
    found = compare(outcomes, [Judged("dev", TARGETS)], ["accuracy"], title="Test")
    costs = {each.method: each.cost for each in found.methods}
    assert costs["salt"] == pytest.approx(3.5) and costs["plain"] == 1.0 and costs["vat"] is None
    assert [row[3] for row in score_table(found)[1]] == ["1.00 × plain", "3.50 × plain", "–"]


def test_calibration_is_compared_by_seed() -> None:
    outcomes = [
        outcome(method, seed, 0.7, ece=0.1 + 0.01 * seed - 0.05 * (method == "salt"))
        for seed in range(3)
        for method in ("plain", "salt")
    ]
    pair = compare(outcomes, [Judged("dev", TARGETS)], ["accuracy"], title="Test").pairs[0]
    assert pair.ece == pytest.approx(-0.05) and pair.ece_interval is not None
    assert pair.ece_interval.margin == pytest.approx(0, abs=1e-9)
    assert difference_table(compared({"plain": 0.7, "salt": 0.7}))[1][0][-1] == "–"  # scores have no calibration


def test_several_splits_and_metrics_are_one_score() -> None:
    targets = {"dev_matched": TARGETS, "dev_mismatched": TARGETS[:150]}
    outcomes = [
        Outcome(
            method,
            seed,
            "",
            "",
            {name: outcome(method, seed, 0.7).predictions["dev"][: len(wanted)] for name, wanted in targets.items()},
        )
        for seed in range(2)
        for method in ("plain", "salt")
    ]
    judged = [Judged(name, wanted) for name, wanted in targets.items()]
    found = compare(outcomes, judged, ["accuracy", "f1"], title="MNLI")
    by_hand = [
        METRICS[name](outcomes[0].predictions[split], wanted)
        for split, wanted in targets.items()
        for name in ("accuracy", "f1")
    ]
    assert found.methods[0].scores[0] == pytest.approx(np.mean(by_hand))
    assert "accuracy and f1, mean of dev_matched and dev_mismatched" in markdown(found)


def test_data_can_be_read_back_as_json() -> None:
    data = json.loads(json.dumps(as_data(compared({"plain": 0.7, "salt": 0.8})), allow_nan=False))
    assert data["baseline"] == "plain" and len(data["runs"]) == 10 and data["pairs"][0]["method"] == "salt"
    assert "predictions" not in data["runs"][0] and data["sentences"]


def test_wrong_comparisons_are_one_sentence() -> None:
    with pytest.raises(SettingError, match="baseline"):
        compared({"plain": 0.7}, baseline="vat")
    with pytest.raises(AnalysisError, match="twice"):
        compare([outcome("vat", 0, 0.5)] * 2, [Judged("dev", TARGETS)], ["accuracy"], title="", baseline="vat")
    with pytest.raises(AnalysisError, match="no finite score"):
        diverged = Outcome("plain", 0, "", "plain/0", {"dev": np.full(ROWS, np.nan)})
        compare([diverged], [Judged("dev", TARGETS * 1.0)], ["pearson"], title="")


# A comparison of runs that take no time: everything is real but the training.


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    save_model(home / "model")
    write_tsv(home / "data" / "SST-2" / "train.tsv", ("sentence", "label"), drawn_sentences(64))
    write_tsv(home / "data" / "SST-2" / "dev.tsv", ("sentence", "label"), drawn_sentences(100, seed=1))
    return home


def recipes_in(home: Path, methods: str = "plain,vat,salt", seeds: int = 3) -> list[Recipe]:
    return plan(
        "sst-2",
        methods.split(","),
        range(seeds),
        overrides=["max_steps=12", "learning_rate=0.01", "batch_size=16"],
        settings=["salt.weight=2.0"] if "salt" in methods else [],
        data=str(home / "data"),
        model=str(home / "model"),
    )


def fake_train(recipe: Recipe, folder: Path, pause: Callable[[], None] = lambda: None) -> Run:
    """What `Run.train` leaves behind, answers drawn by the recipe's key; pauses wherever it may be killed."""
    if (folder / "result.json").is_file():
        return Run.open(folder)
    folder.mkdir(parents=True, exist_ok=True)
    pause()
    task, examples = find_task("sst-2"), read_data(recipe)["dev"]
    random = np.random.default_rng(int(recipe.key(), 16))
    first = 1 / (1 + np.exp(random.normal(size=len(examples)) * 2 + 3 * np.array(examples.targets) - 1.5))
    write_whole(folder / "recipe.yaml", recipe.to_yaml())
    pause()
    config = {"id2label": {"0": "negative", "1": "positive"}}
    write_whole(folder / "model" / "config.json", json.dumps(config))
    write_whole(folder / "versions.json", json.dumps({"device": "a CPU", "threads": 1}))
    write_whole(folder / "predictions" / "dev.tsv", as_tsv(task, np.stack([first, 1 - first], axis=1), examples))
    write_whole(folder / "predictions" / "judged_by.json", '["dev"]')
    pause()
    seconds = 0.01 * len(recipe.method)
    write_whole(
        folder / "result.json", json.dumps({"score": 0.5, "ece": 0.1, "seconds": 10.0, "seconds_per_step": seconds})
    )
    return Run.open(folder)


def compare_in(home: Path, out: Path, trained: Path, pause: float) -> None:
    """What a child process does until it is killed."""

    def train(recipe: Recipe, folder: Path) -> Run:
        finished = (folder / "result.json").is_file()
        run = fake_train(recipe, folder, lambda: time.sleep(pause))
        if not finished:
            with trained.open("a", encoding="utf-8") as file:
                file.write(f"{recipe.key()}\n")
        return run

    found = comparison_of(play(recipes_in(home), out, train), out, "plain")
    write_whole(out / "comparison.md", markdown(found))


@pytest.mark.parametrize("luck", [0])
def test_killed_twice_it_ends_with_the_same_table(home: Path, tmp_path: Path, luck: int) -> None:
    wait = random.Random(luck)
    compare_in(home, tmp_path / "whole", tmp_path / "trained-whole", 0.0)
    out, trained = tmp_path / "killed", tmp_path / "trained"
    code = (
        "import sys; from pathlib import Path; from test_comparison import compare_in; "
        "home, out, trained = map(Path, sys.argv[1:]); compare_in(home, out, trained, 0.06)"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for time_ in range(2):
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(home), str(out), str(trained)], cwd=Path(__file__).parent, env=environment
        )
        wanted = 2 * time_ + 2  # begun runs: then at a time that nobody chose
        while len(list(out.glob("*/*"))) < wanted and child.poll() is None:
            time.sleep(0.02)
        time.sleep(wait.uniform(0, 0.3))
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        assert not (out / "comparison.md").exists()
    compare_in(home, out, trained, 0.0)
    assert (out / "comparison.md").read_text() == (tmp_path / "whole" / "comparison.md").read_text()
    keys = trained.read_text().split()
    assert len(set(keys)) == len(keys) and len(list(out.glob("*/*"))) == 9


def test_what_is_told_and_where_runs_are(home: Path, tmp_path: Path) -> None:
    recipes, told = recipes_in(home), []
    played = play(recipes, tmp_path, fake_train, told.append)
    assert [(each.method, each.seed) for each in told[:4]] == [("plain", 0), ("vat", 0), ("salt", 0), ("plain", 1)]
    assert told[0].seconds_left is None and told[1].seconds_left == 80.0 and told[8].seconds_left == 10.0
    assert run_folder(tmp_path, recipes[2]) == tmp_path / "salt" / f"0-{recipes[2].key()}"
    assert {run.folder for run in played.runs} == set(tmp_path.glob("*/*")) and not played.failed
    # other recipes in the same folder are other runs
    play([*recipes_in(home, seeds=1)[:1], recipes[0].replace(epochs=5.0)], tmp_path, fake_train)
    assert len(list(tmp_path.glob("plain/*"))) == 4


def test_a_run_that_diverges_is_left_out_and_named(home: Path, tmp_path: Path) -> None:
    def train(recipe: Recipe, folder: Path) -> Run:
        if (recipe.method, recipe.seed) == ("salt", 1):
            raise NonFiniteLossError("the loss is nan at step 3")
        return fake_train(recipe, folder)

    found = comparison_of(play(recipes_in(home), tmp_path, train), tmp_path, "plain")
    assert [each.seeds for each in found.methods] == [(0, 1, 2), (0, 1, 2), (0, 2)]
    assert found.pairs[1].difference is not None and found.pairs[1].difference.seeds == 2
    assert "salt with seed 1 diverged and is left out: the loss is nan at step 3." in sentences(found)
    assert any("64 of 67,349 rows" in said for said in sentences(found))
    with pytest.raises(AnalysisError, match="no run of plain"):
        comparison_of(Played((), ("plain with seed 0 diverged.",)), tmp_path, "plain")


def test_data_that_changed_is_refused(home: Path, tmp_path: Path) -> None:
    played = play(recipes_in(home, "plain,vat", 1), tmp_path, fake_train)
    path = played.runs[1].folder / "predictions" / "dev.tsv"
    path.write_text(path.read_text().replace("negative\t", "positive\t", 1))
    with pytest.raises(AnalysisError, match="the data has changed"):
        comparison_of(played, tmp_path, "plain")


def test_scores_are_compared_by_correlation_and_have_no_calibration(tmp_path: Path) -> None:
    for seed, split in enumerate(("train", "dev")):
        rows = [(text, "it is", 2.0 + label) for text, label in drawn_sentences(30, seed=seed)]
        write_tsv(tmp_path / "data" / "STS-B" / f"{split}.tsv", ("sentence1", "sentence2", "score"), rows)
    runs = [
        Run.open(finished_run(tmp_path / f"{method}{seed}", tmp_path / "data", task="sts-b", method=method, seed=seed))
        for seed in range(2)
        for method in ("plain", "vat")
    ]
    found = comparison_of(Played(tuple(runs), ()), tmp_path, "plain")
    assert found.metrics == ("pearson", "spearman") and found.methods[0].ece is None and found.pairs[0].ece is None
    for run, score in ((runs[0], found.methods[0].scores[0]), (runs[3], found.methods[1].scores[1])):
        values, targets, _ = run.probabilities("dev")
        assert targets is not None
        assert score == pytest.approx((METRICS["pearson"](values, targets) + METRICS["spearman"](values, targets)) / 2)
    assert "nan" not in markdown(found)


def test_plans(home: Path) -> None:
    recipes = recipes_in(home)
    assert recipes[2].settings["weight"] == 2.0 and recipes[1].settings.get("weight") != 2.0
    assert recipes[0].settings == {} and {recipe.max_steps for recipe in recipes} == {12}
    assert len({recipe.key() for recipe in recipes}) == 9
    assert seeds_of("3") == [0, 1, 2] and seeds_of("3,7, 11") == [3, 7, 11]
    for wrong in ("", "0", "x", "-1", "1,,2", "²"):
        with pytest.raises(SettingError, match="--seeds"):
            seeds_of(wrong)
    for arguments, message in (
        ({"methods": ["plain", "plain"]}, "each once"),
        ({"methods": ["slat"]}, "did you mean 'salt'"),
        ({"seeds": [1, 1]}, "each once"),
        ({"overrides": ["seed=3"]}, "--seeds"),
        ({"overrides": ["method=vat"]}, "--methods"),
        ({"settings": ["vat.weight=1"]}, "--set"),
        ({"settings": ["salt"]}, "--set"),
        ({"settings": ["salt.wait=1"]}, "did you mean 'weight'"),
    ):
        with pytest.raises(SettingError, match=message):
            plan(**{"source": "rte", "methods": ["plain", "salt"], "seeds": [0], **arguments})  # type: ignore[arg-type]


def test_the_command_trains_compares_and_does_not_train_again(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    arguments = ["compare", "max_steps=12", "learning_rate=0.01", "--methods", "plain,salt", "--task", "sst-2"]
    arguments += ["--data", str(home / "data"), "--model", str(home / "model"), "--seeds", "2"]
    arguments += ["--out", str(tmp_path / "out"), "--quiet"]
    first = CliRunner().invoke(app, arguments)
    assert first.exit_code == 0, first.output
    assert "run 4 of 4: salt, seed 1; about" in first.stderr and "Less plain, in points" in first.stdout
    assert "× plain" in first.stdout and (tmp_path / "out" / "comparison.md").is_file()
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*/*/result.json")}
    again = CliRunner().invoke(app, [*arguments, "--json"])
    assert again.exit_code == 0 and len(times) == 4
    assert json.loads(again.stdout) == json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert {path: path.stat().st_mtime_ns for path in times} == times
    score = json.loads(again.stdout)["methods"][0]["scores"][0]
    (folder,) = (tmp_path / "out" / "plain").glob("0-*")
    assert score == pytest.approx(Run.open(folder).figures["score"])


def test_wrong_arguments_of_the_command_are_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    code = "from stackelberg.cli import main; main()"
    arguments = ["compare", "--methods", "plain,salt", "--task", "rte", "--baseline", "vat", "--out", str(tmp_path)]
    found = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert found.returncode == 2 and found.stderr.startswith("error: --baseline='vat'") and not found.stdout
    assert found.stderr.count("\n") == 1


def test_stopped_from_the_keyboard_it_says_how_to_go_on(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object, **__: object) -> Run:
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "train", stopped)
    arguments = ["compare", "--methods", "plain", "--task", "sst-2", "--model", "m", "--out", str(tmp_path)]
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 130 and "the same command goes on" in found.stderr
