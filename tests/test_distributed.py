"""Two processes (gloo, CPU) give the gradient of one process on the joined batch."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.nn.parallel import DistributedDataParallel

import zoo
from helping import error, gradient
from stackelberg import METHODS, ModelError, create

RANKS = 2
PLAYED = [name for name in METHODS if name not in ("rdrop", "freeat")]  # their draws are each rank's own


def play(name: str, model: torch.nn.Module, batch: zoo.Batch, index: torch.Tensor, share: int = 1) -> None:
    """Two accumulated micro-batches; N is the whole step's, as each rank of an average must be told."""
    game, total = create(name), RANKS * 4 // share
    for part, numbers in zip(zoo.split(batch, 2), index.chunk(2), strict=True):
        game(model, part, normalizer=total, index=numbers).backward()


def rank_main(rank: int, folder: str) -> None:
    """One process of the two."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    found = {}
    for name in PLAYED:
        model, batch = zoo.build("classification", "bert", batch=4 * RANKS)
        wrapped = DistributedDataParallel(model)
        mine = {key: value[rank * 4 : (rank + 1) * 4] for key, value in batch.items()}
        play(name, wrapped, mine, torch.arange(rank * 4, (rank + 1) * 4), share=RANKS)
        found[name] = gradient(model)
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def gradients() -> list[dict[str, torch.Tensor]]:
    """Every method's gradient on each rank."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(rank_main, args=(folder,), nprocs=RANKS)
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(RANKS)]


@pytest.mark.parametrize("name", PLAYED)
def test_two_processes_are_one(name: str, gradients: list[dict[str, torch.Tensor]]) -> None:
    """DDP averages, so N is divided by the ranks; the examples' numbers key their noise."""
    model, batch = zoo.build("classification", "bert", batch=4 * RANKS)
    play(name, model, batch, torch.arange(4 * RANKS))
    for found in gradients:
        assert error(found[name], gradient(model)) < 1e-6


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # from importing torch's compiler
def test_compile_and_ddp_together_are_refused() -> None:
    """Their gradients would differ silently between ranks."""
    model, batch = zoo.build("classification", "bert")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            with pytest.raises(ModelError, match=r"torch\.compile and DDP"):
                create("salt")(torch.compile(DistributedDataParallel(model)), batch)
        finally:
            dist.destroy_process_group()
