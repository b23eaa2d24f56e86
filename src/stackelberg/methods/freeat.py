"""FreeAT: adversarial training for free (Shafahi et al., 2019)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..errors import one_of
from ..game.ascent import build
from ..game.game import Play, Term
from ..game.injection import Deltas
from ..game.obstacles import Obstacle
from ..game.round import Round
from ..game.settings.checks import number, whole
from ..game.settings.perturbing import Perturbing
from ..game.settings.regularizing import Scheduled
from ..game.space import Space

T = TypeVar("T")


@dataclass(kw_only=True, eq=False)
class FreeAT(Scheduled, Perturbing):
    """F = L(x + δ). The one backward pass that updates θ also moves δ, and each batch is replayed m times.

    δ is carried over from replay to replay and from batch to batch, cropped or padded to the next one's length,
    so every replay is an ordinary optimizer step: `for batch in replayed(loader, game.replays_per_batch):
    ...`, with the number of epochs divided by m. A row's δ goes to the row of the next step with the same number
    (`index=`, or the order of play), on the same process.

    Args:
        replays: m.
        step_size: how far one replay moves δ; left out, ε.
        ascent: `normalized`, or `sign` as in the paper.
    """

    name: ClassVar[str] = "freeat"

    replays: int = 3
    step_size: float | None = None
    ascent: Literal["normalized", "sign"] = "normalized"
    carried: Deltas = field(default_factory=dict, init=False, repr=False)  # (rows of a step, L, d) by side
    places: dict[str, dict[int, int]] = field(default_factory=dict, init=False, repr=False)  # row's number → place

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        whole("replays", self.replays, 1)
        one_of("ascent", self.ascent, ("normalized", "sign"))
        if self.step_size is not None:
            number("step_size", self.step_size, above=0)

    @property
    def replays_per_batch(self) -> int:
        """m."""
        return self.replays

    @property
    def state_is_each_ranks_own(self) -> bool:
        """δ stays on the process that played its row."""
        return True

    @property
    def obstacles(self) -> list[Obstacle]:
        """Its δ outlives the step."""
        return [*super().obstacles, Obstacle("FreeAT's δ is carried from batch to batch", "compiled")]

    def check(self, round: Round) -> None:
        """Labels."""
        super().check(round)
        round.need_labels("FreeAT trains on the label loss")

    def play(self, round: Round) -> Play:
        """One pass, over x + δ."""
        round.open(partial(self._draw, round))
        yield Term(round.task_term())

    def _draw(self, round: Round, side: str, x: Tensor) -> Tensor | None:
        if not self.moves(side):
            return None
        space = self.space_of(round, side, x)
        numbers = round.row_index(len(x), torch.device("cpu")).tolist()
        if round.start is not None:
            delta = self.start_of(round, side, x, space)
        else:
            delta = space.ball.project(self._carried(side, x, numbers).to(space.mask) * space.mask)
        round.report.describe({side: space.ball}, {side: space.mask}, {side: delta}, {side: delta})
        delta.requires_grad_().register_hook(partial(self._ascend, numbers, side, space, delta))
        return delta

    def _carried(self, side: str, x: Tensor, numbers: list[int]) -> Tensor:
        """The rows of the last step with the same numbers, cropped or padded to `x`; 0 where there was none."""
        length, width = x.shape[1:]
        known = self.carried.get(side, x.new_zeros(0, 0, width, dtype=torch.float32))[:, :length]
        known = pad(known, (0, 0, 0, length - known.shape[1], 0, 1))
        places = self.places.get(side, {})
        return known[[places.get(number, -1) for number in numbers]]

    def _ascend(self, numbers: list[int], side: str, space: Space, delta: Tensor, gradient: Tensor) -> None:
        """Move δ by the gradient that the model's own backward pass has just produced."""
        with torch.no_grad():
            eta = self.radius if self.step_size is None else self.step_size
            rule = build(self.ascent, eta * space.unit, space.ball)
            moved, _ = rule.step(0, delta, gradient * space.mask, ())
            moved = torch.where(torch.isfinite(gradient).all(), space.ball.project(moved), delta)
            _, length, width = moved.shape
            places = self.places.setdefault(side, {})
            mine = [places.setdefault(number, len(places)) for number in numbers]
            known = self.carried.get(side, moved.new_zeros(0, length, width))
            room = pad(known, (0, 0, 0, max(0, length - known.shape[1]), 0, len(places) - len(known))).clone()
            room[mine] = 0
            room[mine, :length] = moved
            self.carried[side] = room

    def state_dict(self) -> dict[str, Any]:
        """With the carried δ and the numbers of its rows."""
        numbers = {side: torch.tensor(list(places)) for side, places in self.places.items()}
        return {**super().state_dict(), "carried": dict(self.carried), "numbers": numbers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """With the carried δ."""
        super().load_state_dict(state)
        self.carried = {side: delta.clone() for side, delta in state["carried"].items()}
        self.places = {side: {n: i for i, n in enumerate(x.tolist())} for side, x in state["numbers"].items()}


def replayed(batches: Iterable[T], times: int) -> Iterator[T]:
    """Each batch `times` times in a row, as FreeAT trains: pass `game.replays_per_batch`."""
    for batch in batches:
        for _ in range(times):
            yield batch
