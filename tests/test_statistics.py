"""Statistics against cases worked by hand, published figures, and simulations where the truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from stackelberg.analysis import AnalysisError
from stackelberg.analysis.resampling import RESAMPLED, draws, resampled
from stackelberg.analysis.statistics import (
    Difference,
    detectable_difference,
    holm,
    mean_interval,
    paired_difference,
    spread,
)
from stackelberg.errors import SettingError
from stackelberg.nlu.metrics import METRICS


def test_spread_by_hand() -> None:
    of_three = spread([0.70, 0.72, 0.77])
    # deviations −.03, −.01, .04: squares 9 + 1 + 16 = 26e-4, over 2
    assert of_three.mean == pytest.approx(0.73) and of_three.deviation == pytest.approx(math.sqrt(13e-4))
    assert of_three.text(100) == "73.0 ± 3.6"
    assert spread([0.7]).deviation is None and spread([0.7]).text(100) == "70.0"


def test_t_interval_by_hand() -> None:
    found = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found is not None and found.method == "t"
    # t with 4 degrees of freedom at 0.975 is 2.776; the standard error is √2.5/√5
    assert found.margin == pytest.approx(2.776 * math.sqrt(0.5), abs=1e-3)
    assert (found.low + found.high) / 2 == pytest.approx(3)


def test_one_value_and_equal_values_have_no_nan() -> None:
    assert mean_interval([0.5]) is None
    for method in ("t", "percentile", "BCa"):
        same = mean_interval([0.5] * 4, method=method)  # type: ignore[arg-type]
        assert same is not None and (same.low, same.high) == (0.5, 0.5)


def test_many_values_take_bca() -> None:
    found = mean_interval(np.random.default_rng(0).exponential(size=200))
    assert found is not None and found.method == "BCa" and 0 < found.low < 1.1 < found.high < 1.4


def coverage(method: str, size: int, times: int) -> float:
    """Of 95 % intervals for the mean of normal values, the share that holds it."""
    values = np.random.default_rng(1).normal(size=(times, size))
    found = [mean_interval(row, method=method, resamples=500) for row in values]  # type: ignore[arg-type]
    return float(np.mean([each is not None and each.low <= 0 <= each.high for each in found]))


def test_coverage_is_why_few_values_take_t() -> None:
    """The figures in the module's docstring."""
    assert coverage("t", 5, 3000) == pytest.approx(0.95, abs=0.012)
    assert coverage("percentile", 5, 1200) == pytest.approx(0.84, abs=0.03)
    assert coverage("BCa", 5, 1200) == pytest.approx(0.83, abs=0.04)
    assert coverage("percentile", 10, 1200) == pytest.approx(0.90, abs=0.03)
    assert coverage("BCa", 30, 1200) == pytest.approx(0.94, abs=0.02)


def test_holm_by_hand() -> None:
    # in order .005·4 = .02, .01·3 = .03, .03·2 = .06, .04·1 = .04 → .06
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0] and holm([0.2]) == [0.2] and holm([]) == []
    with pytest.raises(AnalysisError, match="no probability"):
        holm([1.2])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_keeps_order_and_never_lowers(values: list[float]) -> None:
    corrected = holm(values)
    assert all(after >= before for before, after in zip(values, corrected, strict=True))
    for first, one in zip(values, corrected, strict=True):
        assert all(one <= other for second, other in zip(values, corrected, strict=True) if first < second)


def test_holm_finds_nothing_in_noise() -> None:
    """Four methods that differ by luck alone: one is called better in at most 5 % of the comparisons."""
    draws = np.random.default_rng(0).uniform(size=(4000, 4))
    assert np.mean([min(holm(list(row))) < 0.05 for row in draws]) == pytest.approx(0.05, abs=0.012)


def test_detectable_difference_as_power_tables_have_it() -> None:
    """Paired t test, two-sided 5 %, power 80 %, in standard deviations: Cohen's tables and G*Power."""
    for pairs, size in ((5, 1.6825), (10, 0.9960), (34, 0.4952)):
        assert detectable_difference(1 / math.sqrt(pairs), pairs - 1) == pytest.approx(size, abs=2e-3)
    assert detectable_difference(0.01, 4, alpha=0.05 / 4) > detectable_difference(0.01, 4)
    assert detectable_difference(0.0, 4) == 0.0
    with pytest.raises(AnalysisError, match="power"):
        detectable_difference(0.01, 4, power=0.01)
    with pytest.raises(AnalysisError, match="freedom"):
        detectable_difference(0.01, 0)


def test_detectable_difference_is_detected_as_often() -> None:
    shift = detectable_difference(1 / math.sqrt(6), 5)
    values = np.random.default_rng(0).normal(loc=shift, size=(4000, 6))
    assert np.mean(stats.ttest_1samp(values, 0, axis=1).pvalue < 0.05) == pytest.approx(0.8, abs=0.02)


def crossed(random: np.random.Generator, *, seeds: int, rows: int, shift: float = 0.0) -> tuple[np.ndarray, ...]:
    """Rows that two methods get right or wrong, by luck of the method in a seed, of the row for a method, and of both.

    The true difference of the methods over all seeds and rows is `shift` to begin with, in logits; 0 is no difference.
    """
    shared = random.normal(size=rows) * 1.5
    right = []
    for sign in (0.5, -0.5):
        luck = random.normal(size=(seeds, 1)) * 0.15 + random.normal(size=rows) * 0.8 + shared
        right.append(random.uniform(size=(seeds, rows)) < 1 / (1 + np.exp(-(luck + sign * shift))))
    return right[0].astype(int), right[1].astype(int)


def compared(first: np.ndarray, second: np.ndarray, *, resamples: int = 300, seed: int = 0) -> Difference:
    targets = np.ones(first.shape[1], dtype=int)
    drawn = resampled(["accuracy"], [*first, *second], targets, resamples=resamples, seed=seed)
    return paired_difference(
        first.mean(axis=1), second.mean(axis=1), drawn[:, : len(first)], drawn[:, len(first) :], rows=first.shape[1]
    )


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_intervals_over_seeds_and_rows_hold_the_truth(seeds: int) -> None:
    """Two methods that are alike, 500 times: p < 0.05 in 5 % of the cases at most, and not in next to none."""
    random = np.random.default_rng(seeds)
    found = [compared(*crossed(random, seeds=seeds, rows=150), seed=time) for time in range(500)]
    both = np.mean([each.over_both is not None and each.over_both.low <= 0 <= each.over_both.high for each in found])
    assert 0.94 <= both <= 0.995
    assert np.mean([each.p is not None and each.p < 0.05 for each in found]) == pytest.approx(1 - both)
    # rows alone, the seeds kept, is another question, and too sure for this one
    alone = np.mean([each.over_rows.low <= 0 <= each.over_rows.high for each in found])
    assert alone < both


def test_a_real_difference_is_found() -> None:
    random = np.random.default_rng(0)
    found = [compared(*crossed(random, seeds=5, rows=400, shift=1.0), seed=time) for time in range(40)]
    assert np.mean([each.p is not None and each.p < 0.05 for each in found]) > 0.9
    assert all(each.value > 0 for each in found)


def test_difference_by_hand() -> None:
    """Two seeds, four rows: d = (0.25, 0.5) and D = 0.375; over seeds, t with one degree of freedom is 12.706."""
    first, second = np.array([[1, 1, 1, 0], [1, 1, 1, 1]]), np.array([[1, 1, 0, 0], [1, 0, 1, 0]])
    found = compared(first, second, resamples=4000)
    assert found.value == 0.375 and found.seeds == 2
    assert found.over_seeds is not None and found.over_seeds.margin == pytest.approx(12.706 * 0.125, abs=1e-3)
    # rows' mean differences are 0, .5, .5, .5: their mean has variance ((.375² + 3·.125²)/4)/4
    by_rows = (0.375**2 + 3 * 0.125**2) / 16
    assert found.standard_error == pytest.approx(math.sqrt(by_rows + 0.125**2), rel=0.02)
    assert found.over_both is not None and found.over_both.margin > found.over_rows.margin


def test_degenerate_differences_have_no_nan() -> None:
    rows = np.array([[1, 0, 1, 1, 0]])
    one = compared(rows, 1 - rows)
    assert (one.over_seeds, one.over_both, one.p) == (None, None, None) and math.isfinite(one.over_rows.low)
    same = compared(np.repeat(rows, 3, axis=0), np.repeat(rows, 3, axis=0))
    assert same.value == 0 and same.p == 1.0 and same.over_both is None
    apart = compared(np.ones((3, 5), dtype=int), np.zeros((3, 5), dtype=int))
    assert apart.value == 1 and apart.p is None and apart.over_both is None  # no spread at all to judge it by


def test_wrong_values_are_one_sentence() -> None:
    with pytest.raises(AnalysisError, match="value 1 is not finite"):
        spread([0.1, math.nan])
    with pytest.raises(AnalysisError, match="at least one"):
        spread([])
    with pytest.raises(AnalysisError, match="resamples × 2 seeds"):
        paired_difference([1, 2], [1, 2], np.zeros((5, 3)), np.zeros((5, 3)), rows=4)
    with pytest.raises(SettingError, match="percentile"):
        mean_interval([1, 2], method="percentiles")  # type: ignore[arg-type]
    with pytest.raises(AnalysisError, match="level=95"):
        mean_interval([1, 2], level=95)


def test_every_metric_can_be_resampled() -> None:
    assert set(RESAMPLED) == set(METRICS)


@pytest.mark.parametrize("name", sorted(METRICS))
@pytest.mark.parametrize("classes", [2, 4])
def test_resampled_metric_is_the_metric_of_repeated_rows(name: str, classes: int) -> None:
    random = np.random.default_rng(classes)
    if name in ("pearson", "spearman"):
        targets = random.integers(5, size=40).astype(float)  # with ties
        predictions = np.round(targets + random.normal(size=40) * 2, 1) * 1e3
    else:
        targets, predictions = random.integers(classes, size=(2, 40))
    for counts in draws(40, 50):
        found = RESAMPLED[name](counts, predictions, targets)
        for row, figure in zip(counts.astype(int), found, strict=True):
            expected = METRICS[name](np.repeat(predictions, row), np.repeat(targets, row))
            assert figure == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", sorted(METRICS))
def test_resampled_metrics_follow_the_same_rules_at_the_edges(name: str) -> None:
    scores = name in ("pearson", "spearman")
    nothing = np.zeros(3) if scores else np.zeros(3, dtype=int)
    some = np.array([0.0, 1.0, 2.0]) if scores else np.array([0, 1, 1])
    counts = np.array([[1.0, 1.0, 1.0], [3.0, 0.0, 0.0], [0.0, 2.0, 1.0]])
    for said, wanted in ((nothing, some), (some, nothing), (some, some), (nothing, nothing)):
        found = RESAMPLED[name](counts, said, wanted)
        for row, figure in zip(counts.astype(int), found, strict=True):
            assert figure == pytest.approx(METRICS[name](np.repeat(said, row), np.repeat(wanted, row)), abs=1e-12)
    if scores:
        assert np.isnan(RESAMPLED[name](counts, np.array([np.nan, 1.0, 2.0]), some)).all()


@settings(max_examples=20)
@given(st.integers(1, 50), st.integers(1, 30))
def test_a_resample_has_as_many_rows(rows: int, resamples: int) -> None:
    counts = np.concatenate(list(draws(rows, resamples)))
    assert counts.shape == (resamples, rows) and (counts.sum(axis=1) == rows).all() and (counts >= 0).all()


def test_resampling_many_rows_is_quick_and_the_same_again() -> None:
    targets = np.random.default_rng(0).integers(2, size=20_000)
    first = resampled(["accuracy", "f1"], [targets, 1 - targets], targets, resamples=300)
    assert first.shape == (300, 2) and (first[:, 0] == 1).all() and (first[:, 1] == 0).all()
    again = resampled(["accuracy", "f1"], [targets, 1 - targets], targets, resamples=300)
    assert (first == again).all()
