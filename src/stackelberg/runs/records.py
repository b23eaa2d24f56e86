"""What a run writes down as it goes: a line of JSON a record, and the same for TensorBoard."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from stackelberg.storage import write_whole

METRICS = "metrics.jsonl"


class Records:
    """The records of one run. A resumed run drops those of steps that it is about to make again.

    Args:
        folder: the run's.
        step: that the run begins or goes on from.
        tensorboard: whether to write for TensorBoard too.
    """

    def __init__(self, folder: Path, step: int, *, tensorboard: bool) -> None:
        """Open the file, and TensorBoard's if it is wanted and installed."""
        path = folder / METRICS
        kept = [record for record in read_records(folder) if record["step"] <= step]
        write_whole(path, "".join(_line(record) for record in kept))
        self._file: IO[str] = path.open("a", encoding="utf-8")
        self.seconds = max((record["seconds"] for record in kept if "seconds" in record), default=0.0)
        self._board = _board(folder / "tensorboard", step) if tensorboard else None
        self.lacks_tensorboard = tensorboard and self._board is None

    def add(self, step: int, figures: Mapping[str, float]) -> None:
        """One record, on the disk when this returns."""
        self._file.write(_line({"step": step, **figures}))
        self._file.flush()
        if self._board is not None:
            for name, value in figures.items():
                self._board.add_scalar(name if "/" in name else f"train/{name}", value, step)
            self._board.flush()

    def close(self) -> None:
        """Close both."""
        self._file.close()
        if self._board is not None:
            self._board.close()


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Those of a run folder, in order; a last line that was not written to its end is passed over."""
    path = folder / METRICS
    records = []
    for line in path.read_text(encoding="utf-8").split("\n") if path.exists() else []:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(record, dict) and "step" in record:
            records.append(record)
    return records


def finite(figures: Mapping[str, float]) -> dict[str, float | None]:
    """For JSON, which has no nan: null."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in figures.items()
    }


def _line(record: Mapping[str, float]) -> str:
    return json.dumps(finite(record)) + "\n"


def _board(folder: Path, step: int) -> Any:
    if find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=step + 1)  # type: ignore[no-untyped-call, unused-ignore]
