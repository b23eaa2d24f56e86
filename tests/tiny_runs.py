"""A tiny random model with a tokenizer, and rows, as folders and files: what a training run needs."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model, PreTrainedTokenizerFast

from stackelberg.nlu.recipe import Recipe

POSITIONS = 24
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
GOOD, BAD = ("fine", "great", "lovely"), ("dull", "poor", "awful")
FILLERS = ("a", "film", "the", "plot", "was", "and")


@cache
def model(dropout: float = 0.1) -> str:
    """A folder with BERT's encoder, as a checkpoint has it: no head, and in float16."""
    folder = Path(mkdtemp())
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(SPECIAL) + len(GOOD + BAD + FILLERS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=POSITIONS,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    BertModel(config).half().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)


@cache
def causal_model() -> str:
    """A folder with GPT-2, whose tokenizer has no padding token and whose head no dropout."""
    folder = Path(mkdtemp())
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=16, n_embd=16, n_layer=1, n_head=2, n_positions=POSITIONS, bos_token_id=2, eos_token_id=3
    )
    GPT2Model(config).save_pretrained(folder)
    words = tokenizer()
    words.eos_token, words.pad_token = "[SEP]", None
    words.model_input_names = ["input_ids", "attention_mask"]
    words.save_pretrained(folder)
    return str(folder)


def tokenizer() -> Any:
    """Words by number."""
    words = {word: number for number, word in enumerate([*SPECIAL, *GOOD, *BAD, *FILLERS])}
    plain = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    plain.pre_tokenizer = Whitespace()
    plain.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=plain,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        model_max_length=POSITIONS,
    )


@cache
def data() -> str:
    """GLUE's folders of SST-2, STS-B, RTE and MNLI, a few rows each, with test splits."""
    folder = Path(mkdtemp())
    for split, count in (("train", 24), ("dev", 9), ("test", 5)):
        labels = ("entailment", "not_entailment")
        sheets: dict[str, tuple[list[str], list[list[str]]]] = {
            "SST-2": (["sentence", "label"], [[_text(n), str(n % 2)] for n in range(count)]),
            "STS-B": (
                ["sentence1", "sentence2", "score"],
                [[_text(n), _text(n + 1), f"{n % 6:.2f}"] for n in range(count)],
            ),
            "RTE": (
                ["sentence1", "sentence2", "label"],
                [[_text(n), _text(n + 1), labels[n % 2]] for n in range(count)],
            ),
        }
        for name, (header, rows) in sheets.items():
            keep = len(header) - (split == "test")
            _write(folder / name / f"{split}.tsv", header[:keep], [row[:keep] for row in rows])
    nli = ("entailment", "neutral", "contradiction")
    for split, count in (("train", 24), ("dev_matched", 9), ("dev_mismatched", 7)):
        header = ["sentence1", "sentence2", "gold_label"]
        _write(folder / "MNLI" / f"{split}.tsv", header, [[_text(n), _text(n + 1), nli[n % 3]] for n in range(count)])
    return str(folder)


@cache
def own_file() -> str:
    """A CSV file of a user's own, with three classes."""
    path = Path(mkdtemp()) / "mine.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["review", "verdict"])
        writer.writerows([[_text(n) + ", as they say", ("yes", "no", "may be")[n % 3]] for n in range(24)])
    return str(path)


def recipe(**changes: Any) -> Recipe:
    """Two steps on SST-2."""
    usual = {"task": "sst-2", "data": data(), "model": model(), "max_steps": 2, "batch_size": 4, "max_length": 16}
    if "train" in changes and "task" not in changes:
        usual = {name: value for name, value in usual.items() if name not in ("task", "data")}
    return Recipe(**{**usual, **changes})


def _text(number: int) -> str:
    mood = (BAD, GOOD)[number % 2]
    return " ".join([*FILLERS[: 2 + number % 4], mood[number % 3]])


def _write(path: Path, header: list[str], rows: list[list[str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\t".join(row) + "\n" for row in [header, *rows]), encoding="utf-8")
