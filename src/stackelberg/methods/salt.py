"""SALT: Stackelberg Adversarial Regularization (Zuo et al., EMNLP 2021), and the games of its form."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..errors import SettingError, one_of
from ..game.divergence import DIVERGENCES
from ..game.fidelity import Fidelity, measure
from ..game.floor import NoiseFloor
from ..game.game import Play, Term
from ..game.hand import Hand, size
from ..game.payoff import Payoff
from ..game.precision import InnerScale
from ..game.product import DoubleBackward, Product
from ..game.report import Report
from ..game.response import Contest, Route, respond
from ..game.round import Round, unwrap
from ..game.settings.climbing import Anticipating, Climbing
from ..game.settings.regularizing import Diverging, Regularizing
from ..game.task import Batch


@dataclass(kw_only=True, eq=False)
class AdversarialGame(Regularizing, Climbing):
    """F(θ) = L(θ) + (α/N) Σ_i ℓ_i(δ_i^K, θ), where δ^K is the follower's response to θ.

    What its subclasses choose: the payoff ℓ, and whether the leader anticipates the response.
    """

    _floor: NoiseFloor = field(default_factory=NoiseFloor, init=False, repr=False)
    _scales: dict[str, InnerScale] = field(default_factory=dict, init=False, repr=False)
    _saved_scales: dict[str, list[float]] = field(default_factory=dict, init=False, repr=False)  # of a checkpoint

    @abstractmethod
    def payoff(self, round: Round) -> Payoff:
        """ℓ, which the leader pays."""

    def follower_payoff(self, round: Round) -> Payoff:
        """What the follower maximises: the same ℓ, unless a method says otherwise."""
        return self.payoff(round)

    def play(self, round: Round) -> Play:
        """One step of the game; read `respond` for its heart."""
        round.clean()
        hand = self.hand(round, tied=self.route() == "exact")
        delta, path = respond(hand.contest, hand.start, round.target, self.route())
        follower = hand.contest.follower
        round.report.describe(follower.balls, follower.masks, path.deltas[0], path.deltas[-1])
        if self.route() == "sweep":
            round.report.count_guarded(path)
        if round.measure_interaction and self.route() == "sweep":
            round.report.interaction_norm = size(hand.interaction(path))
        yield Term(self.regularizer(round, self.payoff(round)(self.amplified(delta), round.target)))
        yield Term(round.task_term())

    def observe(self, report: Report, precision: str, start_given: bool) -> None:
        """Warn where the settings make little sense."""
        if not start_given and report.start_ratio is not None:
            self._floor.look(report, precision)

    def hand(self, round: Round, tied: bool = False) -> Hand:
        """The follower's problem on this batch, after the clean pass.

        `tied`: the follower's own passes stay in the graph of x, as autograd through all unrolled steps needs.
        """
        spaces = self.space(round)
        working = round.conditions.precision
        inner = round if tied else round.aside()
        contest = Contest(
            self.follower(spaces),
            payoff=lambda: self.follower_payoff(inner),
            product=self.product_for(working),
            core=round.core,
            parameters=round.parameters(),
            scale=self._scale(working, round.conditions.device),
            base={side: round.base[side] for side in spaces},
        )
        pay = self.payoff(round)
        return Hand(
            round,
            contest,
            self.start(round, spaces),
            lambda deltas: self.regularizer(round, pay(deltas, round.target)),
        )

    def _scale(self, working: str, device: torch.device) -> InnerScale:
        if working not in self._scales:
            self._scales[working] = InnerScale.at(working, device, self._saved_scales.get(working))
        return self._scales[working]

    def fidelity(
        self,
        model: nn.Module,
        batch: Batch,
        *,
        start: Tensor | Mapping[str, Tensor] | None = None,
        reference: nn.Module | None = None,
    ) -> Fidelity:
        """How well the current precision computes the interaction term on this batch, against float64.

        Of a game that does not anticipate, what the interaction would be worth.
        `reference` is a float64 copy of the model, for a caller who measures many batches; made here if left out.
        """
        if self.steps == 0:
            raise SettingError("steps=0 has no interaction term to measure the fidelity of; use at least 1")

        twice = self.second_derivative or self.route() == "none"

        def deal(core: nn.Module, given: Mapping[str, Tensor] | None) -> Hand:
            round = Round(
                core, batch, self.task, dropout="shared", second_derivative=twice,
                start=start if given is None else given,
            )  # fmt: skip
            round.clean()
            return self.hand(round)

        return measure(deal, unwrap(model, twice), reference)

    def state_dict(self) -> dict[str, Any]:
        """With the inner scales that have adapted."""
        scales = {working: scale.state() for working, scale in self._scales.items() if scale.active}
        return {**super().state_dict(), **({"scales": scales} if scales else {})}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """With the inner scales."""
        super().load_state_dict(state)
        self._scales.clear()
        self._saved_scales = dict(state.get("scales", {}))

    def route(self) -> Route:
        """How δ^K is differentiated: not at all, so that it is a constant to the leader."""
        return "none"

    def product_for(self, working: str) -> Product:
        """The sweep's product, where there is a sweep."""
        return DoubleBackward()

    def amplified(self, response: dict[str, Tensor]) -> dict[str, Tensor]:
        """The response with its derivative multiplied, where only some steps take it."""
        return response


@dataclass(kw_only=True, eq=False)
class VirtualGame(Diverging, AdversarialGame):
    """The payoff is ℓ_v = D(f(x, θ) ‖ f(x + δ, θ)), which looks at no labels.

    Args:
        follower_divergence: what the follower maximises, if not the leader's own divergence.
    """

    follower_divergence: str | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        if self.follower_divergence is not None:
            one_of("follower_divergence", self.follower_divergence, DIVERGENCES)

    def payoff(self, round: Round) -> Payoff:
        """ℓ_v."""
        return round.divergence(self.divergence_for(round), self.detach_target)

    def follower_payoff(self, round: Round) -> Payoff:
        """ℓ_v, or the follower's own."""
        return round.divergence(self.divergence_for(round, self.follower_divergence), self.detach_target)


@dataclass(kw_only=True, eq=False)
class SALT(Anticipating, VirtualGame):
    """The Stackelberg game: the leader's gradient goes through the follower's K steps.

    Every setting and its symbol: `weight` α, `epsilon` ε, `step_size` η, `init_std` σ, `steps` K.
    `gradient="none"` gives VAT, `steps=0` plain noise regularization.

    Example:
        >>> from stackelberg import SALT
        >>> SALT(weight=1.0, epsilon=1.0, steps=1).settings["gradient"]
        'sweep'
    """

    name: ClassVar[str] = "salt"
