"""One clear warning when the settings put the game below, or far above, what makes sense of it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

from torch import Tensor

from .report import Report

STEPS_WATCHED = 10


@dataclass
class NoiseFloor:
    """Watches the first steps. A step's figures are read at the next one, so that no device is waited for."""

    _last: tuple[Tensor | None, Tensor, str] | None = field(default=None, repr=False)
    _guarded: list[float] = field(default_factory=list, repr=False)
    _said_start: bool = False

    def look(self, report: Report, precision: str) -> None:
        """Take note of one step."""
        if len(self._guarded) >= STEPS_WATCHED:
            return
        if self._last is not None:
            self._judge(*self._last)
        assert report.start_ratio is not None
        self._last = (report.guarded, report.start_ratio, precision)

    def _judge(self, guarded: Tensor | None, start: Tensor, precision: str) -> None:
        ratio = float(start)
        if ratio > 0.5 and not self._said_start:
            self._said_start = True
            warnings.warn(
                f"the start noise is {ratio:.2g} of the ball's radius, so much of the perturbation is random rather "
                "than adversarial; lower init_std or init_radius, or raise epsilon",
                stacklevel=5,
            )
        self._guarded.append(0.0 if guarded is None else float(guarded))
        share = sum(self._guarded) / len(self._guarded)
        if len(self._guarded) == STEPS_WATCHED and share > 0.5:
            warnings.warn(
                f"for {share:.0%} of the sentences the follower's gradient is below the rounding noise of "
                f"{precision}, and their interaction is left out; raise init_std or init_radius (now ‖δ⁰‖/ε is "
                f"{ratio:.2g}) or epsilon, or compute in a higher precision",
                stacklevel=5,
            )
