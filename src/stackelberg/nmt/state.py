"""How far a training is: what of it is neither weights nor optimizer."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field

from stackelberg.nmt.evaluation import Judged
from stackelberg.nmt.plan import Position


@dataclass
class Progress:
    """What of a training is neither weights nor optimizer."""

    step: int = 0
    position: Position = field(default_factory=Position)
    replayed: int = 0  # how often the step at `position` was made already, of a method that replays batches
    history: list[tuple[int, float, float]] = field(default_factory=list)  # step, loss and BLEU of evaluations

    def scores(self, choose: str) -> list[tuple[int, float]]:
        """Step and score of every evaluation."""
        return [(step, Judged(loss, bleu).score(choose)) for step, loss, bleu in self.history]

    def best(self, choose: str) -> tuple[int, float]:
        """The first of the highest; a score that is no number is below all others."""
        return max(self.scores(choose), key=lambda each: (-math.inf if math.isnan(each[1]) else each[1], -each[0]))

    def written(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, said: str) -> Progress:
        """From JSON."""
        values = json.loads(said)
        history = [(step, loss, bleu) for step, loss, bleu in values["history"]]
        return cls(values["step"], Position(**values["position"]), values["replayed"], history)
