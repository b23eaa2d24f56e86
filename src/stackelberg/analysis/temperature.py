"""Temperature scaling: one number, fitted on rows that are then not reported on.

softmax(z / T) has the same classes as softmax(z) and other confidences; T > 1 makes a model less sure (Guo et al.,
2017). T is the minimum of the NLL, which is convex in 1/T.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from stackelberg.analysis.errors import AnalysisError
from stackelberg.extras import need
from stackelberg.nlu.calibration import (
    BINS,
    Calibration,
    Floats,
    checked_labels,
    checked_logits,
    measure_calibration,
    probabilities_of,
)

LEAST, GREATEST = 0.01, 100.0


@dataclass(frozen=True, slots=True)
class Temperature:
    """A temperature and what it was fitted on.

    Args:
        value: T.
        fitted_on: name of the split.
        bounded: whether the best T is beyond 0.01 or 100, so that `value` is that bound: all rows right, or no row's
            logits of any use.
        seen: the rows it was fitted on, to know them again under another name.
    """

    value: float
    fitted_on: str
    bounded: bool
    seen: frozenset[bytes] = field(repr=False)

    def apply(self, logits: ArrayLike, *, split: str) -> Floats:
        """Probabilities of the rows of another split.

        Args:
            logits: rows × classes.
            split: its name. The split that T was fitted on is refused, by name and by its rows, for T has seen its
                labels.
        """
        values = checked_logits(logits)
        rows = _rows(values)
        again = len(rows) > 1 and (rows <= self.seen or self.seen <= rows)
        if split == self.fitted_on or again:
            raise AnalysisError(
                f"the temperature was fitted on {self.fitted_on!r}, and {split!r} "
                f"{'is that split' if split == self.fitted_on else 'has the same rows'}; report on rows that it has "
                "not seen, such as the other half of halves(…)"
            )
        return probabilities_of(values, temperature=self.value)

    def calibration(self, logits: ArrayLike, labels: ArrayLike, *, split: str, bins: int = BINS) -> Calibration:
        """The figures of another split at this temperature; see `apply` and `measure_calibration`."""
        return measure_calibration(self.apply(logits, split=split), labels, bins=bins)


def fit_temperature(logits: ArrayLike, labels: ArrayLike, *, split: str) -> Temperature:
    """The temperature with the least NLL on a split, between 0.01 and 100.

    Args:
        logits: rows × classes.
        labels: the true class of every row.
        split: its name, which is refused when the temperature is applied.
    """
    values = checked_logits(logits)
    wanted = checked_labels(labels, *values.shape)
    log_softmax = need("scipy.special").log_softmax
    rows = np.arange(len(values))

    def nll(log_temperature: float) -> float:
        return -float(log_softmax(values / np.exp(log_temperature), axis=1)[rows, wanted].mean())

    if not np.ptp(values, axis=1).any():  # every class alike in every row: so is every temperature
        return Temperature(1.0, split, True, _rows(values))
    ends = (float(np.log(LEAST)), float(np.log(GREATEST)))
    found = need("scipy.optimize").minimize_scalar(nll, bounds=ends, method="bounded", options={"xatol": 1e-6})
    best = min((*ends, float(found.x)), key=nll)
    return Temperature(float(np.exp(best)), split, best in ends, _rows(values))


def halves(rows: int, *, seed: int = 0) -> tuple[Sequence[int], Sequence[int]]:
    """Two halves of a split, at random: one to fit a temperature on and one to report on.

    Args:
        rows: of the split; the indices in each half are in order.
        seed: the same seed cuts the same way.
    """
    if rows < 2:
        raise AnalysisError(f"a split of {rows} rows cannot be halved")
    order = np.random.default_rng(seed).permutation(rows)
    first, second = np.sort(order[: rows // 2]), np.sort(order[rows // 2 :])
    return first.tolist(), second.tolist()


def _rows(values: Floats) -> frozenset[bytes]:
    return frozenset(row.tobytes() for row in values)
