"""A small BERT with random weights for the demo's letters, as a folder that any recipe can name as its model."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stackelberg.errors import needs
from stackelberg.nmt.hush import hushed
from stackelberg.storage import whole_folder

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
LAYERS, WIDTH, HEADS = 2, 64, 4
POSITIONS = 48
LENGTH = 1.4  # of a word's vector, as in BERT-base, so that a perturbation of size ε means what it means there
SEED = 0


def write_encoder(folder: Path, texts: Iterable[str]) -> None:
    """An encoder and a tokenizer that knows the words of the texts and no others."""
    with needs("tokenizers", extra="demo"), needs("transformers", extra="demo"):
        import torch
        from tokenizers import Tokenizer
        from tokenizers.models import WordLevel
        from tokenizers.pre_tokenizers import WhitespaceSplit
        from tokenizers.processors import BertProcessing
        from tokenizers.trainers import WordLevelTrainer
        from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    words = Tokenizer(WordLevel(unk_token="[UNK]"))
    words.pre_tokenizer = WhitespaceSplit()
    words.train_from_iterator(texts, WordLevelTrainer(special_tokens=list(SPECIAL), show_progress=False))
    words.post_processor = BertProcessing(*(((name, SPECIAL.index(name))) for name in ("[SEP]", "[CLS]")))
    fast: Any = PreTrainedTokenizerFast
    tokenizer = fast(
        tokenizer_object=words,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        model_max_length=POSITIONS,
    )
    config = BertConfig(
        vocab_size=words.get_vocab_size(),
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=2 * WIDTH,
        max_position_embeddings=POSITIONS,
    )
    with whole_folder(folder) as unfinished, torch.random.fork_rng(devices=[]), torch.no_grad(), hushed():
        torch.manual_seed(SEED)
        model: Any = BertModel(config)
        vectors = model.get_input_embeddings().weight
        vectors.normal_(0.0, LENGTH / WIDTH**0.5)[SPECIAL.index("[PAD]")].zero_()
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
