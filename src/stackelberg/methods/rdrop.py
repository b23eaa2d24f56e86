"""R-Drop: regularized dropout for neural networks (Liang et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..errors import ModelError, SettingError
from ..game.capture import capturing
from ..game.conditions import Dropout
from ..game.game import Play, Term
from ..game.round import Round
from ..game.settings.regularizing import Diverging


@dataclass(kw_only=True, eq=False)
class RDrop(Diverging):
    """F = ½ (L₁ + L₂) + (α/N) Σ ½ [KL(f₁ ‖ f₂) + KL(f₂ ‖ f₁)], two passes with their own dropout masks.

    The second label loss L₂ is left out where the batch has no labels.
    """

    name: ClassVar[str] = "rdrop"
    own_divergence: ClassVar[str] = "half_symmetric_kl"

    dropout: Dropout = "independent"

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        if self.dropout != "independent":
            raise SettingError(f"dropout={self.dropout!r}: R-Drop compares two dropout masks; it needs 'independent'")

    def play(self, round: Round) -> Play:
        """Two passes over the same batch."""
        round.clean()
        second = round.pass_({}, round.conditions.draw(), round.task.labelled(round.batch))
        if self.clock.step == 0 and not capturing() and torch.equal(second.logits, round.target):
            raise ModelError(
                f"{type(round.core).__name__} gave the same logits twice: it has no dropout, so R-Drop would be its "
                "plain loss; set a dropout rate above 0"
            )
        divergence = round.compare(self.divergence_for(round), self.detach_target, round.target, second.logits)
        term = self.regularizer(round, divergence)
        if second.loss is None:
            yield Term(term)
            yield Term(round.task_term())
        else:
            yield Term(term + round.normalized(second.loss) / 2)
            yield Term(round.task_term() / 2)
