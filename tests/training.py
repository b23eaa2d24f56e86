"""Runs of Trainers on tiny models, in this process or, as `python training.py FOLDER`, in several."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

import zoo
from stackelberg import AdversarialTrainer, create

Rows = list[dict[str, Tensor]]


def as_rows(batch: Mapping[str, Tensor]) -> Rows:
    """A batch's examples, as a dataset."""
    return [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]


def built(
    kind: str = "classification", arch: str = "bert", *, rows: int = 16, **changes: Any
) -> tuple[nn.Module, Rows]:
    """A tiny model and examples for it."""
    model, batch = zoo.build(kind, arch, batch=rows, **changes)
    return model, as_rows(batch)


def arguments(folder: Path, **changes: Any) -> TrainingArguments:
    """Of a run of three steps that writes nothing unless it is told to."""
    stock: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "max_steps": 3,
        "learning_rate": 0.05,
        "optim": "sgd",
        "lr_scheduler_type": "constant",
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return TrainingArguments(output_dir=str(folder), **stock | changes)


def weights(model: nn.Module) -> Tensor:
    """All trained parameters as one vector."""
    return torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])


def trained(
    trainer: type[Trainer],
    folder: Path,
    model: nn.Module,
    rows: Rows,
    extra: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Trainer:
    """A Trainer at the end of its run; `extra` goes to the Trainer, `changes` to its arguments."""
    runner = trainer(model, arguments(folder, **changes), train_dataset=rows, **extra or {})
    runner.train()
    return runner


# What is played by one process and by two.
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "plain": ("plain", {}, "classification"),
    "salt": ("salt", {"steps": 2}, "classification"),
    "smart": ("smart", {}, "classification"),
    "freeat": ("freeat", {}, "classification"),
    "tokens": ("salt", {}, "token"),
}


def case(name: str, folder: Path, ranks: int) -> nn.Module:
    """The model after three steps of eight examples in uneven micro-batches, cut up for that many ranks."""
    method, settings, kind = CASES[name]
    model, rows = built(kind, rows=24)
    trained(
        AdversarialTrainer,
        folder,
        model,
        rows,
        {"game": create(method, **settings)},
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4 // ranks,
        max_grad_norm=1.0,
        **{"ddp_backend": "gloo"} if ranks > 1 else {},
    )
    return model


if __name__ == "__main__":
    out = Path(sys.argv[1])
    found = {name: weights(case(name, out / "run", ranks=2)) for name in CASES}
    if torch.distributed.get_rank() == 0:
        torch.save(found, out / "weights.pt")
    torch.distributed.destroy_process_group()
