"""A whole optimizer step in one call, and on a GPU in one launch: gradient, clipping and update in one graph."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW

from ..errors import SettingError, one_of
from .game import Game
from .report import Report
from .task import Batch

Precision = Literal["float32", "bfloat16", "float16"]
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16", "float16")


class TrainingStep:
    """`report = step(batch)`: the game's gradient, clipped, and one step of the optimizer on it.

    On a GPU, with `mode` "auto" or "graph" and a fused Adam or AdamW, all of it is one captured graph for each shape
    of a batch; the learning rate becomes a tensor, so that schedulers of torch go on working. A step whose gradient
    is not finite leaves parameters and optimizer as they were, and `report.skipped` says so.

    Args:
        game: the method.
        model: in training mode.
        optimizer: of the model's parameters.
        max_norm: of the gradient, over all parameters; left out, it is not clipped.
        precision: `"float32"`, or autocast to `"bfloat16"` or `"float16"` (which has a gradient scaler here).

    Example:
        >>> step = TrainingStep(SALT(), model, torch.optim.AdamW(model.parameters()))  # doctest: +SKIP
        >>> step(batch).numbers()["loss"]  # doctest: +SKIP
        0.69
    """

    def __init__(
        self,
        game: Game,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        max_norm: float | None = None,
        precision: Precision = "float32",
    ) -> None:
        """See the class."""
        one_of("precision", precision, PRECISIONS)
        if max_norm is not None and not max_norm > 0:
            raise SettingError(f"max_norm={max_norm!r} should be a number above 0, or None for no clipping")
        self.game = game
        self.model = model
        self.optimizer = optimizer
        self.max_norm = max_norm
        self.precision = precision
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.device = self.parameters[0].device
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "float16")

    def __call__(self, *batches: Batch, normalizer: float | Tensor | None = None) -> Report:
        """One step on one batch, or on several micro-batches; for several, `normalizer` is N over all of them."""
        if len(batches) > 1 and normalizer is None:
            raise SettingError("several micro-batches need normalizer=, the number of sentences (or tokens) of all")
        if len(batches) == 1 and self._fusable():
            with self._autocast():
                report = self.game.step(self.model, batches[0], self._update, normalizer=normalizer)
            if report is not None:
                return report
        return self._apart(batches, normalizer)

    def _apart(self, batches: Sequence[Batch], normalizer: float | Tensor | None) -> Report:
        """Gradient, clipping and update one after the other."""
        reports: list[Report] = []
        for batch in batches:
            with self._autocast():
                loss = self.game(self.model, batch, normalizer=normalizer)
            self.scaler.scale(loss).backward()
            assert self.game.report is not None
            reports.append(self.game.report)
        self.scaler.unscale_(self.optimizer)
        if self.max_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.max_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.game.clock.told:  # it was told of captured steps, and no longer looks for others
            self.game.after_step()
        self.optimizer.zero_grad(set_to_none=True)
        return Report.of_step(reports)

    def _update(self) -> Tensor:
        """Clip what lies in `.grad`, and step unless it is not finite; whether it was not, on the device."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norms = torch._foreach_norm(gradients)
        total = torch.stack(norms).square().sum().sqrt()
        skipped = (~torch.isfinite(total)).float()
        if self.max_norm is not None:
            torch._foreach_mul_(gradients, (self.max_norm / (total + 1e-6)).clamp(max=1.0))
        optimizer: Any = self.optimizer
        optimizer.grad_scale, optimizer.found_inf = None, skipped  # how a fused optimizer is told to leave it
        try:
            optimizer.step()
        finally:
            del optimizer.grad_scale, optimizer.found_inf
        return skipped

    def _fusable(self) -> bool:
        """Whether the optimizer can be part of a graph; makes it so where it can."""
        if self.precision == "float16" or self.device.type != "cuda" or not isinstance(self.optimizer, Adam | AdamW):
            return False
        if any(not group["fused"] for group in self.optimizer.param_groups) or not self.optimizer.state:
            return False  # its state must be there before a graph that moves it is captured
        for group in self.optimizer.param_groups:
            if not isinstance(group["lr"], Tensor):
                group["lr"] = torch.tensor(group["lr"], device=self.device)
            group["capturable"] = True
        return True

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, getattr(torch, self.precision))
