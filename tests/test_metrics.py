"""Metrics as papers report them, and the average that the paper's tables have."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stackelberg.nlu import DataError, evaluate, find_task, glue_average, predicted, reported, score
from stackelberg.nlu.metrics import GLUE_AVERAGED, METRICS

# The paper's two tables of GLUE: RTE, MRPC (accuracy, F1), CoLA, SST-2, STS-B (Pearson, Spearman), QNLI, QQP (accuracy
# and F1; F1 and accuracy on the test set), MNLI (matched, mismatched), and the average.
DEV = {
    "BERT-large": "71.1 86.0/89.6 61.8 93.5 89.6/89.3 92.4 91.3/88.4 86.3/86.2 84.0",
    "BERT-base": "63.5 84.1/89.0 54.7 92.9 89.2/88.8 91.1 90.9/88.3 84.5/84.4 81.5",
    "FreeAT": "68.0 85.0/89.2 57.5 93.2 89.5/89.0 91.3 91.2/88.5 84.9/85.0 82.6",
    "FreeLB": "70.0 86.0/90.0 58.9 93.4 89.7/89.2 91.5 91.4/88.4 85.4/85.5 83.3",
    "SMART": "71.2 87.7/91.3 59.1 93.0 90.0/89.4 91.7 91.5/88.5 85.6/86.0 83.8",
    "SALT": "72.9 88.4/91.8 61.0 93.6 90.4/90.0 92.0 91.7/88.6 86.1/85.8 84.5",
}
TEST = {
    "BERT-base": "66.4 84.8/88.9 52.1 93.5 87.1/85.8 90.5 71.2/89.2 84.6/83.4 80.0",
    "FreeLB": "70.1 83.5/88.1 54.5 93.6 87.7/86.7 91.8 72.7/89.6 85.7/84.6 81.2",
    "SALT": "72.2 85.8/89.7 55.6 94.2 88.0/87.1 92.1 72.8/89.8 85.8/84.8 82.0",
}
COLUMNS = ("rte", "mrpc", "cola", "sst-2", "sts-b", "qnli", "qqp", "mnli")


def row(text: str) -> tuple[dict[str, dict[str, float]], float]:
    *cells, average = text.split()
    figures = {
        name: {f"figure {n}": float(value) for n, value in enumerate(cell.split("/"))}
        for name, cell in zip(COLUMNS, cells, strict=True)
    }
    return figures, float(average)


@pytest.mark.parametrize("text", [*DEV.values(), *TEST.values()], ids=[*DEV, *(f"{name} test" for name in TEST)])
def test_the_paper_s_average_comes_from_its_own_row(text: str) -> None:
    figures, average = row(text)
    assert abs(glue_average(figures) - average) <= 0.05 + 1e-9  # as near as one decimal can say
    assert f"{glue_average(figures):.1f}" == f"{average:.1f}"
    fractions = {name: {key: value / 100 for key, value in each.items()} for name, each in figures.items()}
    assert math.isclose(glue_average(fractions), glue_average(figures) / 100)


def test_no_other_rule_gives_the_paper_s_averages() -> None:
    def misses(rule: object) -> int:
        assert callable(rule)
        return sum(abs(rule(figures) - average) > 0.05 + 1e-9 for figures, average in map(row, DEV.values()))

    def every(figures: dict[str, dict[str, float]]) -> list[float]:
        return [value for each in figures.values() for value in each.values()]

    assert misses(glue_average) == 0
    assert misses(lambda figures: np.mean(every(figures))) == 6
    assert misses(lambda figures: np.mean([next(iter(each.values())) for each in figures.values()])) > 0
    assert misses(lambda figures: np.mean([list(each.values())[-1] for each in figures.values()])) > 0
    salt, average = row(DEV["SALT"])
    nine = [*(score(each) for name, each in salt.items() if name != "mnli"), *salt["mnli"].values()]
    assert abs(np.mean(nine) - average) > 0.1


def test_an_average_of_too_few_tasks_is_refused() -> None:
    figures, _ = row(DEV["SALT"])
    del figures["qqp"], figures["rte"]
    with pytest.raises(DataError, match="rte, qqp are missing"):
        glue_average(figures)
    assert set(GLUE_AVERAGED) == set(COLUMNS)


def test_metrics_by_hand() -> None:
    # 3 true positives, 1 false positive, 2 false negatives, 4 true negatives
    given_, wanted = np.array([1, 1, 1, 1, 0, 0, 0, 0, 0, 0]), np.array([1, 1, 1, 0, 1, 1, 0, 0, 0, 0])
    figures = evaluate(find_task("mrpc"), given_, wanted)
    assert list(figures) == ["accuracy", "f1"]
    assert figures["accuracy"] == pytest.approx(0.7) and figures["f1"] == pytest.approx(2 * 3 / (2 * 3 + 1 + 2))
    matthews = evaluate(find_task("cola"), given_, wanted)["matthews"]
    assert matthews == pytest.approx((3 * 4 - 1 * 2) / math.sqrt(4 * 5 * 5 * 6))
    scores = evaluate(find_task("sts-b"), [1.0, 2.0, 4.0], [2.0, 1.0, 3.0])
    assert scores["pearson"] == pytest.approx(2 / math.sqrt((14 / 3) * 2)) and scores["spearman"] == 0.5
    assert score(figures) == pytest.approx((0.7 + 2 / 3) / 2)
    three = METRICS["macro_f1"](np.array([0, 1, 1]), np.array([0, 1, 2]))
    assert three == pytest.approx((1 + 2 / 3 + 0) / 3)


def test_both_sets_of_mnli_are_reported() -> None:
    mnli = find_task("mnli")
    by_split = {
        "dev_matched": {"accuracy": 0.8},
        "dev_mismatched": {"accuracy": 0.6},
        "dev_matched_hard": {"accuracy": 0},
    }
    figures = reported(mnli, by_split)
    assert figures == {"accuracy (dev_matched)": 0.8, "accuracy (dev_mismatched)": 0.6}
    assert score(figures) == pytest.approx(0.7)
    assert reported(find_task("rte"), {"dev": {"accuracy": 0.5}, "train": {"accuracy": 1}}) == {"accuracy": 0.5}
    with pytest.raises(DataError, match="RTE is judged by dev; there are figures of train"):
        reported(find_task("rte"), {"train": {"accuracy": 1}})


def test_constant_predictions_have_a_stated_value_and_no_warning() -> None:
    assert evaluate(find_task("cola"), [1, 1, 1], [0, 1, 1]) == {"matthews": 0.0}
    assert evaluate(find_task("cola"), [0, 1, 1], [1, 1, 1]) == {"matthews": 0.0}
    assert evaluate(find_task("mrpc"), [0, 0], [0, 0]) == {"accuracy": 1.0, "f1": 0.0}
    assert evaluate(find_task("mrpc"), [0, 0], [1, 1]) == {"accuracy": 0.0, "f1": 0.0}
    assert evaluate(find_task("mrpc"), [1, 1], [1, 1]) == {"accuracy": 1.0, "f1": 1.0}
    for same in (2.5, 0.0, 0.1 + 0.2):
        assert evaluate(find_task("sts-b"), [same] * 3, [1.0, 2.0, 3.0]) == {"pearson": 0.0, "spearman": 0.0}
        assert evaluate(find_task("sts-b"), [1.0, 2.0, 3.0], [same] * 3) == {"pearson": 0.0, "spearman": 0.0}
    near = [0.1 + 0.2, 0.3, 0.3]  # constant but for rounding
    assert evaluate(find_task("sts-b"), near, [1.0, 2.0, 3.0]) == {"pearson": 0.0, "spearman": 0.0}
    assert evaluate(find_task("sts-b"), [3.0], [1.0]) == {"pearson": 0.0, "spearman": 0.0}
    assert evaluate(find_task("rte"), [1], [1]) == {"accuracy": 1.0}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_diverged_regression_has_no_score(bad: float) -> None:
    assert all(map(math.isnan, evaluate(find_task("sts-b"), [bad, 1.0, 2.0], [1.0, 2.0, 3.0]).values()))


finite = st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=200, deadline=None)
@given(rows=st.lists(st.tuples(finite, finite), min_size=1, max_size=6))
def test_any_finite_scores_have_a_correlation(rows: list[tuple[float, float]]) -> None:
    figures = evaluate(find_task("sts-b"), [row[0] for row in rows], [row[1] for row in rows])
    assert all(-1 - 1e-9 <= value <= 1 + 1e-9 for value in figures.values())


@settings(max_examples=200, deadline=None)
@given(rows=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=6))
def test_any_classes_have_metrics(rows: list[tuple[int, int]]) -> None:
    for name in ("cola", "mrpc"):
        figures = evaluate(find_task(name), [row[0] for row in rows], [row[1] for row in rows])
        assert all(-1 <= value <= 1 for value in figures.values())


def test_wrong_predictions_are_refused() -> None:
    rte = find_task("rte")
    with pytest.raises(DataError, match=r"shape \(2,\) and targets of shape \(3,\)"):
        evaluate(rte, [0, 1], [0, 1, 1])
    with pytest.raises(DataError, match="no predictions"):
        evaluate(rte, [], [])
    with pytest.raises(DataError, match="predictions have a class 2"):
        evaluate(rte, [0, 2], [0, 1])
    with pytest.raises(DataError, match="targets have a class -100"):
        evaluate(rte, [0, 1], [0, -100])
    with pytest.raises(DataError, match="float64 where the index of a class"):
        evaluate(rte, [0.2, 0.8], [0, 1])


def test_predictions_from_outputs() -> None:
    assert predicted(find_task("rte"), [[0.1, 0.9], [3.0, -1.0]]).tolist() == [1, 0]
    assert predicted(find_task("sts-b"), [[0.1], [3.0]]).tolist() == [0.1, 3.0]
    with pytest.raises(DataError, match="RTE has 2 classes"):
        predicted(find_task("rte"), [[0.1, 0.9, 0.0]])
    with pytest.raises(DataError, match="not one score"):
        predicted(find_task("sts-b"), [[0.1, 0.9]])
