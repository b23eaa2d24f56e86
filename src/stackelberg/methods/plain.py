"""Plain: the task loss alone, the baseline of every comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..game.game import Game, Play, Term
from ..game.round import Round


@dataclass(kw_only=True, eq=False)
class Plain(Game):
    """F = L."""

    name: ClassVar[str] = "plain"

    def check(self, round: Round) -> None:
        """Labels."""
        round.need_labels("the plain loss is made of them")

    def play(self, round: Round) -> Play:
        """One ordinary training pass."""
        round.clean(needs_target=False)
        yield Term(round.task_term())
