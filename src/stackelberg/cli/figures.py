"""Figures for a terminal: metrics times 100, as papers have them."""

from __future__ import annotations

from collections.abc import Mapping

EXPLAINED = {
    "ece": "expected calibration error, 10 bins of equal size",
    "ece_width": "... of equal width",
    "mce": "the worst of the bins of equal size",
    "brier": "0 to 2",
    "nll": "in nats",
    "mse": "mean squared error",
    "confidence": "mean; above the accuracy, too sure",
}
AS_THEY_ARE = ("brier", "nll", "mse")


def shown(figures: Mapping[str, float]) -> list[str]:
    """A line each."""
    width = max(map(len, figures))
    lines = []
    for name, value in figures.items():
        number = f"{value:.4f}" if name in AS_THEY_ARE else f"{value * 100:.2f}"
        lines.append(f"  {name.ljust(width)}  {number:>7}  {EXPLAINED.get(name, '')}".rstrip())
    return lines
