"""Which optimizer step the game is in, and how many examples of it have been played."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import nn


@dataclass
class Clock:
    """Counts optimizer steps, not calls: micro-batches of one step share it, skipped steps do not move it.

    A step is noticed by the parameters having been written to since the last call. Engines whose writes are
    not visible that way (captured graphs, sharded parameters) call `game.after_step()` instead, which
    switches the noticing off for good.
    """

    step: int = 0
    seen: int = 0
    told: bool = False
    _versions: int | None = field(default=None, repr=False)

    def notice(self, parameters: Iterable[nn.Parameter]) -> bool:
        """Advance if the parameters changed since the last look; whether it did."""
        if self.told:
            return False
        versions = sum(p._version for p in parameters)
        stepped = self._versions is not None and versions != self._versions
        self._versions = versions
        if stepped:
            self.advance()
        return stepped

    def advance(self) -> None:
        """The next optimizer step begins."""
        self.step += 1
        self.seen = 0

    def state_dict(self) -> dict[str, int]:
        """What a checkpoint must hold. Taken between steps, so the examples seen are not part of it."""
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from there."""
        self.step, self.seen, self._versions = state["step"], 0, None
