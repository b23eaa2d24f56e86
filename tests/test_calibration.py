"""Calibration against figures worked by hand and against scikit-learn."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, log_loss

from stackelberg.analysis import (
    AnalysisError,
    brier,
    expected_calibration_error,
    fit_temperature,
    halves,
    measure_calibration,
    nll,
    probabilities_of,
    reliability,
    reliability_figure,
    save_figure,
)
from stackelberg.nlu import DataError, MissingPackageError


def binary(confidences: list[float], correct: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Two-class probabilities whose larger one is the confidence, and labels that make rows right or wrong."""
    largest = np.array(confidences)
    return np.stack([largest, 1 - largest], axis=1), 1 - np.array(correct)


def drawn(rows: int = 500, classes: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits, their probabilities and labels: over-confident by a factor of two."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(rows, classes)) * 2
    labels = np.array([random.choice(classes, p=row) for row in probabilities_of(logits, temperature=2.0)])
    return logits, probabilities_of(logits), labels


def test_equal_mass_by_hand() -> None:
    # in order: .55 ✗ .6 ✓ | .7 ✓ .8 ✗ | .9 ✓ 1.0 ✓
    probabilities, labels = binary([0.9, 0.6, 0.8, 1.0, 0.55, 0.7], [1, 1, 0, 1, 0, 1])
    diagram = reliability(probabilities, labels, bins=3)
    assert [each.count for each in diagram.bins] == [2, 2, 2]
    assert [(each.lower, each.upper) for each in diagram.bins] == [(0.55, 0.7), (0.7, 0.9), (0.9, 1.0)]
    assert [each.confidence for each in diagram.bins] == pytest.approx([0.575, 0.75, 0.95])
    assert [each.accuracy for each in diagram.bins] == [0.5, 0.5, 1.0]
    assert diagram.ece == pytest.approx((2 * 0.075 + 2 * 0.25 + 2 * 0.05) / 6) and diagram.mce == pytest.approx(0.25)
    assert diagram.rows == 6


def test_equal_width_by_hand() -> None:
    probabilities, labels = binary([0.55, 0.6, 0.75, 0.8, 1.0], [0, 1, 1, 1, 0])
    diagram = reliability(probabilities, labels, bins=5, binning="equal-width")
    assert [each.count for each in diagram.bins] == [0, 0, 1, 2, 2]  # [ℓ, u): .6 and .8 begin a bin; 1 is in the last
    assert [each.accuracy for each in diagram.bins[2:]] == [0.0, 1.0, 0.5]
    assert diagram.ece == pytest.approx((1 * 0.55 + 2 * (1 - 0.675) + 2 * (0.9 - 0.5)) / 5)
    assert diagram.mce == pytest.approx(0.55) and diagram.bins[0].gap == 0.0 and np.isnan(diagram.bins[0].accuracy)


@pytest.mark.parametrize("binning", ["equal-mass", "equal-width"])
def test_confidence_one_is_in_the_last_bin(binning: str) -> None:
    probabilities, labels = binary([1.0] * 4 + [0.5] * 4, [0, 0, 1, 1, 1, 1, 0, 0])
    diagram = reliability(probabilities, labels, bins=2, binning=binning)  # type: ignore[arg-type]
    assert diagram.bins[-1].upper == 1.0 and diagram.rows == 8
    if binning == "equal-mass":
        assert [each.count for each in diagram.bins] == [4, 4] and diagram.ece == pytest.approx(0.25)
    else:
        assert [each.count for each in diagram.bins] == [0, 8] and diagram.ece == pytest.approx(0.25)
    sure = reliability(*binary([1.0] * 5, [1, 1, 1, 1, 0]), binning=binning)  # type: ignore[arg-type]
    assert sure.bins[-1].count == 5 and sure.ece == pytest.approx(0.2)


def test_edges_are_those_of_decimals() -> None:
    """0.29 · 100 is 28.999… in floating point, and 0.29 begins bin 29 of 100 all the same."""
    hundredths = [number / 100 for number in range(51, 100)]
    diagram = reliability(*binary(hundredths, [1] * 49), bins=100, binning="equal-width")
    assert [each.count for each in diagram.bins] == [0] * 51 + [1] * 49


def test_ties_are_in_one_bin_whatever_the_order() -> None:
    confidences, correct = [0.6, 0.7, 0.7, 0.7, 0.7, 0.8, 0.9, 0.9], [1, 1, 1, 0, 0, 1, 0, 1]
    diagram = reliability(*binary(confidences, correct), bins=4)
    # the bins begin at p(0) = .6, p(2) = .7, p(4) = .7 and p(6) = .9: two of them are one
    assert [each.count for each in diagram.bins] == [1, 5, 2]
    assert diagram.ece == pytest.approx((0.4 + 5 * abs(3 / 5 - 3.6 / 5) + 2 * 0.4) / 8)
    for seed in range(10):
        order = np.random.default_rng(seed).permutation(8)
        shuffled = binary([confidences[n] for n in order], [correct[n] for n in order])
        again = reliability(*shuffled, bins=4)
        assert [each.count for each in again.bins] == [1, 5, 2] and again.ece == pytest.approx(diagram.ece)


def test_equal_mass_bins_differ_by_one_row_at_most() -> None:
    for rows in (10, 23, 99, 872):
        counts = [each.count for each in reliability(*drawn(rows)[1:]).bins]
        assert len(counts) == 10 and max(counts) - min(counts) <= 1 and sum(counts) == rows
    assert [each.count for each in reliability(*drawn(3)[1:]).bins] == [1, 1, 1]


def test_the_curve_is_scikit_learn_s() -> None:
    _, probabilities, labels = drawn(1000)
    correct = probabilities.argmax(axis=1) == labels
    confidence = probabilities.max(axis=1)
    true, predicted = calibration_curve(correct, confidence, n_bins=10, strategy="uniform")
    full = [each for each in reliability(probabilities, labels, binning="equal-width").bins if each.count]
    assert np.allclose([each.accuracy for each in full], true)
    assert np.allclose([each.confidence for each in full], predicted)
    # its quantiles interpolate between rows: with rows = 10 k + 1 they are rows, but belong to the bin below
    _, probabilities, labels = drawn(1001)
    correct, confidence = probabilities.argmax(axis=1) == labels, probabilities.max(axis=1)
    true, predicted = calibration_curve(correct, confidence, n_bins=10, strategy="quantile")
    mass = reliability(probabilities, labels).bins
    assert np.allclose([each.accuracy for each in mass], true, atol=0.011)
    assert np.allclose([each.confidence for each in mass], predicted, atol=0.011)


@pytest.mark.parametrize("classes", [2, 3, 6])
def test_scores_are_scikit_learn_s(classes: int) -> None:
    _, probabilities, labels = drawn(200, classes)
    by_hand = ((probabilities - np.eye(classes)[labels]) ** 2).sum(axis=1).mean()
    assert brier(probabilities, labels) == pytest.approx(by_hand)
    if classes == 2:
        assert brier(probabilities, labels) == pytest.approx(2 * brier_score_loss(labels, probabilities[:, 1]))
    assert nll(probabilities, labels) == pytest.approx(-np.log(probabilities[np.arange(200), labels]).mean())
    assert nll(probabilities, labels) == pytest.approx(log_loss(labels, probabilities, labels=range(classes)))


def test_scores_by_hand() -> None:
    assert brier([[0.8, 0.2], [0.4, 0.6]], [0, 0]) == pytest.approx((0.04 + 0.04 + 0.36 + 0.36) / 2)
    assert nll([[0.5, 0.5], [0.25, 0.75]], [0, 0]) == pytest.approx(np.log(8) / 2)
    assert brier([[1.0, 0.0]], [1]) == 2.0 and nll([[1.0, 0.0]], [0]) == pytest.approx(0, abs=1e-9)
    assert 36 <= nll([[1.0, 0.0]], [1]) <= 37  # finite
    assert brier([[0.2, 0.3, 0.5]], [2]) == pytest.approx(0.04 + 0.09 + 0.25)  # one row, a class that is not there


def test_all_figures_at_once() -> None:
    _, probabilities, labels = drawn()
    figures = measure_calibration(probabilities, labels)
    assert figures.rows == 500 and figures.accuracy == (probabilities.argmax(axis=1) == labels).mean()
    assert figures.confidence > figures.accuracy + 0.05  # drawn over-confident
    assert figures.ece == expected_calibration_error(probabilities, labels) <= figures.mce
    assert figures.ece_width == expected_calibration_error(probabilities, labels, binning="equal-width")
    assert figures.ece == pytest.approx(figures.confidence - figures.accuracy, abs=0.02)
    assert figures.brier == brier(probabilities, labels) and figures.nll == nll(probabilities, labels)


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=1, max_size=30),
    bins=st.integers(1, 15),
    binning=st.sampled_from(["equal-mass", "equal-width"]),
)
def test_every_row_is_in_a_bin_that_holds_it(rows: list[tuple[int, bool]], bins: int, binning: str) -> None:
    confidences = [0.5 + eighth / 16 for eighth, _ in rows]
    probabilities, labels = binary(confidences, [int(right) for _, right in rows])
    diagram = reliability(probabilities, labels, bins=bins, binning=binning)  # type: ignore[arg-type]
    assert (
        diagram.rows == len(rows) and len(diagram.bins) <= bins and 0 <= diagram.ece <= diagram.mce + 1e-9 <= 1 + 1e-9
    )
    for number, each in enumerate(diagram.bins):
        last = number == len(diagram.bins) - 1
        inside = [c for c in confidences if each.lower <= c and (c <= each.upper if last else c < each.upper)]
        assert each.count == len(inside)
        assert not inside or each.confidence == pytest.approx(np.mean(inside))
    # however they are cut, Σ over bins of count · (accuracy − confidence) is that of all rows
    total = sum(each.count * (each.accuracy - each.confidence) for each in diagram.bins if each.count)
    assert total == pytest.approx(sum(right for _, right in rows) - sum(confidences))


def test_torch_and_half_precision_are_taken() -> None:
    logits, probabilities, labels = drawn(50)
    half = torch.tensor(logits).softmax(-1).half()
    assert measure_calibration(half, torch.tensor(labels)).ece == pytest.approx(
        measure_calibration(probabilities, labels).ece, abs=1e-3
    )
    assert probabilities_of(torch.tensor([[1000.0, 0.0]])).tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize(
    ("probabilities", "labels", "words"),
    [
        ([[0.7, 0.7]], [0], "row 0 are 0.7, 0.7, which is no distribution"),
        ([[0.5, 0.5], [1.2, -0.2]], [0, 0], "row 1"),
        ([[3.1, -2.0]], [0], "probabilities_of"),
        ([[np.nan, 0.5]], [0], "all must be finite"),
        ([[0.5, 0.5]], [2], "classes 0 to 1; there are 2"),
        ([[0.5, 0.5]], [-100], "there are -100"),
        ([[0.5, 0.5]], [0.0], "classes 0 to 1"),
        ([[0.5, 0.5]], [0, 1], r"shape \(2,\) are not one class for each of 1 rows"),
        ([0.5, 0.5], [0, 1], r"shape \(2,\)"),
        (np.zeros((0, 2)), [], r"shape \(0, 2\)"),
    ],
)
def test_what_is_no_distribution_is_refused(probabilities: object, labels: object, words: str) -> None:
    with pytest.raises(DataError, match=words):
        measure_calibration(probabilities, labels)  # type: ignore[arg-type]


def test_wrong_bins_are_refused() -> None:
    with pytest.raises(DataError, match="bins=0"):
        reliability([[0.5, 0.5]], [0], bins=0)
    with pytest.raises(ValueError, match="equal-mass, equal-width"):
        reliability([[0.5, 0.5]], [0], binning="equal-sized")  # type: ignore[arg-type]


def test_temperature_is_found_and_helps_on_other_rows() -> None:
    logits, _, labels = drawn(4000)
    first, second = halves(4000, seed=1)
    temperature = fit_temperature(logits[first], labels[first], split="dev, first half")
    assert temperature.value == pytest.approx(2.0, rel=0.1) and not temperature.bounded  # as drawn
    after = temperature.calibration(logits[second], labels[second], split="dev, second half")
    before = measure_calibration(probabilities_of(logits[second]), labels[second])
    assert after.ece < before.ece / 2 and after.nll < before.nll and after.accuracy == before.accuracy
    grid = np.linspace(0.5, 5, 451)
    losses = [nll(probabilities_of(logits[first], temperature=t), labels[first]) for t in grid]
    assert temperature.value == pytest.approx(grid[int(np.argmin(losses))], abs=0.01)


def test_a_temperature_is_not_reported_on_what_it_was_fitted_on() -> None:
    logits, _, labels = drawn(100)
    temperature = fit_temperature(logits[:50], labels[:50], split="dev")
    with pytest.raises(AnalysisError, match="fitted on 'dev', and 'dev' is that split"):
        temperature.apply(logits[50:], split="dev")
    for again in (logits[:50], logits[:50][::-1], logits[:20], logits):  # the same, in another order, fewer, and more
        with pytest.raises(AnalysisError, match="'other' has the same rows"):
            temperature.calibration(again, labels[: len(again)], split="other")
    assert temperature.apply(logits[50:], split="test").shape == (50, 3)


def test_temperatures_that_nothing_determines() -> None:
    right = fit_temperature([[2.0, 0.0], [0.0, 3.0]], [0, 1], split="a")
    assert right.bounded and right.value == pytest.approx(0.01)
    wrong = fit_temperature([[2.0, 0.0], [0.0, 3.0]], [1, 0], split="a")
    assert wrong.bounded and wrong.value == pytest.approx(100)
    alike = fit_temperature([[1.0, 1.0], [0.0, 0.0]], [1, 0], split="a")
    assert alike.bounded and alike.value == 1.0


def test_halves_are_halves() -> None:
    first, second = halves(7, seed=2)
    assert sorted([*first, *second]) == list(range(7)) and len(first) == 3
    assert halves(7, seed=2) == (first, second) and halves(100, seed=0) != halves(100, seed=1)
    with pytest.raises(AnalysisError, match="1 rows"):
        halves(1)


@pytest.mark.parametrize("binning", ["equal-mass", "equal-width"])
def test_the_reliability_diagram(tmp_path: Path, binning: str) -> None:
    diagrams = {
        f"method {seed}": reliability(*drawn(300, 2, seed)[1:], binning=binning)  # type: ignore[arg-type]
        for seed in range(3)
    }
    figure = reliability_figure(diagrams, title="SST-2")
    save_figure(figure, tmp_path / "a.svg")
    assert len(figure.axes) == 3
    for panel, (name, diagram) in zip(figure.axes, diagrams.items(), strict=True):
        assert panel.get_title() == f"{name} (ECE: {diagram.ece:.2%})"
        full = [each for each in diagram.bins if each.count]
        bars = [patch.get_height() for patch in panel.patches]
        assert bars == pytest.approx([each.accuracy for each in full] + [each.gap for each in full])
    names = {text.get_text() for text in figure.legends[0].get_texts()}
    assert names == {"accuracy", "gap to confidence", "perfect calibration"}
    save_figure(figure, tmp_path / "a.png")
    save_figure(reliability_figure(diagrams, title="SST-2"), tmp_path / "b.svg")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert ElementTree.parse(tmp_path / "a.svg").getroot().tag.endswith("svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_figures_that_cannot_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, probabilities, labels = drawn(50)
    mass = reliability(probabilities, labels)
    with pytest.raises(AnalysisError, match="no method"):
        reliability_figure({})
    with pytest.raises(AnalysisError, match="different rules"):
        reliability_figure({"a": mass, "b": reliability(probabilities, labels, binning="equal-width")})
    with pytest.raises(AnalysisError, match=r"\.png or \.svg"):
        save_figure(reliability_figure({"a": mass}), tmp_path / "a.jpg")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'stackelberg\[report\]'"):
        reliability_figure({"a": mass})
