"""How the game reads a translation model: label-smoothed cross-entropy, the mean over real target tokens."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from stackelberg.game.huggingface import HuggingFaceTask
from stackelberg.game.task import IGNORED, Batch
from stackelberg.nmt.architectures import NEVER


@dataclass(frozen=True)
class TranslationTask(HuggingFaceTask):
    """An encoder–decoder whose loss is smoothed.

    Args:
        smoothing: ε, the share of the target's probability that all tokens share alike.
        silent: a token that is never generated and has no share, or None.
    """

    smoothing: float = 0.0
    silent: int | None = None

    @classmethod
    def reading(cls, model: Any, smoothing: float) -> TranslationTask:
        """Describe a model."""
        config, bias = model.config, getattr(model, "final_logits_bias", None)
        pad = config.pad_token_id
        silent = pad if bias is not None and float(bias.flatten()[pad]) == NEVER else None
        vocabulary = getattr(config, "decoder_vocab_size", None) or config.get_text_config().vocab_size
        return replace(cls.of(model, {}), classes=vocabulary, smoothing=smoothing, silent=silent)

    @property
    def key(self) -> Hashable:
        """The smoothing belongs to it."""
        return self.kind, self.smoothing, self.silent

    def with_loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Any]:
        """A pass that makes logits, and our own loss of them."""
        inputs = {name: x for name, x in batch.items() if name != "labels"}
        if "decoder_input_ids" not in inputs:
            assert self.shift is not None
            inputs["decoder_input_ids"] = self.shift(batch["labels"])
        outputs = model(**inputs)  # which may be wrapped
        return smoothed(outputs.logits, batch["labels"], self.smoothing, self.silent), outputs


def smoothed(logits: Tensor, labels: Tensor, smoothing: float, silent: int | None = None) -> Tensor:
    """−Σ_v q(v) log p(v), the mean over positions with a label; q is 1 − ε at the label, and ε spread over all tokens.

    Written with log Σ exp, so that of the size of the logits nothing but themselves is kept.

    Args:
        logits: (B, T, V).
        labels: (B, T), −100 where there is none.
        smoothing: ε.
        silent: a token that has no share, whose p is 0.
    """
    z = logits.float()
    real = labels != IGNORED
    chosen = z.gather(-1, labels.masked_fill(~real, 0).unsqueeze(-1)).squeeze(-1)
    aimed = chosen
    if smoothing:
        tokens = z.shape[-1]
        if silent is None:
            total = z.sum(-1)
        else:
            # the sum of the others: with the silent one's logit in it and out again, digits would be lost
            total, tokens = z[..., :silent].sum(-1) + z[..., silent + 1 :].sum(-1), tokens - 1
        aimed = (1 - smoothing) * chosen + smoothing * total / tokens
    losses = (torch.logsumexp(z, -1) - aimed).masked_fill(~real, 0.0)
    return losses.sum() / real.sum()


def likelihood(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Σ −log p of the labels, and how many there are."""
    tokens = (labels != IGNORED).sum()
    return smoothed(logits, labels, 0.0) * tokens, tokens
