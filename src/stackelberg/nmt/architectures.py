"""Transformers to train from scratch, as Marian configurations, which `transformers` and CTranslate2 both run.

What is particular to Marian here:
- positions are sinusoids, sines first and cosines after, never trained and never saved;
- embeddings are multiplied by √d after the lookup (`scale_embedding`), positions added to that;
- norms come after each sublayer, as in Vaswani et al. (2017);
- the decoder begins with `<pad>`, the last id, whose embedding is zero and stays so: its logit is pushed down by
  `final_logits_bias`, so that it is never generated and no gradient reaches it. CTranslate2 counts on that zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from stackelberg.errors import needs
from stackelberg.nmt.subwords import MAX_LENGTH

NEVER = -1e4  # a logit that no softmax sees, and that float16 can hold


@dataclass(frozen=True)
class Architecture:
    """Sizes of a Transformer: width, feed-forward width, heads, layers on each side, and its usual dropout."""

    width: int
    feed_forward: int
    heads: int
    layers: int
    dropout: float


ARCHITECTURES: dict[str, Architecture] = {
    "base": Architecture(512, 2048, 8, 6, 0.1),  # Vaswani et al. (2017)
    "iwslt": Architecture(512, 1024, 4, 6, 0.3),  # fairseq's transformer_iwslt_de_en
    "big": Architecture(1024, 4096, 16, 6, 0.3),
    "tiny": Architecture(64, 128, 2, 2, 0.1),  # for tests
}


def untrained(architecture: Architecture, codec: Any, *, dropout: float | None, attention: str = "sdpa") -> Any:
    """A `MarianMTModel` with its first weights; the caller has seeded torch.

    Args:
        architecture: its sizes.
        codec: whose vocabularies it has.
        dropout: instead of the architecture's usual.
        attention: `transformers`' name of its kernel.
    """
    with needs("transformers", extra="hf"):
        from transformers import MarianConfig, MarianMTModel

    joint = codec.target is codec.tokenizer
    pad = codec.tokenizer.pad_token_id
    make: Any = MarianConfig  # which takes more than its signature says
    config = make(
        vocab_size=len(codec.tokenizer),
        decoder_vocab_size=len(codec.target),
        share_encoder_decoder_embeddings=joint,
        tie_word_embeddings=True,
        max_position_embeddings=MAX_LENGTH,
        d_model=architecture.width,
        encoder_layers=architecture.layers,
        decoder_layers=architecture.layers,
        encoder_ffn_dim=architecture.feed_forward,
        decoder_ffn_dim=architecture.feed_forward,
        encoder_attention_heads=architecture.heads,
        decoder_attention_heads=architecture.heads,
        activation_function="relu",
        dropout=architecture.dropout if dropout is None else dropout,
        scale_embedding=True,
        static_position_embeddings=True,
        pad_token_id=pad,
        eos_token_id=codec.tokenizer.eos_token_id,
        forced_eos_token_id=None,
        decoder_start_token_id=pad,
        attn_implementation=attention,
    )
    model = MarianMTModel(config)
    _first_weights(model)
    silence_pad(model)
    return model


def silence_pad(model: Any) -> None:
    """Of a Marian model that begins with `<pad>`: never generate it, and let no gradient reach its embedding."""
    config, bias = model.config, getattr(model, "final_logits_bias", None)
    if config.model_type == "marian" and bias is not None and config.decoder_start_token_id == config.pad_token_id:
        bias[..., config.pad_token_id] = NEVER


@torch.no_grad()
def _first_weights(model: nn.Module) -> None:
    """As fairseq draws them, whose settings the recipes have: Xavier, and embeddings of deviation 1/√d."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and not name.endswith("lm_head"):
            inward = name.rpartition(".")[2] in ("q_proj", "k_proj", "v_proj")
            nn.init.xavier_uniform_(module.weight, gain=2**-0.5 if inward else 1.0)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding) and module.weight.requires_grad:
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
            if module.padding_idx is not None:
                module.weight[module.padding_idx].zero_()
