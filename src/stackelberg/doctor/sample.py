"""A batch to try a model on: sentences that were given, or random words where there are none."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import ModelError, SettingError
from ..game.task import IGNORED
from .patient import Head, Patient

TOKENS = 64


def random_batch(patient: Patient, rows: int, tokens: int | None, seed: int = 0) -> dict[str, Tensor]:
    """Random words, `rows` × `tokens`, the last row a quarter shorter so that there is padding; random labels."""
    tokens = _length(patient, tokens)
    generator = torch.Generator().manual_seed(seed)
    words = _ordinary_words(patient.model.config)
    lengths = torch.full((rows,), tokens)
    lengths[-1] = max(1, tokens - tokens // 4) if rows > 1 else tokens
    real = torch.arange(tokens) < lengths[:, None]
    pad = _pad(patient)
    ids = words[torch.randint(len(words), (rows, tokens), generator=generator)].masked_fill(~real, pad)
    config = patient.model.config
    if config.is_encoder_decoder and isinstance(config.eos_token_id, int):  # BART's classifier reads its state there
        ids[torch.arange(rows), lengths - 1] = config.eos_token_id
    batch = {"input_ids": ids, "attention_mask": real.long()}
    return _on_device(patient, {**batch, "labels": _labels(patient, ids, real, words, generator)})


def text_batch(patient: Patient, file: Path, rows: int, tokens: int | None, seed: int = 0) -> dict[str, Tensor]:
    """The first `rows` lines of a file, cut to `tokens`; random labels."""
    import transformers

    tokens = _length(patient, tokens)
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()][:rows]
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"--text {file} cannot be read as UTF-8 text ({type(error).__name__})") from error
    if not lines:
        raise SettingError(f"--text {file} has no line of text in it")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(patient.name, trust_remote_code=False)
    except Exception as error:  # of any kind: the hub's, the file's
        raise ModelError(f"--text needs a tokenizer, and {patient.name} has none; leave it out") from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    generator = torch.Generator().manual_seed(seed)
    found = tokenizer(lines, padding=True, truncation=True, max_length=tokens, return_tensors="pt")
    ids, mask = found["input_ids"], found["attention_mask"]
    known = set(ids.flatten().tolist()) - set(tokenizer.all_special_ids)
    if len(known) < 2:  # transformers makes an empty tokenizer of a folder that has no files of one
        raise ModelError(f"the tokenizer of {patient.name} knows no word of {file}; leave --text out")
    if int(ids.max()) >= (size := patient.model.config.get_text_config().vocab_size):
        raise ModelError(f"the tokenizer of {patient.name} gives ids beyond the model's {size} words; leave --text out")
    words = _ordinary_words(patient.model.config)
    labels = _labels(patient, ids, mask.bool(), words, generator)
    return _on_device(patient, {"input_ids": ids, "attention_mask": mask, "labels": labels})


def _labels(patient: Patient, ids: Tensor, real: Tensor, words: Tensor, generator: torch.Generator) -> Tensor:
    config, head = patient.model.config, patient.head
    if head == "causal":
        return ids.masked_fill(~real, IGNORED)
    if head == "seq2seq":
        return words[torch.randint(len(words), ids.shape, generator=generator)].masked_fill(~real, IGNORED)
    if head == "token":
        return torch.randint(config.num_labels, ids.shape, generator=generator).masked_fill(~real, IGNORED)
    if config.problem_type == "multi_label_classification":
        return torch.randint(2, (len(ids), config.num_labels), generator=generator).float()
    if config.num_labels == 1 or config.problem_type == "regression":
        return torch.randn((len(ids), config.num_labels), generator=generator).squeeze(-1)
    return torch.randint(config.num_labels, (len(ids),), generator=generator)


def _ordinary_words(config: Any) -> Tensor:
    """Every id that the configuration does not name as a special token."""
    named = [value for name, value in config.to_dict().items() if name.endswith("_token_id")]
    special = {token for value in named for token in (value if isinstance(value, list) else [value])}
    return torch.tensor([i for i in range(config.get_text_config().vocab_size) if i not in special])


def _pad(patient: Patient) -> int:
    """The id that fills rows up; a classifier of a causal model looks for it and may not have one."""
    config = patient.model.config
    if getattr(config, "pad_token_id", None) is None:
        eos = getattr(config, "eos_token_id", None)
        config.pad_token_id = eos if isinstance(eos, int) else 0
    pad: int = config.pad_token_id
    return pad


def _length(patient: Patient, tokens: int | None) -> int:
    most: int = getattr(patient.model.config.get_text_config(), "max_position_embeddings", None) or 0
    most = most if most > 0 else sys.maxsize  # -1 where positions are relative
    if tokens is None:
        return min(TOKENS, most)
    if most < tokens:
        raise SettingError(f"--tokens {tokens} is more than the {most} positions that {patient.name} has")
    return tokens


def _on_device(patient: Patient, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: x.to(patient.device) for name, x in batch.items()}


def needs_padding_id(patient: Patient, head: Head) -> bool:
    """Whether a classifier would fail on batches, for want of a padding id in its configuration."""
    return head == "sequence-classification" and getattr(patient.model.config, "pad_token_id", None) is None
