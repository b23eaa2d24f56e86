"""A game's figures, averaged over the steps since they were last logged, without a wait for the device at each."""

from __future__ import annotations

from dataclasses import fields

from torch import Tensor

from ..game.report import Report


class Diagnostics:
    """Collects the reports of micro-batches."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.last: dict[str, float] = {}  # what was drained last
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}
        self._step: list[Report] = []  # of the step in progress, its micro-batches'

    def note(self, report: Report, first: bool) -> None:
        """One micro-batch's report; `first` of its optimizer step."""
        if first:
            self._close()
        self._step.append(report)

    def drain(self) -> dict[str, float]:
        """Each figure's mean over the steps since the last call."""
        self._close()
        if self._sums:
            self.last = {name: float(total) / self._counts[name] for name, total in self._sums.items()}
        self._sums, self._counts = {}, {}
        return self.last

    def _close(self) -> None:
        if not self._step:
            return
        step = Report.of_step(self._step)
        self._step = []
        for name in (f.name for f in fields(step) if f.name != "loss"):  # which every loop logs itself
            value = getattr(step, name)
            if value is not None:
                self._sums[name] = self._sums[name] + value if name in self._sums else value
                self._counts[name] = self._counts.get(name, 0) + 1
