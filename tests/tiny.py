"""A model and a tokenizer small enough to be made in a test, saved as Hugging Face saves them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from stackelberg.nlu import find_task
from stackelberg.nlu.recipe import Recipe
from stackelberg.storage import write_whole

GOOD, BAD = ("fine", "great", "lovely"), ("awful", "dull", "poor")
OTHERS = ("a", "film", "it", "is", "plot", "the", "very")
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", *GOOD, *BAD, *OTHERS)


def save_model(
    folder: Path, labels: Sequence[str] = ("negative", "positive"), *, seed: int = 0, spread: float = 0.02
) -> Path:
    """BERT of one layer, 16 wide, that knows the words above; outputs differ between rows as weights are spread."""
    plain = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    plain.pre_tokenizer = Whitespace()
    plain.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=plain,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    ).save_pretrained(folder)
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=128,
        initializer_range=spread,
        id2label=dict(enumerate(labels)),
        label2id={label: output for output, label in enumerate(labels)},
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def sentences(rows: int, *, seed: int = 0) -> list[tuple[str, int]]:
    """A few words with a good or a bad one among them, and which it was."""
    drawn = random.Random(seed)
    made = []
    for _ in range(rows):
        label = drawn.randrange(2)
        words = [drawn.choice(OTHERS) for _ in range(drawn.randrange(2, 6))]
        words.insert(drawn.randrange(len(words) + 1), drawn.choice(GOOD if label else BAD))
        made.append((" ".join(words), label))
    return made


def write_tsv(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["\t".join(map(str, row)) for row in (header, *rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def finished_run(
    folder: Path, data: Path, *, task: str = "sst-2", seed: int = 0, method: str = "plain", model: str | None = None
) -> Path:
    """What `Run.train` leaves behind, with a model that nobody trained."""
    recipe = Recipe(
        task=task, data=str(data), model=str(model or data / "model"), method=method, seed=seed, max_length=32
    )
    write_whole(folder / "recipe.yaml", recipe.to_yaml())
    save_model(folder / "model", find_task(task).labels or ("score",), seed=seed, spread=0.5)
    write_whole(folder / "predictions" / "judged_by.json", json.dumps(find_task(task).evaluation))
    write_whole(folder / "result.json", json.dumps({"score": 0.5, "seconds": 1.0}))
    return folder
