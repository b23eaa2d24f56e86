"""What only a GPU can show. Skipped without one; `python tests/test_gpu.py` runs it where pytest is missing."""

from __future__ import annotations

import statistics
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel

import zoo
from stackelberg import SALT, VAT, NonFiniteLossError, TrainingStep, create

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]


def on_gpu(dropout: float = 0.0, seed: int = 3) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """The zoo's BERT with SDPA attention; with seed 0 one of its sentences hardly moves."""
    model, batch = zoo.build("classification", "bert", dropout=dropout, dtype=torch.float32, attn="sdpa", seed=seed)
    return model.cuda(), {key: value.cuda() for key, value in batch.items()}


def test_shared_dropout_gives_zero_divergence_with_fused_attention() -> None:
    """δ = 0 under the clean pass's masks: exactly 0 through kernels that draw their own masks on the device."""
    model, batch = on_gpu(dropout=0.3)
    game = VAT(steps=0, start_noise="zero")
    with sdpa_kernel(FUSED), torch.autocast("cuda", torch.bfloat16):
        for _ in range(5):
            game(model, batch).backward()
            assert game.report is not None and float(game.report.divergence) == 0.0


def test_fused_attention_is_switched_for_the_product_and_restored() -> None:
    """SALT by double backward runs on a model whose attention would be fused, and equals the eager model's."""
    torch.backends.cuda.matmul.allow_tf32 = False
    gradients = []
    for attn in ("sdpa", "eager"):
        model, batch = zoo.build("classification", "bert", dtype=torch.float32, attn=attn)
        model, batch = model.cuda(), {key: value.cuda() for key, value in batch.items()}
        SALT(steps=2)(model, batch).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert torch.cosine_similarity(*gradients, dim=0) > 0.9999


def test_bfloat16_product_is_faithful() -> None:
    """The issue's bar is on real weights (benchmarks/fidelity.py); here, that nothing is grossly wrong."""
    found = []
    for seed in range(7):
        model, batch = on_gpu(seed=seed)
        with torch.autocast("cuda", torch.bfloat16):
            found.append(SALT().fidelity(model, batch).product)
    assert statistics.median(found) > 0.95


def test_gradient_scaler_changes_nothing_but_the_scale() -> None:
    """float16 autocast: inner losses have their own scale, and the step the scaler unscales is finite and right."""
    model, batch = on_gpu()
    SALT()(model, batch).backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    for streamed in (False, True):
        model.zero_grad()
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12)
        with torch.autocast("cuda", torch.float16):
            if streamed:
                SALT().backward(model, batch, scaler=scaler)
            else:
                loss = SALT()(model, batch)
        if not streamed:
            scaler.scale(loss).backward()
        found = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]) / 2.0**12
        assert found.isfinite().all() and torch.cosine_similarity(found, expected, dim=0) > 0.95


def test_non_finite_objective_raises_before_the_optimizer_can_step() -> None:
    """The flag is read once the backward pass is launched: `.backward()` itself raises."""
    model, batch = on_gpu()
    with torch.no_grad():
        model.classifier.weight.fill_(float("nan"))
    loss = SALT()(model, batch)
    with pytest.raises(NonFiniteLossError):
        loss.backward()


def test_a_captured_gradient_is_the_eager_one() -> None:
    """In float32 to rounding, over several steps and two shapes of batches; and a graph was recorded for each."""
    torch.backends.cuda.matmul.allow_tf32 = False
    for name in ("plain", "vat", "smart", "freelb", "salt", "salt-adv", "r3f", "rdrop"):
        model, batch = on_gpu()
        shorter = {key: value[:, :-2] if value.dim() == 2 else value for key, value in batch.items()}
        eager, graph = create(name, mode="eager"), create(name, mode="graph")
        for given in (batch, shorter, batch):
            found = []
            for game in (eager, graph):
                model.zero_grad()
                game(model, given).backward()
                found.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
            assert torch.cosine_similarity(*found, dim=0) > 0.9999, name
            assert torch.linalg.vector_norm(found[0] - found[1]) < 0.01 * torch.linalg.vector_norm(found[0]), name
        assert len(graph.speed.of(model).recordings) == 2, name


def test_a_captured_step_shares_its_masks() -> None:
    """With dropout the divergence at δ = 0 is exactly 0, and masks differ from step to step."""
    model, batch = on_gpu(dropout=0.3)
    game = VAT(steps=0, start_noise="zero", mode="graph")
    losses = set()
    for _ in range(6):
        game(model, batch).backward()
        assert game.report is not None and float(game.report.divergence) == 0.0
        losses.add(float(game.report.task_loss))
    assert len(game.speed.of(model).recordings) == 1 and len(losses) > 1


def test_a_captured_step_trains_as_the_eager_one() -> None:
    """Gradient, clipping and AdamW in one graph: the same weights after twelve steps, to rounding."""
    torch.backends.cuda.matmul.allow_tf32 = False
    ends = []
    for mode in ("eager", "graph"):
        model, batch = on_gpu()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        step = TrainingStep(SALT(mode=mode), model, optimizer, max_norm=1.0)
        reports = [step(batch) for _ in range(12)]
        ends.append((float(reports[-1].task_loss), torch.cat([p.detach().flatten() for p in model.parameters()])))
        assert float(reports[-1].task_loss) < float(reports[0].task_loss)
    assert torch.linalg.vector_norm(ends[0][1] - ends[1][1]) < 1e-3 * torch.linalg.vector_norm(ends[0][1])


@contextmanager
def one_rank() -> Iterator[None]:
    """A process group of this process alone."""
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("nccl", init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()


def test_fsdp2_gives_the_same_gradient() -> None:
    """Whole in the game's own passes, in shards between them, on FSDP2's streams; and again, with nothing left over."""
    torch.backends.cuda.matmul.allow_tf32 = False
    for name, settings in (("salt", {"steps": 2}), ("salt", {"product": "differences"}), ("vat", {})):
        model, batch = on_gpu()
        numbers = torch.arange(len(batch["labels"]))
        create(name, **settings)(model, batch, index=numbers).backward()
        expected = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        with one_rank():
            for layer in model.bert.encoder.layer:
                fully_shard(layer)
            fully_shard(model)
            game = create(name, **settings)
            for _ in range(2):
                model.zero_grad()
                loss = game(model, batch, index=numbers)
                assert all(isinstance(p, DTensor) for p in model.bert.encoder.parameters())
                loss.backward()
                assert all(isinstance(p, DTensor) for p in model.parameters())
                found = torch.cat([p.grad.full_tensor().flatten() for p in model.parameters() if p.grad is not None])
                assert torch.cosine_similarity(found, expected, dim=0) > 0.9999


def test_a_batch_that_was_refused_leaves_ddp_and_fsdp2_ready_for_the_next() -> None:
    """The error is raised from the end of the backward pass, after both have finished their reductions."""

    def spoil(module: torch.nn.Module, arguments: object, output: Any) -> None:
        if output.loss is not None:  # the clean pass
            output.loss.mul_(float("nan"))

    for engine in ("ddp", "fsdp2"):
        core, batch = on_gpu()
        with one_rank():
            model = DistributedDataParallel(core) if engine == "ddp" else fully_shard(core)
            for bad in (True, False, True, False):
                handle = core.register_forward_hook(spoil) if bad else None
                loss = SALT()(model, batch)
                if handle is not None:
                    handle.remove()
                    with pytest.raises(NonFiniteLossError):
                        loss.backward()
                    model.zero_grad()
                else:
                    loss.backward()
                    assert all(torch.isfinite(p.grad).all() for p in core.parameters() if p.grad is not None)


if __name__ == "__main__":
    failed = 0
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            try:
                test()
                print("passed", name, flush=True)
            except Exception:  # the others are worth running too
                failed += 1
                print("FAILED", name, traceback.format_exc(), flush=True)
    sys.exit(failed > 0)
