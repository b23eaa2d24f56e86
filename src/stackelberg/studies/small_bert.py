"""A small BERT with random weights and a tokenizer of whole words, as a folder that recipes can name as their model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stackelberg.errors import needs
from stackelberg.nmt.hush import hushed
from stackelberg.storage import whole_folder

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
SEED = 0


def write_small_bert(
    folder: Path,
    words: Sequence[str],
    *,
    layers: int,
    width: int,
    heads: int,
    inner: int,
    positions: int,
    length: float | None = None,
) -> None:
    """Write both.

    Args:
        folder: where; it must not be there yet.
        words: that the tokenizer knows, most wanted first; what is between spaces is a word.
        layers: of the encoder.
        width: of its hidden states.
        heads: of its attention.
        inner: width of its feed-forward layers.
        positions: the longest text.
        length: of a word's vector; as BERT begins when None.
    """
    with needs("tokenizers", extra="demo"), needs("transformers", extra="nlu"):
        import torch
        from tokenizers import Tokenizer
        from tokenizers.models import WordLevel
        from tokenizers.pre_tokenizers import WhitespaceSplit
        from tokenizers.processors import BertProcessing
        from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    numbers = {word: number for number, word in enumerate([*SPECIAL, *words])}
    rule = Tokenizer(WordLevel(numbers, unk_token="[UNK]"))
    rule.pre_tokenizer = WhitespaceSplit()
    rule.post_processor = BertProcessing(*((name, numbers[name]) for name in ("[SEP]", "[CLS]")))
    fast: Any = PreTrainedTokenizerFast
    tokenizer = fast(
        tokenizer_object=rule,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        model_max_length=positions,
    )
    config = BertConfig(
        vocab_size=len(numbers),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
        max_position_embeddings=positions,
    )
    with whole_folder(folder) as unfinished, torch.random.fork_rng(devices=[]), torch.no_grad(), hushed():
        torch.manual_seed(SEED)
        model: Any = BertModel(config)
        if length is not None:
            model.get_input_embeddings().weight.normal_(0.0, length / width**0.5)[numbers["[PAD]"]].zero_()
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
