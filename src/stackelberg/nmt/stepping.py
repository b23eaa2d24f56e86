"""One optimizer step on all of its micro-batches, in one process or as one of several."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from stackelberg.game.game import Game
from stackelberg.game.report import Report
from stackelberg.game.step import Precision, TrainingStep
from stackelberg.nmt.processes import Processes

Batch = dict[str, Tensor]


class Stepping:
    """Gradient, clipping and update.

    In one process this is `TrainingStep`. Of several, each plays its share of a step's micro-batches; what sentences
    have for noise and what losses are divided by is that of the whole step.

    Args:
        game: the method.
        model: on its device, in training mode.
        optimizer: of its parameters.
        clip: the norm that gradients are clipped to; 0 does not clip.
        precision: of the computation.
        processes: of the training.
    """

    def __init__(
        self,
        game: Game,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        clip: float,
        precision: Precision,
        processes: Processes,
    ) -> None:
        """See the class."""
        self.game = game
        self.step = TrainingStep(game, model, optimizer, max_norm=clip or None, precision=precision)
        self.processes = processes
        if processes.count > 1:
            places = [processes.device.index] if processes.device.type == "cuda" else None
            self.model: nn.Module = DistributedDataParallel(model, device_ids=places)

    def share(self, micro: Sequence[Any]) -> list[tuple[int, Any]]:
        """This process's part of a step's micro-batches, each with its number in the step."""
        return list(enumerate(micro))[self.processes.rank :: self.processes.count]

    def __call__(self, batches: Sequence[Batch], first_rows: Sequence[int], tokens: int, sentences: int) -> Report:
        """Make the step.

        Args:
            batches: this process's micro-batches.
            first_rows: each one's first sentence's number in the step.
            tokens: real target tokens of the whole step.
            sentences: of the whole step.
        """
        normalizer: Any = tokens / self.processes.count
        if getattr(self.game, "reduction", None) == "sentences":
            normalizer = normalizer, sentences / self.processes.count
        if self.processes.count == 1:
            return self.step(*batches, normalizer=normalizer)
        return self._as_one_of_many(batches, first_rows, normalizer)

    def _as_one_of_many(self, batches: Sequence[Batch], first_rows: Sequence[int], normalizer: Any) -> Report:
        step, model = self.step, self.model
        assert isinstance(model, DistributedDataParallel)
        reports: list[Report] = []
        for number, (batch, first) in enumerate(zip(batches, first_rows, strict=True)):
            rows = batch["input_ids"]
            index = torch.arange(first, first + len(rows), device=rows.device)
            with nullcontext() if number == len(batches) - 1 else model.no_sync():
                with step._autocast():
                    loss = self.game(model, batch, normalizer=normalizer, index=index)
                step.scaler.scale(loss).backward()
            assert self.game.report is not None
            reports.append(self.game.report)
        step.scaler.unscale_(step.optimizer)
        if step.max_norm is not None:
            nn.utils.clip_grad_norm_(step.parameters, step.max_norm)
        step.scaler.step(step.optimizer)
        step.scaler.update()
        if self.game.clock.told:
            self.game.after_step()
        step.optimizer.zero_grad(set_to_none=True)
        return Report.of_step(reports)
