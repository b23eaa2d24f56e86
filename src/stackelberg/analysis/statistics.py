r"""Is a difference between two methods more than luck? Spread, intervals, Holm's correction, what could have been seen.

A method is played with S seeds and judged on n rows, and both are a draw: another seed gives another model, another n
rows give other scores. With dₛ the difference of two methods in seed s, both played on that seed and judged on the same
rows, D = mean dₛ has three intervals:

- over rows: rows are drawn anew, with replacement, the same rows for both methods and every seed, and the seeds are
  kept (percentile bootstrap). It speaks of these very models on other rows.
- over seeds: Student's t of dₛ with S − 1 degrees of freedom, the rows kept. It speaks of other seeds on these rows.
- over both: D ± t · √(SE²_rows + SE²_seeds), SE_rows being the bootstrap's and SE_seeds = sd(dₛ)/√S, with the degrees
  of freedom of Welch and Satterthwaite. It is what a claim about two methods needs. The luck of one row in one seed is
  in both terms, so the interval is a little too wide: in simulations it held the truth in 96 to 98 % of the cases.

Why no bootstrap over seeds alone: it draws from so few values that its intervals are too narrow. Of 95 % intervals for
the mean of normal values, percentiles hold the truth in 85 % of the cases with 5 values and 90 % with 10, BCa in no
more, Student's t in 95 % (`tests/test_statistics.py` measures them). From 30 values on `mean_interval` takes BCa.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stackelberg.analysis.errors import AnalysisError
from stackelberg.errors import one_of
from stackelberg.extras import need

Floats = NDArray[np.float64]
Method = Literal["t", "percentile", "BCa"]

METHODS: tuple[Method, ...] = ("t", "percentile", "BCa")
LEVEL = 0.95
POWER = 0.8
RESAMPLES = 2000
FEW = 30  # values; with fewer a bootstrap of them is too sure


@dataclass(frozen=True, slots=True)
class Spread:
    """Values in short.

    Args:
        mean: of the values.
        deviation: standard deviation with n − 1 in the denominator; None of one value, which has none.
        count: n.
    """

    mean: float
    deviation: float | None
    count: int

    def text(self, scale: float = 1.0, digits: int = 1) -> str:
        """`72.3 ± 1.1`, or `72.3` of one value."""
        mean = f"{scale * self.mean:.{digits}f}"
        return mean if self.deviation is None else f"{mean} ± {scale * self.deviation:.{digits}f}"


@dataclass(frozen=True, slots=True)
class Interval:
    """Where a figure lies.

    Args:
        low: its lower end.
        high: its upper end.
        level: share of such intervals that hold the truth.
        method: `t`, `percentile`, `BCa`, or for an interval over rows and seeds `bootstrap SE, t`.
    """

    low: float
    high: float
    level: float
    method: str

    @property
    def margin(self) -> float:
        """Half its width."""
        return (self.high - self.low) / 2


@dataclass(frozen=True, slots=True)
class Difference:
    """One method's mean score less another's, over the same seeds and rows.

    Args:
        value: D.
        seeds: how many were paired.
        over_rows: models kept, rows drawn anew.
        over_seeds: rows kept, seeds drawn anew; None with one seed.
        over_both: both drawn anew; None where no spread was seen to make one of.
        standard_error: of `over_both`; None with one seed.
        freedom: its degrees of freedom; None where there is no spread.
        p: of no difference, two-sided, not corrected for other comparisons; None with one seed, and where no
            spread was seen to judge a difference by.
    """

    value: float
    seeds: int
    over_rows: Interval
    over_seeds: Interval | None = None
    over_both: Interval | None = None
    standard_error: float | None = None
    freedom: float | None = None
    p: float | None = None

    def least(self, alpha: float) -> float | None:
        """What a difference must exceed for its p to be below alpha; None where there is no p to go by."""
        if not self.standard_error or self.freedom is None:
            return None
        return self.standard_error * _t(1 - alpha, self.freedom)

    def detectable(self, alpha: float, power: float = POWER) -> float | None:
        """The true difference that has such a chance to come out with p below alpha; None likewise."""
        if not self.standard_error or self.freedom is None:
            return None
        return detectable_difference(self.standard_error, self.freedom, alpha=alpha, power=power)


def spread(values: ArrayLike) -> Spread:
    """Mean and standard deviation."""
    given = _checked(values)
    return Spread(float(given.mean()), float(given.std(ddof=1)) if len(given) > 1 else None, len(given))


def mean_interval(
    values: ArrayLike, *, level: float = LEVEL, method: Method | None = None, resamples: int = RESAMPLES, seed: int = 0
) -> Interval | None:
    """Where the mean of values lies that were drawn alike and apart; None of one value, which cannot say.

    Args:
        values: of one draw each; of pairs, their differences.
        level: share of such intervals that hold the true mean.
        method: Student's `t`, or the bootstrap's `percentile` or `BCa`; `t` for fewer than 30 values and `BCa` from
            there on when None.
        resamples: of a bootstrap.
        seed: of a bootstrap.
    """
    given = _checked(values)
    if method is not None:
        one_of("method", method, METHODS)
    method = method or ("t" if len(given) < FEW else "BCa")
    if not 0 < level < 1:
        raise AnalysisError(f"level={level} must be between 0 and 1, such as 0.95")
    if len(given) < 2:
        return None
    mean = float(given.mean())
    if not np.ptp(given):
        return Interval(mean, mean, level, method)
    if method == "t":
        reach = _t(level, len(given) - 1) * float(given.std(ddof=1)) / math.sqrt(len(given))
        return Interval(mean - reach, mean + reach, level, method)
    found = need("scipy.stats").bootstrap(
        (given,),
        np.mean,
        confidence_level=level,
        n_resamples=resamples,
        method=method,
        rng=np.random.default_rng(seed),
    )
    low, high = found.confidence_interval
    return Interval(float(low), float(high), level, method)


def paired_difference(
    first: ArrayLike,
    second: ArrayLike,
    resampled_first: ArrayLike,
    resampled_second: ArrayLike,
    *,
    rows: int,
    level: float = LEVEL,
) -> Difference:
    """One method against another; the module says what each interval means.

    Args:
        first: score in each seed.
        second: the other method's, of the same seeds in the same order.
        resampled_first: resamples × seeds, the same scores on rows drawn anew.
        resampled_second: the other method's on the same rows.
        rows: how many were drawn from.
        level: share of such intervals that hold the truth.
    """
    values = _checked(first) - _checked(second)
    drawn = np.asarray(resampled_first, dtype=np.float64) - np.asarray(resampled_second, dtype=np.float64)
    if drawn.ndim != 2 or drawn.shape[1] != len(values) or len(drawn) < 2:
        raise AnalysisError(f"resampled scores of shape {drawn.shape} are not resamples × {len(values)} seeds")
    seeds, value, means = len(values), float(values.mean()), drawn.mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    over_rows = Interval(float(low), float(high), level, "percentile")
    if seeds < 2:
        return Difference(value, seeds, over_rows)
    by_rows, by_seeds = float(means.var(ddof=1)), float(values.var(ddof=1)) / seeds
    over_seeds = mean_interval(values, level=level, method="t")
    if not by_rows + by_seeds:  # the same everywhere: no difference at all, or nothing to judge one by
        return Difference(value, seeds, over_rows, over_seeds, None, 0.0, None, None if value else 1.0)
    error = math.sqrt(by_rows + by_seeds)
    freedom = (by_rows + by_seeds) ** 2 / (by_rows**2 / max(rows - 1, 1) + by_seeds**2 / (seeds - 1))
    reach = _t(level, freedom) * error
    return Difference(
        value=value,
        seeds=seeds,
        over_rows=over_rows,
        over_seeds=over_seeds,
        over_both=Interval(value - reach, value + reach, level, "bootstrap SE, t"),
        standard_error=error,
        freedom=freedom,
        p=2 * float(need("scipy.stats").t.sf(abs(value) / error, freedom)),
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: of several comparisons, the chance that any is found where there is nothing stays at p.

    The kᵗʰ smallest of m is multiplied by m − k + 1, and none may come out below one that was smaller.
    """
    for p in p_values:
        if not 0 <= p <= 1:
            raise AnalysisError(f"p={p} is no probability")
    corrected = [1.0] * len(p_values)
    least = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = least
    return corrected


def detectable_difference(
    standard_error: float, freedom: float, *, alpha: float = 1 - LEVEL, power: float = POWER
) -> float:
    """The true difference that a two-sided t test finds with a given chance.

    Args:
        standard_error: of the difference.
        freedom: degrees of freedom of that error.
        alpha: of the test; divided by the number of comparisons where there are several.
        power: chance to find it.
    """
    if not (0 < alpha < 1 and alpha < power < 1):
        raise AnalysisError(f"alpha={alpha} and power={power} must be between 0 and 1, and power the greater")
    if not (standard_error >= 0 and freedom > 0 and math.isfinite(standard_error)):
        raise AnalysisError(f"standard_error={standard_error} with freedom={freedom} is no error to judge by")
    stats = need("scipy.stats")
    least = _t(1 - alpha, freedom)

    def lacking(shift: float) -> float:
        # the far tail is that of the mirrored distribution: scipy's own is nan for large shifts
        return float(stats.nct.sf(least, freedom, shift) + stats.nct.sf(least, freedom, -shift)) - power

    far = least + 1.0
    while lacking(far) < 0:
        far *= 2
    return standard_error * float(need("scipy.optimize").brentq(lacking, 0.0, far))


def _t(level: float, freedom: float) -> float:
    return float(need("scipy.stats").t.ppf((1 + level) / 2, freedom))


def _checked(values: ArrayLike) -> Floats:
    given = np.asarray(values, dtype=np.float64)
    if given.ndim != 1 or not len(given):
        raise AnalysisError(f"values of shape {given.shape} are not a list of at least one")
    if not np.isfinite(given).all():
        raise AnalysisError(f"value {int(np.flatnonzero(~np.isfinite(given))[0])} is not finite; leave that run out")
    return given
