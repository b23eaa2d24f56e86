"""How well a model in training does on sentences with a reference: loss, and BLEU of what it writes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from stackelberg.nmt.batches import of_sentences, on
from stackelberg.nmt.codec import Codec
from stackelberg.nmt.corpus import Corpus
from stackelberg.nmt.generating import Generating
from stackelberg.nmt.model import positions
from stackelberg.nmt.scores import Score, figures, sacre_bleu, tokenized_bleu
from stackelberg.nmt.search import Search, Translation, Translator
from stackelberg.nmt.task import likelihood


@dataclass(frozen=True)
class Judged:
    """The figures of an evaluation: loss a target token (not smoothed), and BLEU."""

    loss: float
    bleu: float

    def score(self, choose: str) -> float:
        """What is to be high: BLEU as a fraction, or the tokens' mean likelihood."""
        return self.bleu / 100 if choose == "bleu" else math.exp(-self.loss)


class Sentences:
    """Sentences and their references, every one of them, in order.

    Args:
        sources: as they are in their file.
        references: likewise.
        codec: that a model reads them with.
    """

    def __init__(self, sources: Sequence[str], references: Sequence[str], codec: Codec) -> None:
        """Prepare them."""
        form = codec.form
        self.running = list(references)
        self.sources = [form.prepared_source(line) for line in sources]
        self.references = [form.prepared_target(line) for line in references]
        self.codec = codec
        self._ids = [
            pair
            for source, reference, *pair in zip(
                self.sources, self.references, codec.sources(self.sources), codec.targets(self.references), strict=True
            )
            if source and reference
        ]

    @classmethod
    def of(cls, corpus: Corpus, codec: Codec) -> Sentences:
        """All pairs of a corpus."""
        pairs = list(corpus.pairs())
        return cls([source for source, _ in pairs], [target for _, target in pairs], codec)

    def __len__(self) -> int:
        return len(self.sources)

    def judge(self, model: Any, *, score: str, beam: int, max_tokens: int, precision: str) -> Judged:
        """Loss and BLEU of a model, which stays in the mode it is in."""
        translator = Translator(Generating(model, self.codec, precision), self.codec, batch_tokens=max_tokens)
        found = translator.best(self.sources, Search(beam=beam), prepared=True)
        bleu = (
            tokenized_bleu([one.tokenized for one in found], self.references)
            if score == "tokenized"
            else sacre_bleu([one.text for one in found], self.running)
        )
        return Judged(self.loss(model, max_tokens=max_tokens, precision=precision), bleu.value)

    def figures(self, found: Sequence[Translation]) -> dict[str, Score]:
        """Both BLEUs and chrF of translations of these sentences."""
        return figures([one.tokenized for one in found], self.references, [one.text for one in found], self.running)

    @torch.no_grad()
    def loss(self, model: Any, *, max_tokens: int, precision: str) -> float:
        """−log p of the references' tokens, the mean; sentences longer than the model's positions are left out."""
        device = next(model.parameters()).device
        most = positions(model) or math.inf
        pairs = sorted((p for p in self._ids if max(map(len, p)) <= most), key=lambda p: max(map(len, p)), reverse=True)
        total, tokens = torch.zeros((), device=device), torch.zeros((), dtype=torch.long, device=device)
        training = model.training
        model.eval()
        try:
            while pairs:
                rows = max(1, max_tokens // max(map(len, pairs[0])))
                here, pairs = pairs[:rows], pairs[rows:]
                batch = on(
                    device,
                    of_sentences([p[0] for p in here], [p[1] for p in here], self.codec.tokenizer.pad_token_id),
                )
                with (
                    nullcontext() if precision == "float32" else torch.autocast(device.type, getattr(torch, precision))
                ):
                    logits = model(**batch).logits
                some, count = likelihood(logits, batch["labels"])
                total, tokens = total + some, tokens + count
        finally:
            model.train(training)
        return float(total / tokens) if tokens else math.nan
