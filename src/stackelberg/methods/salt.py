"""SALT: Stackelberg Adversarial Regularization (Zuo et al., EMNLP 2021), and the games of its form."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch

from ..game import precision
from ..game.follower import Follower
from ..game.game import Play, Term
from ..game.payoff import Payoff
from ..game.product import Product, double_backward
from ..game.response import Contest, Route, respond
from ..game.round import Round
from ..game.settings import Anticipating, Climbing, Diverging, Regularizing


@dataclass(kw_only=True, eq=False)
class AdversarialGame(Regularizing, Climbing):
    """F(θ) = L(θ) + (α/N) Σ_i ℓ_i(δ_i^K, θ), where δ^K is the follower's response to θ.

    What its subclasses choose: the payoff ℓ, and whether the leader anticipates the response.
    """

    @abstractmethod
    def payoff(self, round: Round) -> Payoff:
        """ℓ, which the leader pays."""

    def follower_payoff(self, round: Round) -> Payoff:
        """What the follower maximises: the same ℓ, unless a method says otherwise."""
        return self.payoff(round)

    def play(self, round: Round) -> Play:
        """One step of the game; read `respond` for its heart."""
        round.clean()
        spaces = self.space(round)
        contest = self.contest(round, self.follower(spaces))
        delta, path = respond(contest, self.start(round, spaces), round.target, self.route())
        round.report.describe(contest.follower, path)
        yield Term(self.regularizer(round, self.payoff(round)(delta, round.target)))
        yield Term(round.task_term())

    def contest(self, round: Round, follower: Follower) -> Contest:
        """The follower's problem on this batch."""
        working = round.conditions.precision
        return Contest(
            follower,
            payoff=lambda: self.follower_payoff(round),
            product=self.product_for(working),
            parameters=round.parameters(),
            scale=torch.tensor(1.0),
            trusts=partial(precision.trusts, working),
        )

    def route(self) -> Route:
        """How δ^K is differentiated: not at all."""
        return "none"

    def product_for(self, working: str) -> Product:
        """The sweep's product, where there is a sweep."""
        return double_backward


@dataclass(kw_only=True, eq=False)
class SALT(Diverging, Anticipating, AdversarialGame):
    """The Stackelberg game: the leader's gradient goes through the follower's K steps."""

    name: ClassVar[str] = "salt"

    def payoff(self, round: Round) -> Payoff:
        """ℓ_v = D(f(x, θ) ‖ f(x + δ, θ))."""
        return round.divergence(self.divergence_for(round), self.detach_target)
