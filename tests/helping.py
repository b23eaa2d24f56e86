"""What tests of the library share: playing a game both ways, and passes over x + δ of our own."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import zoo
from stackelberg import Game
from stackelberg.game.injection import Injection

GameMaker = Callable[[], Game]


def flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def gradient(model: nn.Module) -> Tensor:
    """All `.grad` of the trained parameters as one vector, 0 where there is none."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return flat(torch.zeros_like(p) if p.grad is None else p.grad for p in trained)


def error(actual: Tensor, expected: Tensor) -> float:
    """‖actual − expected‖ / ‖expected‖."""
    return float((actual - expected).norm() / expected.norm())


def plays(
    make: GameMaker,
    model: nn.Module,
    batch: Any,
    *,
    streamed: bool,
    times: int = 1,
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    **arguments: Any,
) -> tuple[Tensor, Tensor, Game]:
    """The last objective, the gradient summed over `times` plays, and the game; always from the same seed."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(0)
    game = make()
    value = torch.zeros(())
    for _ in range(times):
        with around():
            if streamed:
                value = game.backward(model, batch, **arguments).loss
            else:
                objective = game(model, batch, **arguments)
        if not streamed:
            objective.backward()
            value = objective.detach()
    return value, gradient(model), game


def grown(model: nn.Module) -> list[nn.Module]:
    """The modules that have a forward hook."""
    return [module for module in model.modules() if module._forward_hooks]


class Passes:
    """A model and a batch seen without the library: passes over x + δ, with δ added by hooks of our own."""

    def __init__(self, kind: str, arch: str, **changes: Any) -> None:
        self.kind = kind
        self.model, self.batch = zoo.build(kind, arch, **changes)
        self.players = zoo.players(kind, self.model, self.batch)
        self.masks = [mask.unsqueeze(-1).double() for mask in self.players.masks]
        self.trained = [p for p in self.model.parameters() if p.requires_grad]

    def start(self, std: float = 0.3, seed: int = 0) -> list[Tensor]:
        """A masked δ⁰ of each side."""
        return [delta * mask for delta, mask in zip(self.players.starts(std, seed), self.masks, strict=True)]

    def named(self, deltas: list[Tensor]) -> dict[str, Tensor]:
        """As the library's `start=` wants it."""
        return dict(zip(("source", "target"), deltas, strict=False))

    def at(self, deltas: list[Tensor]) -> Any:
        """The model's output at x + δ."""
        handles = [
            module.register_forward_hook(lambda m, a, out, delta=delta: out + delta)
            for module, delta in zip(self.players.modules, deltas, strict=bool(deltas))
        ]
        try:
            return self.model(**self.batch)
        finally:
            for handle in handles:
                handle.remove()

    def loss(self, deltas: list[Tensor]) -> Tensor:
        return cast(Tensor, self.at(deltas).loss)

    def divergence(self, which: Callable[[Tensor, Tensor], Tensor], deltas: list[Tensor]) -> Tensor:
        """Σ over all that counts of `which`(f(x), f(x + δ)), (rows of logits) → (rows,)."""
        return self.counted(which, self.players.logits([]), self.players.logits(deltas))

    def counted(self, which: Callable[[Tensor, Tensor], Tensor], p: Tensor, q: Tensor) -> Tensor:
        rows = which(p, q)
        counted = self.players.counted
        return rows.sum() if counted is None else rows[counted].sum()

    @property
    def count(self) -> int:
        """N: sentences, or tokens that count."""
        counted = self.players.counted
        return len(self.batch["input_ids"]) if counted is None else int(counted.sum())

    def unit(self, gradients: Iterable[Tensor]) -> list[Tensor]:
        """g / ‖g‖₂ of each sentence and side, only where δ may be."""
        masked = [g * mask for g, mask in zip(gradients, self.masks, strict=True)]
        return [g / g.square().sum((1, 2), keepdim=True).sqrt() for g in masked]

    def gradient(self, value: Tensor) -> Tensor:
        return flat(torch.autograd.grad(value, self.trained, retain_graph=True, materialize_grads=True))


def projected(deltas: list[Tensor], radius: float) -> list[Tensor]:
    """The nearest point with ‖δ‖₂ ≤ ε in each sentence."""
    sizes = [delta.square().sum((1, 2), keepdim=True).sqrt() for delta in deltas]
    return [delta * (radius / size).clamp(max=1) for delta, size in zip(deltas, sizes, strict=True)]


def kl(p: Tensor, q: Tensor) -> Tensor:
    """KL(P ‖ Q) of logits, over the last dimension."""
    return (p.softmax(-1) * (p.log_softmax(-1) - q.log_softmax(-1))).sum(-1)


def symmetric_kl(p: Tensor, q: Tensor) -> Tensor:
    return kl(p, q) + kl(q, p)


class Spy:
    """Notes every δ that the library injects, pass by pass, as {side: δ}."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passes: list[dict[str, Tensor]] = []
        original = Injection.__call__

        def watched(injection: Injection, deltas: Any = None, base: Any = None) -> Any:
            note: dict[str, Tensor] = {}
            self.passes.append(note)
            if not callable(deltas):
                note.update({side: delta.detach() for side, delta in (deltas or {}).items()})
                return original(injection, deltas, base)

            def draw(side: str, x: Tensor) -> Tensor | None:
                delta = deltas(side, x)
                if delta is not None:
                    note[side] = delta.detach()
                return cast(Tensor | None, delta)

            return original(injection, draw, base)

        monkeypatch.setattr(Injection, "__call__", watched)

    @property
    def perturbed(self) -> list[dict[str, Tensor]]:
        """The passes that had a δ."""
        return [note for note in self.passes if note]
