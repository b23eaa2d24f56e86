"""Robustness, calibration and probing of runs by command; figures against rows counted by hand."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

from stackelberg.analysis import AnalysisError, measure_calibration
from stackelberg.analysis.attack import attack
from stackelberg.analysis.calibrating import calibrations
from stackelberg.analysis.robustness import Rate, measure_robustness, right, trials
from stackelberg.analysis.runs import kinds, names, open_runs
from stackelberg.cli import app
from stackelberg.errors import MissingPackageError, SettingError
from stackelberg.nlu import DataError, Examples, find_task, load
from stackelberg.nlu.run import Run
from tiny import finished_run, sentences, write_tsv

LETTERS = "enc"  # ANLI's labels


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MNLI, SST-2, ANLI in three rounds and AdvGLUE, a few rows of each in their published layouts."""
    home = tmp_path_factory.mktemp("data")
    for seed, split, rows in ((0, "train", 40), (1, "dev", 60)):
        write_tsv(home / "SST-2" / f"{split}.tsv", ("sentence", "label"), sentences(rows, seed=seed))
    nli = ("entailment", "neutral", "contradiction")
    for split in ("train", "dev_matched", "dev_mismatched"):
        rows = [(text, "it is", nli[number % 3]) for number, (text, _) in enumerate(sentences(30))]
        write_tsv(home / "MNLI" / f"{split}.tsv", ("sentence1", "sentence2", "gold_label"), rows)
    for number in (1, 2, 3):
        for split, rows_ in (("dev", 7 + number), ("test", 9)):
            lines = [
                json.dumps({"context": text, "hypothesis": "it is fine", "label": LETTERS[place % 3]})
                for place, (text, _) in enumerate(sentences(rows_, seed=number))
            ]
            path = home / "ANLI" / f"R{number}" / f"{split}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(lines) + "\n")
    (home / "AdvGLUE").mkdir()
    attacked = [{"sentence": text, "label": label, "idx": row} for row, (text, label) in enumerate(sentences(20))]
    annotated = [{**entry, "original_sentence": "it is great" if entry["idx"] < 12 else None} for entry in attacked]
    pairs = [{"premise": "a film", "hypothesis": "it is", "label": row % 3, "idx": row} for row in range(6)]
    kept = [{**entry, "original_premise": "the film"} for entry in pairs]
    for name, sst, mnli in (("dev.json", attacked, pairs), ("dev_ann.json", annotated, kept)):
        (home / "AdvGLUE" / name).write_text(json.dumps({"sst2": sst, "mnli": mnli, "mnli-mm": mnli}))
    return home


@pytest.fixture(scope="module")
def sst(data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    home = tmp_path_factory.mktemp("runs")
    played = (("plain", 0), ("plain", 1), ("salt", 0))
    return [finished_run(home / f"{method}-{seed}", data, method=method, seed=seed) for method, seed in played]


@pytest.fixture(scope="module")
def mnli(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_run(tmp_path_factory.mktemp("mnli"), data, task="mnli")


def invoked(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def by_hand(run: Run, examples: Examples) -> list[bool]:
    return [
        int(run.predict(examples.take([row])).argmax()) == target for row, target in enumerate(examples.targets or ())
    ]


def test_anli_by_rounds_and_all_of_them(data: Path, mnli: Path) -> None:
    run = Run.open(mnli)
    found = measure_robustness(run.classifier, trials(run.task, data)).adversarial
    assert [(each.title, each.split) for each in found[:4]] == [
        ("ANLI R1", "dev"), ("ANLI R2", "dev"), ("ANLI R3", "dev"), ("ANLI all", "dev")
    ]  # fmt: skip
    assert [each.accuracy.rows for each in found] == [8, 9, 10, 27, 9, 9, 9, 27]
    counted = [sum(by_hand(run, load(f"anli-r{number}", data)["dev"])) for number in (1, 2, 3)]
    assert [each.accuracy.right for each in found[:4]] == [*counted, sum(counted)]


def test_classes_are_matched_by_name(data: Path, tmp_path: Path) -> None:
    """A model whose outputs are in another order is as good."""
    run = Run.open(finished_run(tmp_path / "run", data, task="mnli"))
    examples = load("anli-r1", data)["dev"]
    before = right(run.classifier, find_task("anli-r1"), examples)
    model = run.classifier.model
    with torch.no_grad():
        for parameter in (model.classifier.weight, model.classifier.bias):
            parameter.copy_(parameter[[2, 0, 1]].clone())
    model.config.id2label = {0: "CONTRADICTION", 1: "Entailment", 2: "neutral"}
    assert (right(run.classifier, find_task("anli-r1"), examples) == before).all()
    model.config.id2label = {0: "no", 1: "yes", 2: "perhaps"}
    with pytest.raises(DataError, match="give a model trained on such classes"):
        right(run.classifier, find_task("anli-r1"), examples)


def test_the_drop_is_of_rows_and_their_originals(data: Path, sst: list[Path]) -> None:
    run = Run.open(sst[0])
    (found,) = measure_robustness(run.classifier, trials(run.task, data)).attacked
    rows = load("advglue-sst-2", data)
    after = by_hand(run, rows["dev"])
    before = by_hand(run, rows["original"])
    assert (found.original.right, found.original.rows) == (sum(before), 12)
    assert (found.attacked.right, found.every.right, found.every.rows) == (sum(after[:12]), sum(after), 20)
    assert found.drop == pytest.approx(found.original.value - found.attacked.value)
    turned = sum(was and not now for was, now in zip(before, after, strict=False))
    assert found.turned == (pytest.approx(turned / sum(before)) if any(before) else None)
    assert found.interval is not None and found.interval.low <= found.drop <= found.interval.high


def test_wilsons_interval_by_hand() -> None:
    # 8 of 10: (0.8 + z²/20 ± z√(0.016 + z²/400)) / (1 + z²/10)
    interval = Rate(8, 10).interval
    assert (interval.low, interval.high) == (pytest.approx(0.4902, abs=1e-3), pytest.approx(0.9433, abs=1e-3))
    assert Rate(0, 5).interval.low == 0 and Rate(5, 5).interval.high == 1


def test_what_fits_a_run(data: Path, tmp_path: Path) -> None:
    assert [each.task.name for each in trials(find_task("mnli"), data).rounds] == ["anli-r1", "anli-r2", "anli-r3"]
    assert [each.task.name for each in trials(find_task("snli"), data).attacked] == ["advglue-mnli", "advglue-mnli-mm"]
    assert not trials(find_task("sst-2"), data).rounds
    with pytest.raises(AnalysisError, match="trained on CoLA"):
        trials(find_task("cola"), data)
    with pytest.raises(DataError, match="AdvGLUE"):
        trials(find_task("rte"), tmp_path)


def test_runs_are_named_by_what_they_differ_in(data: Path, sst: list[Path], tmp_path: Path) -> None:
    runs = open_runs(sst)
    assert kinds(runs) == ["plain", "plain", "salt"] and names(runs) == ["plain, seed 0", "plain, seed 1", "salt"]
    other = Run.open(finished_run(tmp_path / "other", data, model="bert"))  # another model: not a seed of the first
    assert names([runs[0], other]) == ["plain 1", "plain 2"]
    with pytest.raises(AnalysisError, match="given twice"):
        open_runs([sst[0], sst[0].parent / "." / sst[0].name])


def test_command_robustness(data: Path, sst: list[Path], mnli: Path) -> None:
    shown = invoked("robustness", *sst, "--data", data)
    assert shown.exit_code == 0, shown.output
    assert "AdvGLUE" in shown.stdout and "±" in shown.stdout and "[" in shown.stdout
    found = json.loads(invoked("robustness", mnli, "--data", data, "--json").stdout)
    assert found[0]["kind"] == "plain" and len(found[0]["adversarial"]) == 8 and len(found[0]["attacked"]) == 2
    table = invoked("robustness", mnli, "--data", data).stdout
    assert "ANLI dev" in table and "ANLI test" in table and "8 of ANLI R1 dev" in table


# Calibration


def test_calibration_of_runs(sst: list[Path]) -> None:
    runs = dict(zip(("a", "b"), open_runs(sst[:2]), strict=True))
    first, second = calibrations(runs, bins=5)
    values, targets, _ = runs["a"].probabilities("dev")
    assert targets is not None and first.figures == measure_calibration(values, targets, bins=5)
    assert (first.name, second.name, first.figures.rows) == ("a", "b", 60)


def test_a_temperature_is_fitted_on_rows_that_are_not_reported(sst: list[Path]) -> None:
    runs = dict(zip("a", open_runs(sst[:1]), strict=True))
    before, after = calibrations(runs, scaled=True)
    assert before.figures.rows == after.figures.rows == 30 and after.said["fitted_rows"] == 30
    assert before.figures.accuracy == after.figures.accuracy and after.name.startswith("a, T = ")
    assert "30 others, the other half of dev" in after.remarks[0]
    # log-probabilities are logits up to a constant that a softmax does not see
    raw = runs["a"].classifier.outputs(runs["a"].classifier.encode(runs["a"].data["dev"]))
    from scipy.special import softmax

    from stackelberg.analysis import halves

    expected = softmax(raw[halves(60)[1]] / after.said["temperature"], axis=1)  # type: ignore[operator]
    assert after.probabilities == pytest.approx(expected, abs=1e-6)
    before, after = calibrations(runs, fit_on="train")
    assert before.figures.rows == 60 and after.said["fitted_on"] == "train"
    assert any("trained on train" in remark for remark in after.remarks)
    with pytest.raises(AnalysisError, match="cannot be reported on it"):
        calibrations(runs, split="dev", fit_on="dev")


def test_mnli_is_reported_split_by_split(mnli: Path) -> None:
    found = calibrations({"plain": Run.open(mnli)})
    assert [each.name for each in found] == ["plain, dev_matched", "plain, dev_mismatched"]


def test_command_calibrate(sst: list[Path], tmp_path: Path) -> None:
    shown = invoked("calibrate", *sst, "--temperature", "--out", tmp_path / "a.svg")
    assert shown.exit_code == 0, shown.output
    assert "salt, T = " in shown.stdout and "plain, seed 1" in shown.stdout and "ECE, width" in shown.stdout
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG" and (tmp_path / "a.svg").is_file()
    found = json.loads(invoked("calibrate", sst[0], "--json", "--equal-width", "--out", tmp_path / "b.png").stdout)
    assert {"ece", "ece_width", "mce", "brier", "nll"} <= set(found["rows"][0]) and found["bins"] == 10
    wrong = invoked("calibrate", sst[0], "--out", tmp_path / "c.pdf")
    assert isinstance(wrong.exception, AnalysisError) and ".png or .svg" in str(wrong.exception)


# Probing by command


def test_command_probe(data: Path, sst: list[Path], tmp_path: Path) -> None:
    mine = write_tsv(tmp_path / "mine.tsv", ("text", "label"), sentences(40, seed=3))
    out = tmp_path / "out"
    arguments = ("probe", *sst, sst[0] / "model", "--tasks", f"{mine},sst-2", "--data", data, "--seeds", "2")
    shown = invoked(*arguments, "--max-length", "32", "--out", out)
    assert shown.exit_code == 0, shown.output
    assert "SST-2" in shown.stdout and "mine" in shown.stdout and "differ in their training seed" in shown.stdout
    found = json.loads((out / "probing.json").read_text())["tasks"]
    assert [len(model["accuracies"]) for model in found["sst-2"]["models"]] == [2, 2, 2, 2]
    # a run keeps its features, a model that is no run has them in the output folder, and they are the same
    assert len(list((sst[0] / "probing").iterdir())) == 2 == len(list((out / "features" / "model").iterdir()))
    by_folder = {model["folder"]: model["accuracies"] for model in found["sst-2"]["models"]}
    assert by_folder[str(sst[0])] == by_folder[str(sst[0] / "model")]
    assert (out / "probing.png").is_file() and (out / "probing.svg").is_file()
    again = invoked(*arguments, "--max-length", "32", "--out", out, "--json")
    assert json.loads(again.stdout)["tasks"] == found
    wrong = invoked(*arguments, "--pooling", "cls", "--out", out)
    assert isinstance(wrong.exception, SettingError) and "--pooling" in str(wrong.exception)


# TextAttack, which is not installed here: a module that does as much of what it does as is asked of it


def fake_textattack(change: Callable[[str], str]) -> ModuleType:
    kinds_ = {name: type(name, (SimpleNamespace,), {}) for name in ("Skipped", "Successful", "Failed")}

    class Dataset:
        def __init__(self, rows: Sequence[Any], input_columns: Sequence[str], label_names: Sequence[str]) -> None:
            assert all(len(given) == len(input_columns) for given, _ in rows) or len(input_columns) == 1
            self.rows, self.label_names = rows, label_names

    class Attacker:
        def __init__(self, attack: Any, dataset: Dataset, args: Any) -> None:
            self.model, self.dataset, self.args = attack.model, dataset, args

        def attack_dataset(self) -> list[Any]:
            results = []
            for given, label in self.dataset.rows[: self.args.num_examples]:
                changed = change(given) if isinstance(given, str) else tuple(map(change, given))
                scores = self.model([given, changed])
                assert scores.shape == (2, len(self.dataset.label_names))
                assert scores.sum(dim=1).tolist() == pytest.approx([1, 1], abs=1e-5)
                was, now = (int(row.argmax()) == label for row in scores)
                kind = "Skipped" if not was else "Failed" if now else "Successful"
                results.append(kinds_[kind](num_queries=7))
            return results

    recipe = SimpleNamespace(build=lambda model: SimpleNamespace(model=model))
    module = ModuleType("textattack")
    module.__dict__.update(
        attack_recipes=SimpleNamespace(TextFoolerJin2019=recipe),
        attack_results=SimpleNamespace(**{f"{name}AttackResult": kind for name, kind in kinds_.items()}),
        models=SimpleNamespace(wrappers=SimpleNamespace(ModelWrapper=object)),
        datasets=SimpleNamespace(Dataset=Dataset),
        Attacker=Attacker,
        AttackArgs=SimpleNamespace,
    )
    return module


def test_an_attack_counts_what_gives_way(sst: list[Path], mnli: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.open(sst[0])
    examples = run.data["dev"]
    correct = sum(by_hand(run, examples))
    monkeypatch.setitem(sys.modules, "textattack", fake_textattack(lambda text: text))
    found = attack(run.classifier, run.task, examples, rows=1000)
    assert (found.rows, found.right, found.held) == (60, correct, correct) and found.queries == 7
    monkeypatch.setitem(sys.modules, "textattack", fake_textattack(lambda text: "dull"))
    found = attack(run.classifier, run.task, examples, rows=25, seed=3)
    assert found.rows == 25 and 0 <= found.held < found.right and found.under_attack < found.accuracy
    assert found == attack(run.classifier, run.task, examples, rows=25, seed=3)
    pairs = Run.open(mnli)
    assert attack(pairs.classifier, pairs.task, pairs.data["dev_matched"], rows=5).rows == 5
    shown = invoked("robustness", sst[0], "--attack", "textfooler", "--rows", "5")
    assert shown.exit_code == 0 and "under textfooler" in shown.stdout


def test_a_missing_textattack_is_the_command_that_installs_it(sst: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textattack", None)
    run = Run.open(sst[0])
    with pytest.raises(MissingPackageError, match=r"pip install textattack; .* leave --attack out"):
        attack(run.classifier, run.task, run.data["dev"])
    with pytest.raises(SettingError, match="did you mean 'textfooler'"):
        attack(run.classifier, run.task, run.data["dev"], name="textfoller")
    with pytest.raises(DataError, match="rows=0"):
        monkeypatch.setitem(sys.modules, "textattack", fake_textattack(str))
        attack(run.classifier, run.task, run.data["dev"], rows=0)


def test_scores_have_no_calibration(data: Path, tmp_path: Path) -> None:
    for split in ("train", "dev"):
        rows = [(text, "it is", 2.5 + label) for text, label in sentences(20)]
        write_tsv(tmp_path / "data" / "STS-B" / f"{split}.tsv", ("sentence1", "sentence2", "score"), rows)
    run = Run.open(finished_run(tmp_path / "run", tmp_path / "data", task="sts-b"))
    assert np.isfinite(run.probabilities("dev")[0]).all()
    with pytest.raises(AnalysisError, match="no confidence"):
        calibrations({"a": run})
