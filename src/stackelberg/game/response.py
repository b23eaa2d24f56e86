"""The follower's response δ^K(θ), and its derivative: the heart of SALT.

The leader minimises F(θ) = L(θ) + (α/N) Σ_i ℓ_i(δ_i^K(θ), θ), where the follower answers every θ with K
projected ascent steps δ^k = U(δ^{k−1}, g(δ^{k−1}, θ)), g = ∇_δ ℓ. Here that answer is a function autograd can
differentiate: once δ^K = respond(...) is in the graph, `F.backward()` gives the Stackelberg gradient

    dF/dθ = ∂L/∂θ + (α/N) Σ ∂ℓ/∂θ  +  (α/N) Σ (∂ℓ/∂δ^K) (dδ^K/dθ)
            leader                    leader–follower interaction

whose last term costs one Hessian-vector product a step. Three routes compute it:

* `sweep`: back through the steps one by one; memory does not grow with K. The one to use.
* `exact`: autograd through all unrolled steps. The oracle that the sweep is tested against.
* `none`: δ^K is a constant. Without the interaction, the game is VAT.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..errors import ModelError
from .blame import culprit, lacks_second_derivative, slopes
from .follower import Follower, States, Trajectory
from .injection import Deltas
from .payoff import Payoff
from .precision import InnerScale
from .product import Gradients, Point, Product
from .purpose import meant_for

Route = Literal["sweep", "exact", "none"]
ROUTES: tuple[Route, ...] = ("sweep", "exact", "none")


@dataclass
class Contest:
    """The lower-level problem on one batch: who climbs, on what, and how its gradient is differentiated."""

    follower: Follower
    payoff: Callable[[], Payoff]  # ℓ(δ, z), under dropout masks that it draws once and keeps
    product: Product
    core: nn.Module
    parameters: Sequence[nn.Parameter]  # θ, those that are trained
    scale: InnerScale
    base: Deltas  # x, the embeddings of the perturbed sides: ℓ depends on x + δ alone, so ∂ℓ/∂x = ∂ℓ/∂δ

    def gradient(
        self, payoff: Payoff, deltas: Deltas, clean: Tensor | None, watched: bool = True
    ) -> tuple[Deltas, Tensor]:
        """g = ∇_δ Σ_i ℓ_i, each sentence its own maximiser: no 1/N ever reaches it.

        Beside it, (B,), how far each output moved in rounding units: ∞ unless `watched`, 0 after an overflow.
        """
        leaves = {side: delta.detach().requires_grad_() for side, delta in deltas.items()}
        with torch.enable_grad(), meant_for("ascent"):
            values, moved = payoff.watched(leaves, clean) if watched else (payoff(leaves, clean), None)
            found = torch.autograd.grad(values.sum() * self.scale.value, list(leaves.values()))
        g, finite = self.scale.unscale(dict(zip(leaves, found, strict=True)))
        sentences = len(found[0])
        units = found[0].new_full((sentences,), torch.inf) if moved is None else _by_row(moved, sentences)
        return g, torch.where(finite, units, torch.zeros_like(units))

    def climb(self, start: Deltas, clean: Tensor | None, watched: bool = True) -> Trajectory:
        """Play the K steps, keeping what the sweep needs and no graph; `watched` for a sweep to come."""
        clean = None if clean is None else clean.detach()
        path = Trajectory([start])
        states = self.follower.start(start)
        for k in range(self.follower.steps):
            payoff = self.payoff()
            g, moved = self.gradient(payoff, path.deltas[k], clean, watched)
            path.remember(payoff, g, states, moved)
            with torch.no_grad():
                delta, states = self.follower.move(k, path.deltas[k], g, states)
            path.deltas.append(delta)
        return path

    def sweep(
        self, path: Trajectory, clean: Tensor | None, v: Deltas
    ) -> tuple[Tensor | None, Deltas, list[Tensor | None]]:
        """Pull v = ∂F/∂δ^K back through the steps: what it becomes on the clean prediction, on x and on θ.

        Each step: (1) through the update rule alone, v splits into what bypasses the gradient and u, what
        went through it; (2) one Hessian-vector product in direction u; (3) its θ part is the step's share
        of the interaction, its δ part is x's share and joins what bypassed.
        """
        clean_share: Tensor | None = None
        base_share: Deltas = {side: torch.zeros_like(x) for side, x in v.items()}
        shares: list[Tensor | None] = [None] * len(self.parameters)
        v_states: States | None = None
        for k in reversed(range(path.steps)):
            v, u, v_states = self.follower.pull_back(path, k, v, v_states)
            trusted = path.trusted(k)[:, None, None]
            u = {side: torch.where(trusted, x, torch.zeros_like(x)) for side, x in u.items()}
            with torch.enable_grad():
                G = self._product(path.payoffs[k], path.deltas[k], clean, u)
            v = {side: x + G.deltas[side] for side, x in v.items()}
            base_share = {side: x + G.deltas[side] for side, x in base_share.items()}
            clean_share = _plus(clean_share, G.clean)
            shares = [_plus(share, new) for share, new in zip(shares, G.parameters, strict=True)]
        return clean_share, base_share, shares

    def _product(self, payoff: Payoff, deltas: Deltas, clean: Tensor | None, u: Deltas) -> Gradients:
        try:
            G = self.product(Point(payoff, deltas, clean, u, self.parameters, self.scale.value))
            return self._without_overflow(G) if self.scale.active else G
        except RuntimeError as error:
            if not lacks_second_derivative(error):
                raise
            module = culprit(self.core, lambda: payoff(deltas, clean))
            raise ModelError(
                f"{module} has no second derivative ({str(error).splitlines()[0][:120]}); choose "
                "product='differences', or a model without that module"
            ) from error

    def _without_overflow(self, G: Gradients) -> Gradients:
        """A product that float16 could not hold is left out, and the scale lowered for the next."""
        finite = self.scale.watch([*G.deltas.values(), G.clean, *G.parameters])
        self.scale.adapt(finite)

        def kept(x: Tensor | None) -> Tensor | None:
            return None if x is None else torch.where(finite, x, torch.zeros_like(x))

        deltas = {side: torch.where(finite, x, torch.zeros_like(x)) for side, x in G.deltas.items()}
        return Gradients(deltas, kept(G.clean), [kept(x) for x in G.parameters])


def respond(contest: Contest, start: Deltas, clean: Tensor | None, route: Route) -> tuple[Deltas, Trajectory]:
    """δ^K(θ) from δ⁰ = `start` against the clean prediction, differentiable by `route`; and the way there."""
    if route == "exact":
        return _unrolled(contest, start, clean)
    if route == "none" or contest.follower.steps == 0:
        path = contest.climb(start, clean, watched=False)
        return path.deltas[-1], path
    paths: list[Trajectory] = []
    last = _Response.apply(contest, start, paths, clean, *contest.base.values(), *contest.parameters)  # type: ignore[no-untyped-call]
    return dict(zip(start, last, strict=True)), paths[0]


class _Response(torch.autograd.Function):
    """(z, x, θ) ↦ δ^K by the sweep. θ is an input, so DDP's reducer and gradient accumulation see one gradient."""

    @staticmethod
    def forward(
        ctx: Any, contest: Contest, start: Deltas, paths: list[Trajectory], clean: Tensor | None, *_: Tensor
    ) -> tuple[Tensor, ...]:
        path = contest.climb(start, clean)
        paths.append(path)
        ctx.contest, ctx.path, ctx.clean = contest, path, None if clean is None else clean.detach()
        return tuple(delta.clone() for delta in path.deltas[-1].values())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        v = dict(zip(ctx.path.deltas[-1], cotangents, strict=True))
        clean_share, base_share, shares = ctx.contest.sweep(ctx.path, ctx.clean, v)
        on_x = [base_share[side].to(x.dtype) if x.requires_grad else None for side, x in ctx.contest.base.items()]
        return None, None, None, clean_share, *on_x, *shares


def _unrolled(contest: Contest, start: Deltas, clean: Tensor | None) -> tuple[Deltas, Trajectory]:
    """All K steps in one autograd graph, `create_graph=True`: nothing clever, nothing guarded."""
    path = Trajectory([start])
    deltas = {side: delta.detach().requires_grad_() for side, delta in start.items()}
    states = contest.follower.start(deltas)
    for k in range(contest.follower.steps):
        payoff = contest.payoff()
        value = payoff(deltas, clean).sum() * contest.scale.value
        found = slopes(value, list(deltas.values()))
        g = {side: x / contest.scale.value for side, x in zip(deltas, found, strict=True)}
        path.remember(payoff, g, states, torch.full((len(found[0]),), torch.inf, device=value.device))
        deltas, states = contest.follower.move(k, deltas, g, states)
        path.deltas.append({side: delta.detach() for side, delta in deltas.items()})
    return deltas, path


def _by_row(sentences: Tensor, rows: int) -> Tensor:
    """A choice's sentence is one of several rows of its example."""
    return sentences.repeat_interleave(rows // len(sentences)) if len(sentences) != rows else sentences


def _plus(total: Tensor | None, share: Tensor | None) -> Tensor | None:
    return share if total is None else total if share is None else total + share
