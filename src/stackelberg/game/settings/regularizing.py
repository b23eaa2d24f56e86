"""The regularizer: its weight α, its schedule, its divergence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ...errors import SettingError, one_of
from ..conditions import DROPOUTS, Dropout
from ..divergence import DIVERGENCES
from ..game import Game
from ..round import Round
from .checks import flag, number, whole


@dataclass(kw_only=True, eq=False)
class Scheduled(Game):
    """A method that may begin later than the training.

    Args:
        start_step: the optimizer step at which the method begins; before, it is plain.
    """

    start_step: int = 0

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        whole("start_step", self.start_step, 0)

    def is_on(self) -> bool:
        """From `start_step` on."""
        return self.clock.step >= self.start_step


@dataclass(kw_only=True, eq=False)
class Regularizing(Scheduled):
    """A method with a regularizer Σ ℓ: F = L + (α/N) Σ ℓ.

    Args:
        weight: α.
        ramp: how many steps α takes to grow from 0 to `weight`, from `start_step` on.
        dropout: `"shared"`: every pass of a step draws the clean pass's masks. `"off"`: the regularizer's
            passes, and a second reference pass they are compared with, run without dropout. `"independent"`:
            each pass draws its own, so that the divergence holds dropout's noise too, as in R-Drop.
        reduction: for token-level outputs, `"tokens"`: α times the mean over all real tokens; `"sentences"`:
            α times the mean over sentences of the sum over a sentence's tokens.
        recompute: run the clean pass again in the backward pass instead of keeping its activations: one graph
            less in memory, one forward pass more. Left out: where the game takes a second derivative and rows are
            longer than a third of the model's width, so that attention scores are most of the memory.
    """

    weight: float = 1.0
    ramp: int = 0
    dropout: Dropout = "shared"
    reduction: str = "tokens"
    recompute: bool | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        number("weight", self.weight, least=0)
        whole("ramp", self.ramp, 0)
        one_of("dropout", self.dropout, DROPOUTS)
        if self.recompute is not None:
            flag("recompute", self.recompute)
        one_of("reduction", self.reduction, ("tokens", "sentences"))

    def check(self, round: Round) -> None:
        """A normalizer that does not fit the reduction."""
        super().check(round)
        self.by_sentence(round)

    @property
    def recomputes(self) -> bool | None:
        """The setting."""
        return self.recompute

    @property
    def dropout_policy(self) -> Dropout:
        """The setting."""
        return self.dropout

    def alpha(self) -> float:
        """α at this step."""
        grown = 1.0 if not self.ramp else min(1.0, (self.clock.step - self.start_step + 1) / self.ramp)
        return self.weight * grown

    def regularizer(self, round: Round, values: Tensor) -> Tensor:
        """(α/N) Σ ℓ, and its size into the report."""
        mean = values.sum() / round.denominator(self.by_sentence(round))
        round.report.divergence = mean.detach()
        return round.alpha * mean

    def by_sentence(self, round: Round) -> bool:
        """Whether the regularizer's N counts sentences where the task loss counts tokens."""
        chosen = self.reduction == "sentences" and round.task.by_token
        if chosen and round.normalizer is not None and not isinstance(round.normalizer, tuple):
            raise SettingError(
                'reduction="sentences" divides the loss by tokens and the regularizer by sentences; give both, '
                "normalizer=(tokens, sentences)"
            )
        return chosen


@dataclass(kw_only=True, eq=False)
class Diverging(Regularizing):
    """A regularizer that is a divergence between the clean output and another.

    Args:
        divergence: ℓ_v, one of `kl`, `symmetric_kl`, `half_symmetric_kl`, `js`, `mse` (of the outputs
            themselves). Left out: the method's own, and `mse` for regression.
        detach_target: treat the clean output as a constant, as Miyato's VAT does and the paper does not.
    """

    own_divergence: ClassVar[str] = "kl"

    divergence: str | None = None
    detach_target: bool = False

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        if self.divergence is not None:
            one_of("divergence", self.divergence, DIVERGENCES)
        flag("detach_target", self.detach_target)

    def check(self, round: Round) -> None:
        """A divergence that the task does not have."""
        super().check(round)
        self.divergence_for(round)

    @property
    def compares(self) -> bool:
        """Always."""
        return True

    def divergence_for(self, round: Round, chosen: str | None = None) -> str:
        """The divergence that fits the task."""
        chosen = chosen or self.divergence
        if round.task.kind == "regression":
            if chosen not in (None, "mse"):
                raise SettingError(
                    f"divergence={chosen!r} compares distributions, but this is a regression head with "
                    "single values, where it would always be 0; use divergence='mse' or leave it out"
                )
            return "mse"
        return chosen or self.own_divergence
