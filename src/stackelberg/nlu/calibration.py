"""Calibration: is a model that is 60 % sure right 60 % of the time?

The confidence p̂ᵢ of row i is the largest of its class probabilities, and cᵢ is 1 where that class is the true one.
Rows are put into M bins B₁ … B_M by confidence; with conf(B) the mean of p̂ in a bin and acc(B) the mean of c,

    Ê_m = |Σ_{i ∈ B_m} (cᵢ − p̂ᵢ)| / |B_m| = |acc(B_m) − conf(B_m)|
    ECE = Σ_m (|B_m| / n) Ê_m            MCE = max_m Ê_m

over the bins that have rows. A bin is [ℓ_m, u_m), and the last one is closed: confidence 1 is in it. The two binnings:

- `equal-mass`, the paper's ("10 bins of equal size"): with the confidences in order, p₍₀₎ ≤ … ≤ p₍ₙ₋₁₎, bin m begins
  at ℓ_m = p₍⌊(m−1)n/M⌋₎. A row's bin follows from its confidence alone, so rows that tie are in one bin, whatever
  their order; bins then differ in size, and one that ties leave empty is not there. Without ties sizes differ by one
  at most.
- `equal-width`, of Guo et al. (2017): ℓ_m = (m − 1)/M.

    NLL = −(1/n) Σᵢ log p_{i,yᵢ}        Brier = (1/n) Σᵢ Σ_c (p_{ic} − 1[yᵢ = c])²

Brier's own score sums over the classes and runs from 0 to 2; with two classes it is twice the one-column score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stackelberg.errors import DataError, one_of
from stackelberg.extras import need

Binning = Literal["equal-mass", "equal-width"]
Floats = NDArray[np.float64]

BINS = 10
ROUNDING = 1e-2  # by which a row of half-precision probabilities may miss 1


@dataclass(frozen=True, slots=True)
class Bin:
    """Rows of like confidence.

    Args:
        lower: confidences are at least this,
        upper: and less than this; in the last bin, at most this.
        count: of rows; 0 only in bins of equal width.
        confidence: their mean; nan without rows.
        accuracy: share of them that are right; nan without rows.
    """

    lower: float
    upper: float
    count: int
    confidence: float
    accuracy: float

    @property
    def gap(self) -> float:
        """Ê_m, the distance between accuracy and confidence; 0 without rows."""
        return abs(self.accuracy - self.confidence) if self.count else 0.0


@dataclass(frozen=True, slots=True)
class Reliability:
    """What a reliability diagram shows.

    Args:
        binning: which rule made the bins.
        bins: in order of confidence.
    """

    binning: Binning
    bins: tuple[Bin, ...]

    @property
    def rows(self) -> int:
        """Of all bins."""
        return sum(each.count for each in self.bins)

    @property
    def ece(self) -> float:
        """Expected calibration error: the mean gap of a row."""
        return sum(each.count * each.gap for each in self.bins) / self.rows

    @property
    def mce(self) -> float:
        """Maximum calibration error: the widest gap of a bin."""
        return max(each.gap for each in self.bins)


@dataclass(frozen=True, slots=True)
class Calibration:
    """A model's calibration on one split, as fractions.

    Args:
        rows: how many.
        accuracy: share that is right.
        confidence: its mean; above the accuracy, the model is too sure.
        ece: over bins of equal mass, the paper's.
        ece_width: over bins of equal width.
        mce: over bins of equal mass.
        brier: 0 to 2, summed over the classes.
        nll: in nats.
    """

    rows: int
    accuracy: float
    confidence: float
    ece: float
    ece_width: float
    mce: float
    brier: float
    nll: float


def measure_calibration(probabilities: ArrayLike, labels: ArrayLike, *, bins: int = BINS) -> Calibration:
    """All of the figures.

    Args:
        probabilities: rows × classes.
        labels: the true class of every row.
        bins: M.
    """
    values, wanted = checked(probabilities, labels)
    mass = reliability(values, wanted, bins=bins)
    return Calibration(
        rows=len(values),
        accuracy=float((values.argmax(axis=1) == wanted).mean()),
        confidence=float(values.max(axis=1).mean()),
        ece=mass.ece,
        ece_width=reliability(values, wanted, bins=bins, binning="equal-width").ece,
        mce=mass.mce,
        brier=brier(values, wanted),
        nll=nll(values, wanted),
    )


def reliability(
    probabilities: ArrayLike, labels: ArrayLike, *, bins: int = BINS, binning: Binning = "equal-mass"
) -> Reliability:
    """Accuracy against confidence, bin by bin.

    Args:
        probabilities: rows × classes.
        labels: the true class of every row.
        bins: M.
        binning: `equal-mass` or `equal-width`.
    """
    one_of("binning", binning, ("equal-mass", "equal-width"))
    if isinstance(bins, bool) or bins < 1:
        raise DataError(f"bins={bins} must be at least 1")
    values, wanted = checked(probabilities, labels)
    confidence = values.max(axis=1)
    correct = values.argmax(axis=1) == wanted
    edges = _mass_edges(confidence, bins) if binning == "equal-mass" else np.arange(bins + 1) / bins
    # the bin of p is the last whose lower edge p reaches; the end of the last bin is no lower edge, so p = 1 is in it
    place = np.searchsorted(edges[:-1], confidence, side="right") - 1
    return Reliability(
        binning,
        tuple(
            _bin(float(lower), float(upper), confidence[place == number], correct[place == number])
            for number, (lower, upper) in enumerate(pairwise(edges))
        ),
    )


def expected_calibration_error(
    probabilities: ArrayLike, labels: ArrayLike, *, bins: int = BINS, binning: Binning = "equal-mass"
) -> float:
    """ECE of the predicted class; see `reliability`."""
    return reliability(probabilities, labels, bins=bins, binning=binning).ece


def brier(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Mean squared distance of the probabilities to the truth, summed over the classes: 0 to 2."""
    values, wanted = checked(probabilities, labels)
    score = need("sklearn.metrics").brier_score_loss
    return float(score(wanted, values, labels=np.arange(values.shape[1]), scale_by_half=False))


def nll(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Mean negative log-likelihood, in nats; a probability of 0 counts as 2⁻⁵², 36 nats."""
    values, wanted = checked(probabilities, labels)
    return float(need("sklearn.metrics").log_loss(wanted, values, labels=np.arange(values.shape[1])))


def probabilities_of(logits: ArrayLike, *, temperature: float = 1.0) -> Floats:
    """Softmax of logits / T, in float64: in half precision most confidences of a tuned model round to exactly 1."""
    values = checked_logits(logits)
    return np.asarray(need("scipy.special").softmax(values / temperature, axis=1), dtype=np.float64)


def checked(probabilities: ArrayLike, labels: ArrayLike) -> tuple[Floats, NDArray[np.int64]]:
    """Probabilities in float64 whose rows sum to 1, and classes that are among theirs; or an error."""
    values = as_floats("probabilities", probabilities)
    sums = values.sum(axis=1)
    off = np.flatnonzero((values < 0).any(axis=1) | (np.abs(sums - 1) > ROUNDING))
    if len(off):
        raise DataError(
            f"probabilities of row {off[0]} are {_few(values[off[0]])}, which is no distribution; "
            "make logits into probabilities with probabilities_of"
        )
    return values / sums[:, None], checked_labels(labels, *values.shape)


def checked_logits(logits: ArrayLike) -> Floats:
    """Logits in float64, rows × classes; or an error."""
    return as_floats("logits", logits)


def checked_labels(labels: ArrayLike, rows: int, classes: int) -> NDArray[np.int64]:
    """One class for every row, or an error."""
    wanted = np.asarray(labels)
    if wanted.shape != (rows,):
        raise DataError(f"labels of shape {wanted.shape} are not one class for each of {rows} rows")
    if wanted.dtype.kind not in "iu" or wanted.min() < 0 or wanted.max() >= classes:
        raise DataError(f"labels must be classes 0 to {classes - 1}; there are {_few(np.unique(wanted))}")
    return wanted.astype(np.int64)


def as_floats(name: str, given: ArrayLike) -> Floats:
    """Finite float64 values, rows × classes, or an error."""
    values = np.asarray(given, dtype=np.float64)
    if values.ndim != 2 or values.shape[0] < 1 or values.shape[1] < 2:
        raise DataError(f"{name} of shape {values.shape} are not rows × at least two classes")
    off = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(off):
        raise DataError(f"{name} of row {off[0]} are {_few(values[off[0]])}: all must be finite")
    return values


def _mass_edges(confidence: Floats, bins: int) -> Floats:
    ordered = np.sort(confidence)
    starts = np.arange(bins) * len(ordered) // bins
    lower = np.unique(ordered[starts])  # where ties straddle a start, one of two equal bins is left
    return np.append(lower, ordered[-1])


def _bin(lower: float, upper: float, confidence: Floats, correct: NDArray[np.bool_]) -> Bin:
    if not len(confidence):
        return Bin(lower, upper, 0, float("nan"), float("nan"))
    return Bin(lower, upper, len(confidence), float(confidence.mean()), float(correct.mean()))


def _few(values: NDArray[Any] | Sequence[float], most: int = 6) -> str:
    shown = ", ".join(f"{value:g}" for value in values[:most])
    return f"{shown}, …" if len(values) > most else shown
