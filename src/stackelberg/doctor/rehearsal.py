"""Every method plays one step of a tiny model of torch's own, which needs no other package."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..game.task import Task
from ..methods import METHODS, create
from .finding import Finding, sentence

WORDS, WIDTH, CLASSES, ROWS, LENGTH = 32, 8, 3, 4, 6


class Tiny(nn.Module):
    """Words, dropout, a layer, and the mean over the sentence."""

    def __init__(self) -> None:
        """Random weights."""
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.dropout = nn.Dropout(0.2)
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        """(B, L) → (B, classes)."""
        hidden = torch.tanh(self.layer(self.dropout(self.embedding(ids))))
        logits: Tensor = self.head(hidden.mean(1))
        return logits


TASK = Task(
    "classification",
    logits=lambda model, batch: model(batch["ids"]),
    loss=lambda logits, batch: cross_entropy(logits, batch["y"]),
)


def rehearse() -> Iterator[Finding]:
    """One line for all that can play, one for each that cannot."""
    played = []
    with torch.random.fork_rng(devices=[]):
        for name in METHODS:
            torch.manual_seed(0)
            try:
                _play(name)
                played.append(name)
            except Exception as error:  # of any kind: a method may be somebody's own
                yield Finding("failure", f"method.{name}", f"method {name!r} cannot play a step: {sentence(error)}")
    if played:
        says = f"a tiny built-in model plays a step of {', '.join(played)}"
        yield Finding("ok", "methods", says, {"played": played})


def _play(name: str) -> None:
    model = Tiny().train()
    game = create(name, task=TASK, mode="eager")
    batch = {"ids": torch.randint(WORDS, (ROWS, LENGTH)), "y": torch.randint(CLASSES, (ROWS,))}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [p.detach().clone() for p in model.parameters()]
    game(model, batch).backward()
    optimizer.step()
    after = list(model.parameters())
    if not all(torch.isfinite(p).all() for p in after):
        raise ArithmeticError("a parameter is not finite after the step")
    if all(torch.equal(a, b) for a, b in zip(before, after, strict=True)):
        raise ArithmeticError("no parameter moved")
