"""One call of a game: what is said of a batch beside it, and the call as a recording has it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .capture import Input, Static
from .round import Normalizer
from .task import Task

Start = Tensor | Mapping[str, Tensor]


@dataclass(frozen=True)
class Given:
    """What a call says of its batch, beside the batch; see `Game.__call__`."""

    start: Start | None = None
    normalizer: Normalizer | None = None
    index: Tensor | None = None
    task: Task | None = None


class Call:
    """A call taken apart: every tensor and number of it under a name of its own, as a recording's inputs.

    Args:
        batch: a mapping.
        given: beside it.
        dials: numbers that change from step to step.
    """

    def __init__(self, batch: Mapping[str, Any], given: Given, dials: Mapping[str, float]) -> None:
        """Take it apart."""
        self.given = given
        self.fixed = {name: x for name, x in batch.items() if not isinstance(x, Tensor)}
        start, normalizer = given.start, given.normalizer
        starts = {"": start} if isinstance(start, Tensor) else dict(start or {})
        counts = normalizer if isinstance(normalizer, tuple) else () if normalizer is None else (normalizer,)
        self.inputs: dict[str, Input] = {
            **{f"batch.{name}": x for name, x in batch.items() if isinstance(x, Tensor)},
            **{f"start.{side}": x for side, x in starts.items()},
            **{f"normalizer.{i}": x if isinstance(x, Tensor) else float(x) for i, x in enumerate(counts)},
            **({} if given.index is None else {"index": given.index}),
            **{f"dial.{name}": x for name, x in dials.items()},
        }

    @property
    def form(self) -> Hashable:
        """Equal for calls that one recording serves: all but the values of its inputs."""
        shapes = ((name, x.shape, x.dtype) if isinstance(x, Tensor) else name for name, x in self.inputs.items())
        return tuple(shapes), repr(self.fixed)

    def read(self, static: Static) -> tuple[dict[str, Any], Given, Static]:
        """Put together again from the recording's own inputs: batch, what is given beside it, dials."""

        def of(group: str) -> Static:
            return {name.partition(".")[2]: x for name, x in static.items() if name.startswith(group + ".")}

        starts, counts = of("start"), tuple(of("normalizer").values())
        given = Given(
            starts.get("", starts or None),
            counts if isinstance(self.given.normalizer, tuple) else counts[0] if counts else None,  # type: ignore[arg-type]
            static.get("index"),
            self.given.task,
        )
        return {**self.fixed, **of("batch")}, given, of("dial")
