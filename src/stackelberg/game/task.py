"""What a model's outputs mean: where its logits and loss are, what its divergence is taken over.

A `Task` is all that the game needs to know of a model. Hugging Face models describe themselves
(`huggingface.py`); any other module is described by two small functions.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..errors import ModelError, one_of
from .injection import find_embedding

Batch = Any  # a mapping for Hugging Face models; whatever the two functions understand otherwise

Kind = Literal["classification", "regression", "multilabel", "span", "tokens", "shifted_tokens"]
KINDS: tuple[Kind, ...] = ("classification", "regression", "multilabel", "span", "tokens", "shifted_tokens")

IGNORED = -100  # the label that PyTorch's losses skip


@dataclass(frozen=True)
class Outputs:
    """One pass: the task's own loss (None without labels) and the logits."""

    loss: Tensor | None
    logits: Tensor


@dataclass(frozen=True)
class Task:
    """A model described by two functions.

    Args:
        kind: what the logits are. `classification` (B, C); `regression` (B,) or (B, k) values; `multilabel`
            (B, C) of independent sigmoids; `span` (B, 2, L) start and end; `tokens` (B, L, C);
            `shifted_tokens` (B, L, C) where position t predicts label t + 1, as in causal language models.
        logits: (model, batch) → logits.
        loss: (logits, batch) → scalar, the mean over sentences (or over real tokens).
        embeddings: the perturbed side's name → its embedding module or the module's path. Left out, the
            model's only `nn.Embedding`.
        masks: batch → mask (B, L) of real input positions, or a mapping from side to mask. Left out, all real.
        labels: batch → labels, with −100 at positions that do not count; only needed for token kinds.

    Example:
        >>> from stackelberg import SALT, Task
        >>> task = Task("classification", logits=lambda m, b: m(b["ids"]),
        ...             loss=lambda z, b: torch.nn.functional.cross_entropy(z, b["y"]))
        >>> game = SALT(task=task)
    """

    kind: Kind
    logits: Callable[[nn.Module, Batch], Tensor]
    loss: Callable[[Tensor, Batch], Tensor]
    embeddings: Mapping[str, nn.Module | str] | None = None
    masks: Callable[[Batch], Tensor | Mapping[str, Tensor]] | None = None
    labels: Callable[[Batch], Tensor | None] | None = field(default=None)

    def __post_init__(self) -> None:
        """Refuse an unknown kind."""
        one_of("Task kind", self.kind, KINDS)

    @property
    def key(self) -> Hashable:
        """What tells two descriptions of one model apart."""
        return self.kind, self.logits, self.loss

    def play(self, model: nn.Module, batch: Batch, labelled: bool) -> Outputs:
        """Run the model; `labelled` asks for the task loss too."""
        logits = self.logits(model, batch)
        return Outputs(self.loss(logits, batch) if labelled else None, logits)

    def labelled(self, batch: Batch) -> bool:
        """Whether the batch has what the task loss needs; two functions are taken at their word."""
        return True

    def sides(self, model: nn.Module) -> dict[str, nn.Module]:
        """The embedding module of every side that can be perturbed."""
        if self.embeddings is None:
            return {"source": find_embedding(model)}
        modules = dict(model.named_modules(remove_duplicate=False))
        found: dict[str, nn.Module] = {}
        for side, module in self.embeddings.items():
            if isinstance(module, str) and module not in modules:
                raise ModelError(f"Task embeddings name {module!r}, which {type(model).__name__} does not have")
            found[side] = modules[module] if isinstance(module, str) else module
        return found

    def long_rows(self, model: nn.Module, batch: Batch) -> bool:
        """Whether rows are so long for the model's width that attention scores are most of what a pass keeps."""
        return False

    def head(self, model: nn.Module) -> list[nn.Module]:
        """The modules that make logits of hidden states, where they are few and small; not known of a function."""
        return []

    def input_mask(self, side: str, batch: Batch) -> Tensor | None:
        """The real positions of one side's embeddings, (B, L) bool; None where all are."""
        masks = self.masks(batch) if self.masks else None
        mask = masks.get(side) if isinstance(masks, Mapping) else masks
        return None if mask is None else mask.bool()

    def input_ids(self, side: str, batch: Batch) -> Tensor | None:
        """The token ids of one side, for leaving special tokens out; None where they are not known."""
        return None

    def token_labels(self, batch: Batch) -> Tensor | None:
        """Labels of token kinds, (B, L), −100 where nothing counts."""
        return self.labels(batch) if self.labels else None

    def rows(self, logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits as rows `(B, T, C)` for a divergence, and the mask `(B, T)` of rows that count."""
        if self.by_token:
            return self._token_rows(logits, batch)
        if self.kind == "multilabel":  # a sigmoid is the softmax of (z, 0)
            rows = torch.stack([logits, torch.zeros_like(logits)], -1)
        elif self.kind == "span":
            rows = logits
        else:
            rows = logits.reshape(logits.shape[0], 1, -1)
        return rows, torch.ones(rows.shape[:2], dtype=torch.bool, device=rows.device)

    def _token_rows(self, logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        labels = self.token_labels(batch)
        if labels is None:
            mask = self.input_mask("source", batch)
            mask = torch.ones(logits.shape[:2], dtype=torch.bool, device=logits.device) if mask is None else mask
        else:
            mask = labels != IGNORED
        if self.kind == "shifted_tokens":
            return logits[:, :-1], mask[:, 1:]
        return logits, mask

    @property
    def by_token(self) -> bool:
        """Whether the task loss is a mean over tokens."""
        return self.kind in ("tokens", "shifted_tokens")

    def tokens(self, batch: Batch) -> Tensor | None:
        """How many tokens the task loss is a mean over, read off a batch before any pass; None if over sentences."""
        labels = self.token_labels(batch) if self.by_token else None
        if labels is None:
            return None
        return ((labels[:, 1:] if self.kind == "shifted_tokens" else labels) != IGNORED).sum()

    def count(self, mask: Tensor) -> Tensor:
        """The task loss's own denominator: sentences, or real tokens. `mask` is that of `rows`."""
        if self.by_token:
            return mask.sum()
        return torch.full((), mask.shape[0], device=mask.device)
