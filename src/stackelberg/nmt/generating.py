"""Searching with transformers' own `generate`, on whatever device the model is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stackelberg.errors import one_of
from stackelberg.nmt.batches import filled
from stackelberg.nmt.codec import Codec
from stackelberg.nmt.model import load_model, positions
from stackelberg.nmt.recipe import PRECISIONS
from stackelberg.nmt.search import Found, Search, Translator


class Generating:
    """An engine around a Hugging Face encoder–decoder.

    Args:
        model: in any mode; it searches in evaluation mode.
        codec: of its tokens.
        precision: of the computation.
    """

    def __init__(self, model: Any, codec: Codec, precision: str = "float32") -> None:
        """See the class."""
        self.model = model
        self.pad: int = codec.tokenizer.pad_token_id
        self.end: int = codec.target.eos_token_id
        self.longest = positions(model)
        self.precision = precision

    def search(self, sources: Sequence[Sequence[int]], how: Search, most: int) -> list[list[Found]]:
        """Beams end once as many hypotheses as beams are finished, as fairseq's and CTranslate2's do."""
        device = next(self.model.parameters()).device
        ids = filled(sources, self.pad)
        mask = filled([[1] * len(each) for each in sources], 0)
        limit = most if self.longest is None else min(most, self.longest - 1)
        beams: dict[str, Any] = {"early_stopping": True, "length_penalty": how.length_penalty} if how.beam > 1 else {}
        training = self.model.training
        self.model.eval()
        try:
            with torch.inference_mode(), self._autocast(device.type):
                made = self.model.generate(
                    input_ids=ids.to(device),
                    attention_mask=mask.to(device),
                    num_beams=how.beam,
                    num_return_sequences=how.n_best,
                    do_sample=False,
                    max_new_tokens=limit,
                    max_length=None,
                    **beams,
                )
                scores = self._scores(ids, mask, made, how) if how.scored else [math.nan] * len(made)
        finally:
            self.model.train(training)
        rows = [Found(row, score) for row, score in zip(made.tolist(), scores, strict=True)]
        return [rows[first : first + how.n_best] for first in range(0, len(rows), how.n_best)]

    def _scores(self, ids: Tensor, mask: Tensor, made: Tensor, how: Search) -> list[float]:
        """By one more pass over what was written: `generate` would have to keep every step's logits for it."""
        written = made[:, 1:]
        ended = (written == self.end).cumsum(1)
        real = torch.cat([torch.zeros_like(ended[:, :1]), ended[:, :-1]], 1) == 0  # the end counts, and no more
        logits = self.model(
            input_ids=ids.to(made.device).repeat_interleave(how.n_best, 0),
            attention_mask=mask.to(made.device).repeat_interleave(how.n_best, 0),
            decoder_input_ids=made[:, :-1],
        ).logits.float()
        gains = logits.gather(-1, written.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(-1)
        total = gains.masked_fill(~real, 0.0).sum(1) / real.sum(1).float() ** how.length_penalty
        found: list[float] = total.tolist()
        return found

    def _autocast(self, kind: str) -> Any:
        return nullcontext() if self.precision == "float32" else torch.autocast(kind, getattr(torch, self.precision))


def load_translator(folder: Path | str, *, precision: str | None = None) -> Translator:
    """A translator of a model's folder, or of a name on the hub; on the GPU if there is one, in bfloat16 then."""
    if precision is not None:
        one_of("precision", precision, PRECISIONS)
    codec = Codec.load(folder)
    model = load_model(str(folder), codec)
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        model.to("cuda")
    chosen = precision or ("bfloat16" if on_gpu else "float32")
    return Translator(Generating(model, codec, chosen), codec)
