"""How well the working precision computes the interaction term, measured against float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .follower import Trajectory
from .hand import Hand, Parts, size
from .injection import Deltas


@dataclass(frozen=True)
class Fidelity:
    """One batch in working precision against float64, the things that can go wrong measured apart.

    The product is compared along the same trajectory (δ⁰, g⁰, δ¹, …), over the sentences that are trusted. The
    interaction also lets float64 use its own g, whose length enters as 1 / ‖g‖. The direction is g's own.
    """

    product: float  # cos of the interaction with float64's along the same trajectory; NaN if none is trusted
    interaction: float  # the same, float64 with its own gradients at the same δ
    direction: float  # the smallest |cos(g, g64)| of a trusted sentence and step
    reached: float  # Σ ℓ(δ^K), over what the float64 follower reaches by itself
    guarded: float  # share of (sentence, step) pairs left out of the interaction as noise
    moved: float  # the smallest movement of an output, in units of its rounding; below `TRUSTED` it is left out
    start: float  # ‖δ⁰‖ / ε, mean over sentences and sides
    share: float  # ‖interaction‖ / ‖∂ℓ/∂θ‖ in float64: what is at stake


def measure(
    deal: Callable[[nn.Module, Mapping[str, Tensor] | None], Hand], core: nn.Module, reference: nn.Module | None
) -> Fidelity:
    """Deal one batch to a model and to its float64 copy, without dropout, and compare what comes of it."""
    reference = copy.deepcopy(core).double() if reference is None else reference
    modes = [(module, module.training) for module in (*core.modules(), *reference.modules())]
    core.eval()
    reference.eval()
    try:
        working = deal(core, None)
        path = working.contest.climb(working.start, working.round.target)
        mine, paid = working.interaction(path), working.pay(path.deltas[-1])
        with torch.autocast(working.round.conditions.device.type, enabled=False):
            exact = deal(reference, working.start)
            along, own_gradients = exact.retrace(path, own_gradients=False)
            own_path, _ = exact.retrace(path, own_gradients=True)
            same, own, leader = exact.interaction(along), exact.interaction(own_path), exact.leader(along)
            climbed = exact.contest.climb(exact.start, exact.round.target)
            reachable = exact.pay(climbed.deltas[-1])
    finally:
        for module, training in modes:
            module.training = training
    trusted = torch.stack([path.trusted(k) for k in range(path.steps)])
    balls = working.contest.follower.balls
    return Fidelity(
        product=_cosine(mine, same),
        interaction=_cosine(mine, own),
        direction=_direction(path, own_gradients),
        reached=float(paid.detach() / reachable.detach()),
        guarded=1 - float(trusted.float().mean()),
        moved=float(torch.stack(path.moved).min()),
        start=sum(float((b.length(path.deltas[0][s]) / b.radius).mean()) for s, b in balls.items()) / len(balls),
        share=float(size(same) / size(leader)),
    )


def _cosine(a: Parts, b: Parts) -> float:
    pairs = [(x.double(), y.double()) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    dot = torch.stack([(x * y).sum() for x, y in pairs]).sum() if pairs else torch.zeros(())
    return float(dot / (size(a) * size(b)))


def _direction(path: Trajectory, exact: list[Deltas]) -> float:
    worst = 1.0
    for k, theirs in enumerate(exact):
        for side, g64 in theirs.items():
            g = path.gradients[k][side].double()
            cosines = torch.cosine_similarity(g.flatten(1), g64.flatten(1), dim=1).abs()[path.trusted(k)]
            worst = min([worst, *cosines.tolist()])
    return worst
