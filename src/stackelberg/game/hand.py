"""What AdversarialGame holds after the clean pass: the follower's problem and what the leader pays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .follower import Trajectory
from .injection import Deltas
from .response import Contest
from .round import Round

Parts = list[Tensor | None]  # one gradient for each parameter


@dataclass
class Hand:
    """A model's round on a batch, with the follower's problem and the leader's payoff."""

    round: Round
    contest: Contest
    start: Deltas
    pay: Callable[[Deltas], Tensor]  # (α/N) Σ ℓ at δ, against the clean prediction

    def interaction(self, path: Trajectory) -> Parts:
        """(∂F/∂δ^K)(dδ^K/dθ), the part that goes through the clean prediction included."""
        last = {side: delta.detach().requires_grad_() for side, delta in path.deltas[-1].items()}
        v = dict(zip(last, torch.autograd.grad(self.pay(last), list(last.values())), strict=True))
        clean, on_x, shares = self.contest.sweep(path, self.round.target.detach(), v)
        ends = [(self.round.logits, clean), *((self.round.embedded[side], x) for side, x in on_x.items())]
        open_ends = [(end, share.to(end.dtype)) for end, share in ends if share is not None and end.requires_grad]
        if not open_ends:
            return shares
        outputs, cotangents = zip(*open_ends, strict=True)
        through = torch.autograd.grad(
            outputs, self.contest.parameters, cotangents, allow_unused=True, retain_graph=True
        )
        return [a if b is None else b if a is None else a + b for a, b in zip(shares, through, strict=True)]

    def leader(self, path: Trajectory) -> Parts:
        """∂F/∂θ at δ^K without the task loss."""
        found = torch.autograd.grad(
            self.pay(path.deltas[-1]), self.contest.parameters, allow_unused=True, retain_graph=True
        )
        return list(found)

    def retrace(self, path: Trajectory, own_gradients: bool) -> tuple[Trajectory, list[Deltas]]:
        """`path` in this hand's precision, with its gradients or with this hand's own, which come beside."""
        along, own = Trajectory([_doubled(path.deltas[0])]), []
        states = self.contest.follower.start(along.deltas[0])
        for k in range(path.steps):
            payoff = self.contest.payoff()
            g, _ = self.contest.gradient(payoff, along.deltas[k], self.round.target.detach())
            own.append(g)
            g = g if own_gradients else _doubled(path.gradients[k])
            along.remember(payoff, g, states, path.moved[k])
            with torch.no_grad():
                _, states = self.contest.follower.move(k, along.deltas[k], g, states)
            along.deltas.append(_doubled(path.deltas[k + 1]))
        return along, own


def size(parts: Parts) -> Tensor:
    """‖·‖₂ over all parameters."""
    squares = [p.double().square().sum() for p in parts if p is not None]
    return torch.stack(squares).sum().sqrt() if squares else torch.zeros(())


def _doubled(deltas: Mapping[str, Tensor]) -> Deltas:
    return {side: delta.double() for side, delta in deltas.items()}
