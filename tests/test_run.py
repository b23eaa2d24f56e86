"""Runs: a folder that is trained once, goes on where it was stopped, and gives back what it found."""

from __future__ import annotations

import gc
import json
import math
import os
import random
import signal
import warnings
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

import tiny_runs
from stackelberg import METHODS, StackelbergError, create
from stackelberg.errors import DataError, RunError
from stackelberg.nlu import evaluate, find_task, predicted, rhythm
from stackelberg.nlu.batches import Padding, bucket_lengths
from stackelberg.nlu.classifier import Classifier
from stackelberg.nlu.recipe import Recipe
from stackelberg.nlu.run import Run
from stackelberg.runs import progress
from stackelberg.runs.interruption import Interrupted
from stackelberg.runs.records import read_records
from tiny_runs import recipe

TIMES = ("seconds", "seconds_per_step")
gc.freeze()  # accelerate collects garbage at the start of every run; all that is imported here need not be looked at


class Stop(Exception):
    """What a test ends a run with."""


class Watching(progress.Silent):
    """Does something at a step, and keeps what was said."""

    def __init__(self, at: int = 0, what: Callable[[], None] = lambda: None) -> None:
        self.at, self.what = at, what
        self.said: list[str] = []
        self.steps: list[int] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def step(self, step: int) -> None:
        self.steps.append(step)
        if step == self.at:
            self.what()


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Watching]:
    """Have the next runs watched."""

    def watched(*args: Any) -> Watching:
        watching = Watching(*args)
        monkeypatch.setattr(progress, "display", lambda *, quiet: watching)
        return watching

    return watched


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run."""
    return Run.train(recipe(max_steps=4, evaluate_every=2), tmp_path_factory.mktemp("run") / "done", quiet=True)


def timeless(figures: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in figures.items() if name not in TIMES}


def records(run: Run) -> list[dict[str, Any]]:
    return [timeless(record) for record in read_records(run.folder)]


def kill() -> None:
    raise Stop


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


# --------------------------------------------------------------------------------------------------
# A folder


def test_a_run_folder_holds_what_it_says(done: Run) -> None:
    there = {str(path.relative_to(done.folder)) for path in done.folder.rglob("*") if path.is_file()}
    board = {name for name in there if name.startswith("tensorboard/")}
    model = {f"model/{name}" for name in ("config.json", "model.safetensors", "README.md", "stackelberg.json")}
    model |= {"model/tokenizer.json", "model/tokenizer_config.json"}
    plain = {"recipe.yaml", "versions.json", "metrics.jsonl", "result.json"}
    assert len(board) == 1
    assert there - board == plain | model | {"predictions/dev.tsv", "predictions/judged_by.json"}
    assert Recipe.load(done.folder / "recipe.yaml").key() == done.recipe.key()
    versions = json.loads((done.folder / "versions.json").read_text())
    assert (
        versions["torch"].split("+")[0] == torch.__version__.split("+")[0]
        and versions["device"]
        and versions["stackelberg"]
    )
    assert {path.stat().st_mode & 0o777 for path in done.folder.rglob("*.json")} == {0o666 & ~_umask()}


def test_figures_are_those_of_the_predictions(done: Run) -> None:
    found, targets, ids = done.probabilities("dev")
    assert found.shape == (9, 2) and ids is None and targets is not None and targets.tolist() == [0, 1] * 4 + [0]
    assert np.allclose(found.sum(1), 1)
    assert done.figures["accuracy"] == done.figures["score"] == (found.argmax(1) == targets).mean()
    again = done.evaluate("dev")
    assert {name: done.figures[name] for name in again} == again
    assert done.figures["nll"] == pytest.approx(-np.log(found[np.arange(9), targets]).mean())
    assert done.figures["steps"] == 4 and done.figures["best_step"] in (2, 4)
    assert done.figures["seconds"] >= 0 < done.figures["seconds_per_step"]


def test_records_go_by_step(done: Run) -> None:
    found = read_records(done.folder)
    assert [(record["step"], "loss" in record) for record in found] == [(2, True), (2, False), (4, True), (4, False)]
    assert all(record["seconds_per_step"] > 0 for record in found if "loss" in record)
    assert {"game/task_loss", "game/divergence", "game/guarded", "learning_rate"} <= set(found[0])
    best = max((record for record in found if "dev/score" in record), key=lambda each: each["dev/score"])
    assert best["step"] == done.figures["best_step"] and best["dev/score"] == done.figures["score"]


def test_the_model_is_an_ordinary_folder(done: Run) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(done.model_folder)
    tokenizer = AutoTokenizer.from_pretrained(done.model_folder)
    assert model.config.id2label == {0: "negative", 1: "positive"} and model.dtype == torch.float32
    found, _, _ = done.probabilities("dev")
    rows = tokenizer(list(done.data["dev"].texts), padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model(**rows).logits
    assert np.allclose(logits.double().softmax(-1).numpy(), found, atol=1e-6)
    card = (done.model_folder / "README.md").read_text(encoding="utf-8")
    assert "on SST-2" in card and "## Adversarial regularization" in card and "| `weight` |" in card
    assert "24 of 67,349 published rows" in card and "task: sst-2" in card
    assert tiny_runs.data() not in card and tiny_runs.model() not in card  # this machine's folders
    said = json.loads((done.model_folder / "stackelberg.json").read_text())
    assert said["method"] == "salt" and said["settings"]["seed"] == 0


def test_a_finished_run_is_not_made_again(done: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "_train", None)
    again = Run.train(done.recipe, done.folder)
    assert again.figures == done.figures == Run.open(done.folder).figures
    assert again.recipe.key() == done.recipe.key()


def test_a_folder_of_something_else_is_refused(done: Run, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"another recipe .seed is 0 there and 1 here"):
        Run.train(done.recipe.replace(seed=1), done.folder)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(RunError, match=r"is not empty and holds no run.*thesis.tex"):
        Run.train(done.recipe, tmp_path / "mine")
    for inside in ("thesis.tex", "thesis.tex/run"):
        with pytest.raises(RunError, match="is a file where"):
            Run.train(done.recipe, tmp_path / "mine" / inside)
    with pytest.raises(RunError, match=r"is no run: it has no recipe.yaml"):
        Run.open(tmp_path / "mine")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "recipe.yaml").write_text(done.recipe.to_yaml())
    with pytest.raises(RunError, match=r"is not finished.*stackelberg train \S+recipe.yaml --out \S+half"):
        Run.open(tmp_path / "half")
    (tmp_path / "half" / "recipe.yaml").write_text("task: [")
    with pytest.raises(RunError, match="recipe cannot be read"):
        Run.train(done.recipe, tmp_path / "half")


# --------------------------------------------------------------------------------------------------
# The same again


def test_one_seed_one_result(done: Run, tmp_path: Path) -> None:
    again = Run.train(recipe(max_steps=4, evaluate_every=2), tmp_path / "again", quiet=True, tensorboard=False)
    assert timeless(again.figures) == timeless(done.figures) and records(again) == records(done)
    assert not (again.folder / "tensorboard").exists()
    other = Run.train(recipe(max_steps=4, evaluate_every=2, seed=1), tmp_path / "other", quiet=True)
    assert records(other) != records(done)


@pytest.mark.parametrize("method", ["plain", "salt", "smart", "freeat"])
def test_an_interrupted_run_ends_as_if_nothing_had_happened(
    method: str, tmp_path: Path, watch: Callable[..., Watching]
) -> None:
    """Stopped in the middle of an epoch, at its end, where it is evaluated anyway; then killed without a word."""
    what = recipe(method=method, max_steps=None, epochs=3, evaluate_every=4)  # six steps an epoch
    watching = watch()
    whole = Run.train(what, tmp_path / "whole")
    last = watching.steps[-1]
    for stop in (2, 6, 8):
        watching = watch(stop, interrupt)
        with pytest.raises(Interrupted):
            Run.train(what, tmp_path / "broken")
        assert watching.steps[-1] == stop and any("with a checkpoint" in said for said in watching.said)
        assert [path.name for path in (tmp_path / "broken" / "checkpoints").glob("check*")] == [f"checkpoint-{stop}"]
    watch(10, kill)
    with pytest.raises(Stop):
        Run.train(what, tmp_path / "broken")
    watching = watch()
    broken = Run.train(what, tmp_path / "broken")
    assert watching.steps == list(range(9, last + 1)) and "going on from step 8" in watching.said
    assert timeless(broken.figures) == timeless(whole.figures)
    evaluations = [record for record in records(whole) if "dev/score" in record]
    assert [record for record in records(broken) if "dev/score" in record] == evaluations
    assert not (broken.folder / "checkpoints").exists()
    for name in ("predictions/dev.tsv", "model/model.safetensors"):
        assert (broken.folder / name).read_bytes() == (whole.folder / name).read_bytes()


def test_a_killed_run_loses_what_came_after_its_checkpoint(
    tmp_path: Path, watch: Callable[..., Watching], monkeypatch: pytest.MonkeyPatch
) -> None:
    what = recipe(max_steps=6, evaluate_every=2)
    watch()
    whole = Run.train(what, tmp_path / "whole")
    monkeypatch.setattr(rhythm, "SAVE_EVERY", 0.0)
    watch(5, kill)
    with pytest.raises(Stop):
        Run.train(what, tmp_path / "broken")
    watching = watch()
    broken = Run.train(what, tmp_path / "broken", keep_checkpoints=True)
    assert watching.steps == [5, 6]
    assert timeless(broken.figures) == timeless(whole.figures)
    assert (broken.folder / "checkpoints").is_dir()


def test_interrupted_at_the_last_step_it_finishes_and_then_stops(
    tmp_path: Path, watch: Callable[..., Watching]
) -> None:
    watch(2, interrupt)
    with pytest.raises(Interrupted):
        Run.train(recipe(), tmp_path / "run")
    assert Run.open(tmp_path / "run").figures["steps"] == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_twice_is_at_once(tmp_path: Path, watch: Callable[..., Watching]) -> None:
    def twice() -> None:
        interrupt()
        interrupt()

    watch(1, twice)
    with pytest.raises(KeyboardInterrupt) as raised:
        Run.train(recipe(), tmp_path / "run")
    assert not isinstance(raised.value, Interrupted)


# --------------------------------------------------------------------------------------------------
# When it stops, and what it keeps


def test_patience_ends_a_run_and_the_best_model_is_kept(
    tmp_path: Path, watch: Callable[..., Watching], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best of the evaluations is neither the first nor the last."""
    made = iter([0.2, 0.6, 0.6, 0.1, 0.9, math.nan, 0.3, 0.4])
    from stackelberg.nlu import training

    real = training.figures

    def scored(*args: Any) -> dict[str, float]:
        return {**real(*args), "score": next(made)}

    monkeypatch.setattr(training, "figures", scored)
    watching = watch()
    run = Run.train(recipe(max_steps=20, evaluate_every=1, patience=3), tmp_path / "run")
    assert run.figures["best_step"] == 5 and run.figures["steps"] == 8
    assert any("stopped early: 3 evaluations" in said for said in watching.said)
    found = [record["dev/score"] for record in read_records(run.folder) if "dev/score" in record]
    assert found == [0.2, 0.6, 0.6, 0.1, 0.9, None, 0.3, 0.4]


def test_the_best_is_the_first_of_the_highest() -> None:
    assert rhythm.best_of([(1, 0.5), (2, math.nan), (3, 0.7), (4, 0.7)]) == (3, 0.7)
    assert rhythm.best_of([(1, math.nan), (2, math.nan)])[0] == 1


def test_evaluations_come_by_epoch_for_every_method(tmp_path: Path) -> None:
    for method in ("plain", "freeat"):
        run = Run.train(recipe(method=method, max_steps=None, epochs=3), tmp_path / method, quiet=True)
        found = [record["step"] for record in read_records(run.folder) if "dev/score" in record]
        assert found == [6, 12, 18]  # 24 rows, 4 at a time; FreeAT's one long epoch too


# --------------------------------------------------------------------------------------------------
# Every method, kind of task and file


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("task", ["sts-b", "mnli"])
def test_every_method_trains(method: str, task: str, tmp_path: Path) -> None:
    run = Run.train(recipe(task=task, method=method), tmp_path / "run", quiet=True)
    if task == "sts-b":
        found, targets, _ = run.probabilities("dev")
        assert found.shape == (9,) and targets is not None and targets.dtype == np.float64
        assert (
            run.figures["score"] == (run.figures["pearson"] + run.figures["spearman"]) / 2 and "ece" not in run.figures
        )
    else:
        assert run.judged_by == ("dev_matched", "dev_mismatched")
        both = [run.figures[f"accuracy ({split})"] for split in run.judged_by]
        assert run.figures["score"] == sum(both) / 2
        assert run.figures["ece"] == pytest.approx(sum(run.evaluate(split)["ece"] for split in run.judged_by) / 2)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    own = recipe(train=tiny_runs.own_file(), text="review", label="verdict", hold_out=0.25)
    run = Run.train(own, tmp_path / "run", quiet=True)
    assert run.task.labels == ("may be", "no", "yes") and run.judged_by == ("dev",)
    found, targets, _ = Run.open(run.folder).probabilities("dev")
    assert found.shape == (6, 3) and targets is not None and sorted(targets) == [0, 0, 1, 1, 2, 2]
    assert run.evaluate("dev")["accuracy"] == run.figures["accuracy"]
    seeds = {Run.train(own.replace(seed=s), tmp_path / str(s), quiet=True).data["dev"].texts for s in (1, 2)}
    assert seeds == {run.data["dev"].texts}  # judged by the same rows


def test_named_task_with_files_of_ones_own(tmp_path: Path) -> None:
    """ANLI's folder here has no training rows: they come from another file."""
    train = Path(tiny_runs.data()) / "MNLI" / "train.tsv"
    dev = Path(tiny_runs.data()) / "MNLI" / "dev_matched.tsv"
    own = recipe(
        task="anli", data=None, train=str(train), dev=str(dev), text="sentence1", pair="sentence2", label="gold_label"
    )
    run = Run.train(own, tmp_path / "run", quiet=True)
    assert run.task.labels == ("entailment", "neutral", "contradiction") and len(run.data["train"]) == 24


def test_a_causal_model_without_a_padding_token(tmp_path: Path) -> None:
    run = Run.train(recipe(model=tiny_runs.causal_model()), tmp_path / "run", quiet=True)
    config = json.loads((run.model_folder / "config.json").read_text())
    assert config["pad_token_id"] == 3
    assert run.predict(run.data["test"]).shape == (5, 2)


def test_predictions_on_other_splits_are_made_and_kept(done: Run) -> None:
    run = Run.open(done.folder)
    found, targets, ids = run.probabilities("test")
    assert found.shape == (5, 2) and targets is None and ids is None
    run.__dict__.pop("classifier"), run.__dict__.pop("data")
    assert np.array_equal(Run.open(done.folder).probabilities("test")[0], found)
    with pytest.raises(DataError, match="has no labels to evaluate on"):
        run.evaluate("test")
    with pytest.raises(DataError, match=r"no split 'tset'.*did you mean 'test'"):
        run.probabilities("tset")
    path = done.folder / "predictions" / "test.tsv"
    path.write_text("rubbish\n")
    with pytest.raises(RunError, match=r"test.tsv is not what a run of SST-2 writes"):
        run.probabilities("test")
    path.unlink()


def test_a_head_that_knows_the_classes_in_another_order(tmp_path: Path) -> None:
    """A checkpoint fitted on NLI with the classes in its own order keeps its head, and answers come in the task's."""
    first = Run.train(recipe(task="mnli"), tmp_path / "first", quiet=True)
    folder = tmp_path / "turned"
    model = AutoModelForSequenceClassification.from_pretrained(first.model_folder)
    turn = [2, 0, 1]
    with torch.no_grad():
        model.classifier.weight.copy_(model.classifier.weight[turn].clone())
        model.classifier.bias.copy_(model.classifier.bias[turn].clone())
    names = [model.config.id2label[output] for output in turn]
    model.config.id2label = dict(enumerate(names))
    model.config.label2id = {name: output for output, name in enumerate(names)}
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(first.model_folder).save_pretrained(folder)
    task = find_task("mnli")
    same = Classifier.load(str(folder), task, max_length=16)
    rows = first.data["dev_matched"]
    assert np.allclose(
        same.outputs(same.encode(rows)), first.classifier.outputs(first.classifier.encode(rows)), atol=1e-6
    )
    second = Run.train(recipe(task="mnli", model=str(folder), method="plain"), tmp_path / "second", quiet=True)
    found, targets, _ = second.probabilities("dev_matched")
    assert second.figures["accuracy (dev_matched)"] == (found.argmax(1) == targets).mean()
    classify = pipeline("text-classification", model=str(second.model_folder), device="cpu")
    said = classify({"text": rows.texts[0], "text_pair": rows.pairs[0] if rows.pairs else ""})
    assert said["label"] == task.labels[int(found[0].argmax())] and said["score"] == pytest.approx(found[0].max())


def test_outputs_come_in_the_rows_order_whatever_the_batches(done: Run) -> None:
    rows = done.classifier.encode(done.data["train"])
    alone = [done.classifier.outputs(done.classifier.encode(done.data["train"].take([n])))[0] for n in range(24)]
    assert np.allclose(done.classifier.outputs(rows, batch_size=5), alone, atol=1e-6)
    expected = predicted(done.task, done.predict(done.data["train"]))
    assert evaluate(done.task, expected, expected)["accuracy"] == 1


def test_head_dropout_and_types_of_weights(tmp_path: Path) -> None:
    load: Any = lambda **changes: Classifier.load(tiny_runs.model(), find_task("sst-2"), max_length=16, **changes)  # noqa: E731
    model = load(head_dropout=0.3).model
    assert model.dropout.p == 0.3 and model.bert.embeddings.dropout.p == 0.1 and model.config.classifier_dropout == 0.3
    assert load().model.dropout.p == 0.1 and load().model.dtype == torch.float32  # the folder is float16
    assert load(weights="bfloat16").model.dtype == torch.bfloat16
    run = Run.train(recipe(precision="bfloat16"), tmp_path / "run", quiet=True)
    assert json.loads((run.model_folder / "config.json").read_text())["dtype"] == "float32"


# --------------------------------------------------------------------------------------------------
# Before the long work


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"task": "sts-b", "settings": {"divergence": "kl"}}, "divergence='kl' compares distributions"),
        ({"task": "sts-b", "settings": {"divergence": "kl", "start_step": 9}}, "divergence='kl' compares"),
        ({"settings": {"sides": ["target"]}}, r"sides=\['target'\]: this model has only source"),
        ({"method": "rdrop", "model": "no dropout"}, "has no dropout"),
        ({"model": "/nowhere/at/all"}, "model='/nowhere/at/all' is not a folder"),
        ({"model": "./all-MiniLM"}, "model='./all-MiniLM' is not a folder"),
        ({"model": "an empty folder"}, "has no config.json"),
        ({"model": "nobody/nothing"}, "no folder here and not in the hub's cache"),
        ({"max_length": 25}, "max_length=25 is more than the 24 positions"),
        ({"max_length": 2}, "max_length=2 leaves no room"),
        ({"head_dropout": 0.1, "model": "causal"}, "has no dropout to set"),
        ({"precision": "float16"}, "precision='float16' needs a GPU"),
        ({"data": "/nowhere"}, "/nowhere is not a folder"),
        ({"task": "anli", "data": "only ANLI's dev"}, "ANLI has no train split in .*, only dev; give train=FILE"),
        ({"task": "cola"}, "holds neither a folder CoLA nor a file"),
        ({"train": "own", "text": "text"}, "has no column 'text'; its columns are 'review', 'verdict'"),
        ({"train": "own", "text": "review"}, "has no column 'label'"),
        ({"train": "own", "text": "review", "label": "verdict", "dev": "x.csv"}, "x.csv is not there"),
        ({"train": "own", "text": "review", "label": "verdict", "kind": "score"}, "'yes' in column 'verdict' is not a"),
        ({"train": "own", "text": "review", "label": "verdict", "labels": ["yes", "no"]}, "label 'may be' is not one"),
    ],
)
def test_what_is_wrong_shows_before_anything_is_written(
    changes: dict[str, Any], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    (tmp_path / "empty").mkdir()
    meant = {
        "no dropout": tiny_runs.model(0.0),
        "an empty folder": str(tmp_path / "empty"),
        "causal": tiny_runs.causal_model(),
        "own": tiny_runs.own_file(),
        "only ANLI's dev": str(tmp_path),
    }
    row = '{"context": "a film", "hypothesis": "a plot", "label": "e"}'
    for turn in ("R1", "R2", "R3"):
        (tmp_path / "ANLI" / turn).mkdir(parents=True)
        (tmp_path / "ANLI" / turn / "dev.jsonl").write_text(row)
    given = {name: meant.get(value, value) if isinstance(value, str) else value for name, value in changes.items()}
    with pytest.raises(StackelbergError, match=sentence) as raised:
        Run.train(recipe(**given), tmp_path / "run", quiet=True)
    assert "\n" not in str(raised.value) and not (tmp_path / "run").exists()


def test_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(StackelbergError, match="WORLD_SIZE=2: a run is one process"):
        Run.train(recipe(), tmp_path / "run", quiet=True)


def test_what_is_said(tmp_path: Path, watch: Callable[..., Watching]) -> None:
    watching = watch()
    paper = recipe(form="paper", gaps=("the weight α",), settings={"init_std": 1e-9})
    Run.train(paper, tmp_path / "run")
    said = "\n".join(watching.said)
    assert "SST-2, lengths in tokens" in said and "cut at 16" in said and "negative 50.0%" in said
    assert "warning: the paper does not say the weight α" in said


def test_without_tensorboard_it_says_so_and_goes_on(
    tmp_path: Path, watch: Callable[..., Watching], monkeypatch: pytest.MonkeyPatch
) -> None:
    from stackelberg.runs import records as module

    monkeypatch.setattr(module, "find_spec", lambda name: None)
    watching = watch()
    Run.train(recipe(), tmp_path / "run")
    assert len([said for said in watching.said if "pip install tensorboard" in said]) == 1


# --------------------------------------------------------------------------------------------------
# Batches


def test_buckets_are_few_and_each_is_used_alike() -> None:
    draw = random.Random(0)
    lengths = [min(int(draw.expovariate(1 / 40)) + 5, 128) for _ in range(20_000)]
    edges = bucket_lengths(lengths, 32)
    assert 2 <= len(edges) <= 6 and all(edge % 8 == 0 for edge in edges) and edges[-1] >= max(lengths)
    counts = dict.fromkeys(edges, 0)
    for _ in range(3000):
        longest = max(draw.sample(lengths, 32))
        counts[next(edge for edge in edges if edge >= longest)] += 1
    assert bucket_lengths([5], 8) == (8,) and bucket_lengths([3, 9, 17], 1) == (8, 16, 24)
    small = [draw.randrange(5, 60) for _ in range(5000)]
    used = dict.fromkeys(bucket_lengths(small, 4), 0)
    for _ in range(3000):
        used[next(edge for edge in used if edge >= max(draw.sample(small, 4)))] += 1
    assert min(used.values()) > 3000 / 6 / 4


def test_padding_changes_no_result(done: Run) -> None:
    rows = list(done.classifier.encode(done.data["train"]))[:4]
    model, tokenizer = done.classifier.model, done.classifier.tokenizer
    tight = Padding(tokenizer, model)(rows)
    loose = Padding(tokenizer, model, (12, 16, 40), tiny_runs.POSITIONS)(rows)
    longest = max(len(row["input_ids"]) for row in rows)
    assert tight["input_ids"].shape[1] == longest < 12 == loose["input_ids"].shape[1]
    assert Padding(tokenizer, model, (40,), 24).lengths == (24,)
    noise = 0.1 * torch.randn(len(rows), longest, model.config.hidden_size) * tight["attention_mask"][..., None]
    losses = []
    for batch in (tight, loose):
        model.train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.eval()
        start = torch.nn.functional.pad(noise, (0, 0, 0, batch["input_ids"].shape[1] - longest))
        losses.append(create("salt", weight=3.0)(model, batch, start=start).item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    model.eval()


# --------------------------------------------------------------------------------------------------
# Random recipes: the first step, or one sentence

NASTY: list[Any] = [
    0, -1, 1, 2, 1e-3, 0.5, 1.0, 3.5, "x", "", None, True, [], [1, 2], {}, {"a": 1}, math.nan, math.inf, 1e30, 10**30,
    -0.0, "kl", "mse", "symmetric_kl", "js", "linf", "l2", "sign", "adam", "sgd", "off", "independent", "shared",
    "exact", "none", "sweep", "eager", "auto", "token", "sentence", "uniform", "zero", "source", ["source"], ["target"],
    "tokens", "sentences", "regularized", "original", "differences", "forward_over_reverse", "double_backward",
]  # fmt: skip
SETTINGS = {name: [f.name for f in fields(method) if f.init] for name, method in METHODS.items()}
FIELDS = [f.name for f in fields(Recipe)]


def likely() -> dict[str, list[Any]]:
    """For each field, values that may be right."""
    return {
        "task": ["sst-2", "sts-b", "rte", "mnli", "SST2", "cola", "rtee", "snli"],
        "data": [tiny_runs.data(), "/nowhere", None, tiny_runs.own_file()],
        "train": [tiny_runs.own_file(), "/nowhere.csv", tiny_runs.data()],
        "model": [tiny_runs.model(), tiny_runs.causal_model(), tiny_runs.model(0.0), "/nowhere", tiny_runs.data(), " "],
        "method": [*METHODS, "slat"],
        "form": ["tuned", "paper"],
        "text": ["review", "sentence"],
        "pair": ["review"],
        "label": ["verdict", "label"],
        "kind": ["classes", "score"],
        "labels": [["yes", "no", "may be"], ["yes", "no"], [True, False], "yes"],
        "metrics": [["accuracy"], ["f1"], ["pearson"]],
        "precision": ["float32", "bfloat16", "float16"],
        "weights": ["float32", "bfloat16"],
        "schedule": ["linear", "cosine", "constant"],
        "betas": [[0.9, 0.98], [0.9], [0.9, 1.0], [0, 0]],
        "max_length": [4, 8, 16, 24, 25],
        "max_steps": [None, 2],
    }


def drawn(rng: random.Random) -> dict[str, Any]:
    """Fields of a recipe, some of them wrong."""
    usual = {"task": "sst-2", "data": tiny_runs.data(), "model": tiny_runs.model(), "batch_size": 4, "max_length": 16}
    given: dict[str, Any] = {**usual, "method": rng.choice(list(METHODS))}
    values = likely()
    for _ in range(rng.randrange(3)):
        name = rng.choice([*FIELDS, "epsilon", "learningrate"])
        given[name] = rng.choice(values[name] if name in values and rng.random() < 0.9 else NASTY)
    settings = {}
    known = SETTINGS.get(str(given["method"]), ["weight"])
    for _ in range(rng.randrange(3)):
        name, value = rng.choice([*known, "epsilonn"]), rng.choice(NASTY)
        large = isinstance(value, int) and value > 9 and name in ("steps", "replays")
        settings[name] = 2 if large else value  # a large K is no mistake, and no first step either
    return {"settings": settings, **given}


def outcome(number: int, folder: Path) -> str:
    """The recipe's first step, or the sentence that refuses it; any other exception is the test's failure."""
    given = drawn(random.Random(number))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of settings that make little sense, which is allowed
            Run.train(Recipe.load(None, [], **given), folder / str(number))
    except Stop:
        return ""
    except StackelbergError as error:
        return str(error)
    except Exception as error:
        raise AssertionError(f"recipe {number}, {given}") from error
    raise AssertionError(f"recipe {number}, {given}, ran to its end")


def random_recipes(numbers: range, folder: Path, watch: Callable[..., Watching]) -> None:
    watch(1, kill)
    found = [outcome(number, folder) for number in numbers]
    refused = [sentence for sentence in found if sentence]
    assert all(sentence.strip() and "\n" not in sentence for sentence in refused)
    assert len(found) / 10 < len(refused) < len(found) * 9 / 10


def test_random_recipes(tmp_path: Path, watch: Callable[..., Watching]) -> None:
    random_recipes(range(100), tmp_path, watch)


@pytest.mark.soak
def test_many_random_recipes(tmp_path: Path, watch: Callable[..., Watching]) -> None:
    random_recipes(range(1000, 2000), tmp_path, watch)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
