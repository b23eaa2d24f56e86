"""The follower: K projected ascent steps from a start, and how a cotangent is pulled back through one of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .ascent import Ascent, State
from .ball import Ball
from .injection import Deltas
from .payoff import Payoff
from .precision import TRUSTED

States = dict[str, State]


@dataclass
class Trajectory:
    """What the sweep needs of the K steps; every tensor is embedding-sized."""

    deltas: list[Deltas]  # δ⁰ … δ^K
    payoffs: list[Payoff] = field(default_factory=list)  # ℓ of each step, with its dropout masks
    gradients: list[Deltas] = field(default_factory=list)  # g⁰ … g^{K−1}
    states: list[States] = field(default_factory=list)  # the rule's state before each step
    moved: list[Tensor] = field(default_factory=list)  # (B,) how far outputs moved, in units of their rounding

    @property
    def steps(self) -> int:
        """K."""
        return len(self.gradients)

    def remember(self, payoff: Payoff, gradients: Deltas, states: States, moved: Tensor) -> None:
        """Append one step; its δ follows once it is known."""
        self.payoffs.append(payoff)
        self.gradients.append({side: g.detach() for side, g in gradients.items()})
        self.states.append({side: tuple(x.detach() for x in state) for side, state in states.items()})
        self.moved.append(moved)

    def trusted(self, k: int) -> Tensor:
        """Whose derivative at step k is not noise, (B,) bool."""
        return self.moved[k] >= TRUSTED


@dataclass(frozen=True)
class Follower:
    """A rule and a ball for each perturbed side. `masks` `(B, L, 1)` are 1 where a side may be perturbed."""

    balls: dict[str, Ball]
    rules: dict[str, Ascent]
    masks: Deltas
    steps: int

    def start(self, deltas: Deltas) -> States:
        """Each side's state before the first step."""
        return {side: self.rules[side].init(delta) for side, delta in deltas.items()}

    def move(self, k: int, deltas: Deltas, gradients: Deltas, states: States) -> tuple[Deltas, States]:
        """One step of every side, differentiable."""
        moved: Deltas = {}
        after: States = {}
        for side, delta in deltas.items():
            g = gradients[side] * self.masks[side]
            free, after[side] = self.rules[side].step(k, delta, g, states[side])
            moved[side] = self.balls[side].project(free)
        return moved, after

    def pull_back(self, path: Trajectory, k: int, v: Deltas, v_states: States | None) -> tuple[Deltas, Deltas, States]:
        """vjp of (δ^{k}, g^{k}, state) ↦ (δ^{k+1}, state′) at (v, v_states): what reaches δ^k, g^k and the state.

        The first is the part that bypasses the gradient; the second is u, the direction of the Hessian product.
        """
        with torch.enable_grad():
            deltas, gradients = _leaves(path.deltas[k]), _leaves(path.gradients[k])
            states = {s: tuple(x.detach().requires_grad_() for x in st) for s, st in path.states[k].items()}
            moved, after = self.move(k, deltas, gradients, states)
            outputs, cotangents = [*moved.values()], [v[side] for side in moved]
            if v_states is not None:
                outputs += [x for side in after for x in after[side]]
                cotangents += [x for side in after for x in v_states[side]]
            inputs = [*deltas.values(), *gradients.values(), *(x for st in states.values() for x in st)]
            pulled = iter(torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True, materialize_grads=True))
        past = {side: next(pulled) for side in deltas}
        u = {side: next(pulled) for side in deltas}
        return past, u, {side: tuple(next(pulled) for _ in state) for side, state in states.items()}


def _leaves(deltas: Deltas) -> Deltas:
    return {side: delta.detach().requires_grad_() for side, delta in deltas.items()}
