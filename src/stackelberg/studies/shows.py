"""What a study can be made for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

What = Literal["table", "sweep", "loss", "reliability", "violins", "grid", "cost", "submission"]
SHOWN: tuple[What, ...] = ("table", "sweep", "loss", "reliability", "violins", "grid", "cost", "submission")


@dataclass(frozen=True, slots=True)
class Show:
    """A table or figure that a study is made for.

    Args:
        what: `table`: methods × tasks; `sweep`: a metric along the settings, a line a method; `loss`: training and
            validation loss by step; `reliability`: confidence against accuracy, a panel a method; `violins`: of the
            probing accuracies; `grid`: every setting, the best first; `cost`: seconds and memory of a step;
            `submission`: files for the GLUE server.
        metric: a name among a run's figures; the study's first when None.
        mirrors: the label of the paper's table or figure in its source, such as `tb:anli` or `fig:steps`.
        along: what the settings vary, as an axis has it.
        title: above it.
    """

    what: What
    metric: str | None = None
    mirrors: str | None = None
    along: str | None = None
    title: str | None = None
