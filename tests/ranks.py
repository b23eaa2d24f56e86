"""Two processes (gloo, CPU) that train the same model as one process does on the joined batch."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import peft
import torch
import torch.distributed as dist
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils.fsdp_utils import fsdp2_prepare_model
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import zoo
from stackelberg import Game, create

RANKS, ROWS, STEPS = 2, 8, 2

Number = dict[str, Tensor]  # the rows of the micro-batch that is played, shared by all dropout layers of a model


class NumberedDropout(nn.Module):
    """Dropout whose mask is a function of the generator's state and of each row's number, on any rank."""

    def __init__(self, rows: Number) -> None:
        super().__init__()
        self.rows, self.rate = rows, 0.1
        self.p = 0.0  # what attention reads, for a dropout of its own

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        seed = int(torch.randint(2**31, ()))
        generators = [torch.Generator().manual_seed(seed + int(row)) for row in self.rows["now"]]
        kept = torch.stack([torch.rand(x.shape[1:], generator=generator) >= self.rate for generator in generators])
        return x * kept / (1 - self.rate)


@dataclass(frozen=True)
class Case:
    """A method on a model, trained for two steps of two micro-batches each."""

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    engine: str = "ddp"
    streamed: bool = False
    kind: str = "classification"
    arch: str = "bert"
    lora: bool = False
    unused: bool = False  # has a trained parameter that no pass uses
    checkpointing: bool = False
    evaluated: bool = False  # between micro-batches and steps

    def __str__(self) -> str:
        marks = [name for name in ("streamed", "lora", "unused", "checkpointing", "evaluated") if getattr(self, name)]
        parts = [self.engine, self.method, *(f"{k}={v}" for k, v in self.settings.items()), *marks]
        return "-".join(parts if self.kind == "classification" else [*parts, self.kind])

    def build(self) -> tuple[nn.Module, zoo.Batch, Number]:
        model, batch = zoo.build(self.kind, self.arch, batch=ROWS)
        if self.unused:
            model.spare = nn.Linear(2, 2).double()
        rows: Number = {}
        for path, module in [*model.named_modules()]:
            if isinstance(module, nn.Dropout):
                parent, _, name = path.rpartition(".")
                setattr(model.get_submodule(parent), name, NumberedDropout(rows))
        if self.checkpointing:
            zoo.checkpointed(model)
        if self.lora:
            torch.manual_seed(3)
            model = peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", init_lora_weights=False)).double()
            model.train()
        return model, batch, rows

    def game(self) -> Game:
        return create(self.method, **self.settings)

    def alone(self) -> list[Tensor]:
        """Each step's gradient in one process."""
        model, batch, rows = self.build()
        return self.train(model, batch, torch.arange(ROWS), rows, share=1)

    def shared(self, rank: int) -> list[Tensor]:
        """The same, on one rank of two."""
        model, batch, rows = self.build()
        if self.engine == "ddp":
            model = DistributedDataParallel(model, find_unused_parameters=self.unused)
        elif self.engine == "accelerate":
            shard_as_accelerate_does(model)
        else:
            mesh = None
            if self.engine == "hsdp":  # a replica on each rank, of one shard
                mesh = init_device_mesh("cpu", (RANKS, 1), mesh_dim_names=("replicate", "shard"))
            shard(model, mesh=mesh)
        own, numbers = mine(batch, rank), mine({"": torch.arange(ROWS)}, rank)[""]
        return self.train(model, own, numbers, rows, share=RANKS)

    def train(self, model: nn.Module, batch: zoo.Batch, numbers: Tensor, rows: Number, share: int) -> list[Tensor]:
        """`share` is how many ranks average their gradients."""
        game, found = self.game(), []
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-2)
        total = ROWS if self.kind == "classification" else int((zoo_labels(self)[:, 1:] != -100).sum())
        for step in range(STEPS):
            assert game.clock.step in (step, step - 1)  # the last one may not have been noticed yet
            optimizer.zero_grad()
            for last, part, number in zip((False, True), zoo.split(batch, 2), number_parts(numbers), strict=True):
                torch.manual_seed(step)  # the same masks for a row, whichever micro-batch it is in
                rows["now"] = number
                if self.evaluated:
                    with torch.no_grad():
                        game(model.eval(), part)
                    model.train()
                counts = {"normalizer": total / share, "index": number}
                with syncing(model, last):
                    if self.streamed:
                        game.backward(model, part, **counts)
                    else:
                        objective = game(model, part, **counts)
                        assert lies_in_shards(*layers(model)), "between forward and backward"
                        objective.backward()
                assert lies_in_shards(model), "after the backward pass"
            found.append(trained_gradient(model))
            optimizer.step()
        assert all(p.grad is None for name, p in model.named_parameters() if "spare" in name)
        return found


def number_parts(numbers: Tensor) -> tuple[Tensor, ...]:
    return numbers.tensor_split(2)


def zoo_labels(case: Case) -> Tensor:
    return zoo.build(case.kind, case.arch, batch=ROWS)[1]["labels"]


def mine(batch: zoo.Batch, rank: int) -> zoo.Batch:
    """One rank's rows of the joined batch."""
    return {name: field.chunk(RANKS)[rank] for name, field in batch.items()}


def layers(model: nn.Module) -> list[nn.Module]:
    """Those of all stacks, an encoder's or a decoder's."""
    return [layer for module in model.modules() if isinstance(module, nn.ModuleList) for layer in module]


def shard(model: nn.Module, **settings: Any) -> None:
    """The usual recipe: each layer, then the rest."""
    for layer in layers(model):
        fully_shard(layer, **settings)
    fully_shard(model, **settings)


def shard_as_accelerate_does(model: nn.Module) -> None:
    """Embeddings, each layer, the last norm with the head, then the rest. `Accelerator` itself asks for GPUs."""
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=[type(layers(model)[0]).__name__],
        cpu_ram_efficient_loading=False,
    )
    accelerator = SimpleNamespace(
        state=SimpleNamespace(fsdp_plugin=plugin),
        mixed_precision="no",
        is_main_process=True,
        device=torch.device("cpu"),
    )
    fsdp2_prepare_model(accelerator, model)
    assert isinstance(model.get_input_embeddings(), FSDPModule)


def lies_in_shards(*modules: nn.Module) -> bool:
    """True too of modules that were not cut up."""
    return all(
        isinstance(p, DTensor) for module in modules if isinstance(module, FSDPModule) for p in module.parameters()
    )


def syncing(model: Any, now: bool) -> AbstractContextManager[Any]:
    """Reduce this micro-batch's gradients, or leave that to a later one."""
    if isinstance(model, DistributedDataParallel):
        return nullcontext() if now else model.no_sync()
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(now)
    return nullcontext()


def trained_gradient(model: nn.Module) -> Tensor:
    """All `.grad` of trained parameters, put together from the shards."""
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters() if p.requires_grad]
    return torch.cat([(x.full_tensor() if isinstance(x, DTensor) else x).flatten() for x in found])


Check = Callable[[int], Any]


def rank_main(rank: int, folder: str, checks: Mapping[str, Check]) -> None:
    """One process of the two: what each check found, or how it failed."""
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=60),
    )
    found: dict[str, Any] = {}
    for name, check in checks.items():
        try:
            found[name] = check(rank)
        except Exception:
            found[name] = traceback.format_exc()
    torch.save(copy.copy(found), f"{folder}/{rank}.pt")
    dist.destroy_process_group()
