"""Adam and its learning rate."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from stackelberg.nmt.recipe import TranslationRecipe


def inverse_root(step: int, highest: float, warmup: int) -> float:
    """The learning rate of a step, from 0 on: up in a line for `warmup` steps, then down with the root of the steps."""
    made = step + 1
    return highest * (made / warmup if made < warmup else (warmup / made) ** 0.5)


def adam(recipe: TranslationRecipe, model: nn.Module) -> torch.optim.AdamW:
    """With decoupled decay on matrices, and fused on a GPU so that it can be part of a captured step."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups,
        lr=inverse_root(0, recipe.learning_rate, recipe.warmup),
        betas=recipe.betas,
        eps=1e-8,
        fused=trained[0].device.type == "cuda",
    )


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Of every group; a captured step reads it from a tensor."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
