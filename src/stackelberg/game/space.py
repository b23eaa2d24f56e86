"""Where a side's perturbation may be: which positions, in which ball, and how far it starts from 0."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import ModelError, SettingError
from .ball import Ball
from .round import Round
from .task import IGNORED


@dataclass(frozen=True)
class Space:
    """One side's perturbation space on one batch."""

    mask: Tensor  # (B, L, 1), 1 where δ may be, in δ's own dtype
    ball: Ball
    unit: float | Tensor  # what ε and η are multiples of: 1, or the embeddings' own size
    coordinates: int | Tensor  # how many coordinates share the ball's norm
    deviation: float | Tensor  # σ


def perturbable(round: Round, side: str, x: Tensor, exclude_tokens: tuple[int, ...], perturb_prompt: bool) -> Tensor:
    """The positions of `x` (B, L, d) that may move, (B, L, 1): not padding, nor what is left out by choice."""
    task, batch = round.task, round.batch
    mask = task.input_mask(side, batch)
    if mask is None:
        mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    if exclude_tokens:
        ids = task.input_ids(side, batch)
        if ids is None:
            raise SettingError("exclude_tokens needs token ids, which this task does not give; use Task(masks=...)")
        for token in exclude_tokens:
            mask = mask & (ids != token)
    if not perturb_prompt:
        labels = task.token_labels(batch)
        if labels is None or task.kind != "shifted_tokens":
            raise SettingError("perturb_prompt=False is for causal models whose labels mark the prompt by -100")
        mask = mask & (labels != IGNORED)
    if mask.shape[1] < x.shape[1]:  # a model that pads its embeddings further, such as Longformer
        mask = torch.nn.functional.pad(mask, (0, x.shape[1] - mask.shape[1]))
    if mask.shape != x.shape[:2]:
        raise ModelError(f"the mask of side {side!r} is {tuple(mask.shape)}, its embeddings are {tuple(x.shape)}")
    return mask[:, :, None].to(torch.float64 if x.dtype == torch.float64 else torch.float32)
