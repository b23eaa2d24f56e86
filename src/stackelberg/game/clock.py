"""Which optimizer step the game is in, and how many examples of it have been played."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from .capture import capturing


@dataclass(eq=False)
class Clock:
    """Counts optimizer steps, not calls: micro-batches of one step share it, skipped steps do not move it.

    A step is noticed by an optimizer of torch having stepped on the parameters, or by their having been written
    to. Engines where neither shows (captured graphs, optimizers of another kind on sharded parameters) call
    `game.after_step()`, which switches the noticing off for good.
    """

    step: int = 0
    seen: int = 0
    told: bool = False
    _versions: int | None = field(default=None, repr=False)
    _watched: set[int] = field(default_factory=set, repr=False)
    _stepped: bool = field(default=False, repr=False)

    def notice(self, parameters: Iterable[nn.Parameter]) -> bool:
        """Advance if the parameters were stepped on since the last look; whether they were."""
        if self.told:
            return False
        found = list(parameters)
        _clocks.add(self)
        self._watched = {id(p) for p in found}
        versions = sum(p._version for p in found)
        stepped = self._stepped or (self._versions is not None and versions != self._versions)
        self._versions, self._stepped = versions, False
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
        self.step, self.seen, self._versions, self._stepped = state["step"], 0, None, False

    def hear(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer stepped; if on our parameters, and not skipped on the device by a gradient scaler, so do we."""
        skipped = getattr(optimizer, "found_inf", None)
        if skipped is not None and bool(skipped):
            return
        if any(id(p) in self._watched for group in optimizer.param_groups for p in group["params"]):
            self._stepped = True


_clocks: WeakSet[Clock] = WeakSet()


def _tell_clocks(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if capturing():
        return  # no step yet, only its recording; each replay is told of
    for clock in list(_clocks):
        clock.hear(optimizer)


register_optimizer_step_post_hook(_tell_clocks)  # one hook on all optimizers; the set keeps no clock alive
