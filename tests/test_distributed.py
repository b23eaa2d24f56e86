"""Two processes give the gradient of one process on the joined batch, under DDP and under FSDP2."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, MixedPrecisionPolicy
from torch.nn.parallel import DistributedDataParallel

import ranks
import zoo
from helping import error
from ranks import RANKS, ROWS, Case, mine, shard, trained_gradient
from stackelberg import METHODS, SMART, VAT, ModelError, NonFiniteLossError, create
from stackelberg.game.conditions import Conditions

CASES = [
    *(Case(name, engine=engine) for engine in ("ddp", "fsdp") for name in METHODS),
    *(Case(name, engine="fsdp", streamed=True) for name in ("salt", "vat", "smart", "freelb")),
    *(
        Case("salt", settings, engine)
        for engine in ("ddp", "fsdp")
        for settings in ({"steps": 2}, {"product": "differences"}, {"gradient": "exact", "steps": 2})
    ),
    Case("salt", {"product": "forward_over_reverse"}, "fsdp"),
    Case("salt", {"dropout": "off"}, "fsdp"),
    Case("salt", {"every": 2}, "fsdp"),
    Case("salt", {"recompute": True}, "fsdp"),
    Case("vat", {"recompute": True}, "fsdp", streamed=True),
    *(Case(name, unused=True) for name in ("salt", "salt-adv", "vat", "freelb")),
    Case("salt", engine="fsdp", unused=True),
    *(Case("salt", engine=engine, checkpointing=True) for engine in ("ddp", "fsdp")),
    *(Case(name, engine=engine, lora=True) for name in ("salt", "smart") for engine in ("ddp", "fsdp")),
    *(Case("salt", engine=engine, kind="causal", arch="gpt2") for engine in ("ddp", "fsdp")),
    *(Case(name, engine="accelerate", kind="causal", arch="llama") for name in ("salt", "smart", "freelb")),
    *(Case(name, engine="hsdp") for name in ("salt", "smart")),
    *(Case(name, engine="fsdp", evaluated=True) for name in ("smart", "freeat")),
]


# --------------------------------------------------------------------------------------------------
# What runs on each rank


def wrap(engine: str, model: nn.Module) -> Any:
    if engine == "ddp":
        return DistributedDataParallel(model)
    shard(model)
    return model


def poisoned(model: nn.Module) -> None:
    """The next pass of this rank alone is not finite."""

    def spoil(module: nn.Module, arguments: Any, output: Any) -> None:
        handle.remove()
        output.loss.mul_(float("nan"))

    handle = model.register_forward_hook(spoil)


def agree_on_a_bad_loss(engine: str, rank: int) -> tuple[list[bool], Tensor]:
    """Whether each rank refuses what rank 1 alone found, in both forms; and the gradient of the batch after it."""
    core, batch = zoo.build("classification", "bert", batch=ROWS)
    model, refused = wrap(engine, core), []
    batch, game = mine(batch, rank), create("vat")
    counts: Any = {"normalizer": ROWS / RANKS, "index": torch.arange(ROWS).chunk(RANKS)[rank]}
    for play in (game, game.backward):
        if rank == 1:
            poisoned(core)
        try:
            play(model, batch, **counts)
            refused.append(False)
        except NonFiniteLossError:
            refused.append(True)
        model.zero_grad()
    game(model, batch, **counts).backward()
    return refused, trained_gradient(model)


def unequal_microbatches(rank: int) -> tuple[bool, Tensor]:
    """Rank 0 plays two micro-batches before the ranks meet, rank 1 one; and is a NaN in the first one noticed?"""
    core, batch = zoo.build("classification", "bert", batch=ROWS)
    model, found = DistributedDataParallel(core), []
    own, numbers = mine(batch, rank), torch.arange(ROWS).chunk(RANKS)[rank]
    for bad in (False, True):
        model.zero_grad()
        game, refused = create("salt"), False
        parts = [(own, numbers)] if rank == 1 else [*zip(zoo.split(own, 2), numbers.chunk(2), strict=True)]
        try:
            for i, (part, index) in enumerate(parts):
                if bad and rank == 0 and i == 0:
                    poisoned(core)
                with ranks.syncing(model, i == len(parts) - 1):
                    game(model, part, normalizer=ROWS / RANKS, index=index).backward()
        except NonFiniteLossError:
            refused = True
        found.append((refused, trained_gradient(model)))
    assert not found[0][0]
    return found[1][0], found[0][1]


def join_uneven_inputs(rank: int) -> list[Tensor]:
    """Rank 1 runs out of batches after two of three; DDP's `join` answers for it."""
    core, batch = zoo.build("classification", "bert", batch=6)
    model, found = DistributedDataParallel(core), []
    game = create("salt")
    with model.join():
        for row in range(3 - rank):
            model.zero_grad()
            example = {name: field[2 * row + rank : 2 * row + rank + 1] for name, field in batch.items()}
            game(model, example, normalizer=1, index=torch.tensor([rank])).backward()
            found.append(trained_gradient(model))
            game.after_step()
    return found


def save_and_load(rank: int) -> tuple[list[bool], list[Tensor]]:
    """SMART's θ̃ from shards to whole tensors and back; the gradients of the step after, both ways."""
    case = Case("smart", engine="fsdp")
    model, batch, rows = case.build()
    shard(model)
    rows["now"] = torch.arange(ROWS).chunk(RANKS)[rank]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    game, found = SMART(momentum=0.5), []
    batch = mine(batch, rank)
    for _ in range(2):
        game.backward(model, batch, index=rows["now"])
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model(**batch)  # which leaves the outermost parameters whole
        game.after_step()
    again = SMART(momentum=0.5)
    state = game.state_dict()
    again.load_state_dict(state)
    for player in (game, again):
        torch.manual_seed(0)
        player(model, batch, index=rows["now"]).backward()
        found.append(trained_gradient(model))
        model.zero_grad()
    parameters = dict(model.named_parameters())
    whole = [type(x) is Tensor and x.shape == parameters[name].shape for name, x in state["anchor"].items()]
    sharded = [hasattr(x, "device_mesh") for player in (game, again) for x in player.anchor.weights.values()]
    return [*whole, *sharded], found


def first_order_stays_in_shards(rank: int) -> int:
    """The most layers that were whole at once in the passes of a method without second derivatives."""
    model, batch = zoo.build("classification", "bert", batch=ROWS)
    shard(model)
    layers = list(model.bert.encoder.layer)
    most = 0

    def look(module: nn.Module, arguments: Any, output: Any) -> None:
        nonlocal most
        most = max(most, sum(type(next(layer.parameters())) is nn.Parameter for layer in layers))

    handles = [layer.attention.register_forward_hook(look) for layer in layers]
    VAT().backward(model, mine(batch, rank), index=torch.arange(4))
    for handle in handles:
        handle.remove()
    return most


CHECKS: dict[str, ranks.Check] = {str(case): case.shared for case in CASES} | {
    "bad-ddp": lambda rank: agree_on_a_bad_loss("ddp", rank),
    "bad-fsdp": lambda rank: agree_on_a_bad_loss("fsdp", rank),
    "unequal": unequal_microbatches,
    "join": join_uneven_inputs,
    "save": save_and_load,
    "first-order": first_order_stays_in_shards,
}


def start(rank: int, folder: str) -> None:
    ranks.rank_main(rank, folder, CHECKS)


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    """What every check found on each rank, all from two processes."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(start, args=(folder,), nprocs=RANKS)
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(RANKS)]


def of(found: list[dict[str, Any]], name: str) -> list[Any]:
    """One check's findings, or its failure."""
    for rank in found:
        assert not isinstance(rank[name], str), rank[name]
    return [rank[name] for rank in found]


# --------------------------------------------------------------------------------------------------
# What it is compared with


@pytest.mark.parametrize("case", CASES, ids=str)
def test_two_processes_are_one(case: Case, found: list[dict[str, Any]]) -> None:
    """Ranks are averaged, so N is divided by their number; the examples' numbers key their noise."""
    expected = case.alone()
    for gradients in of(found, str(case)):
        for actual, wanted in zip(gradients, expected, strict=True):
            assert error(actual, wanted) < 1e-6


@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
def test_ranks_agree_on_a_loss_that_is_not_finite(engine: str, found: list[dict[str, Any]]) -> None:
    """All refuse it, and the batch after it is played as if it had not been."""
    model, batch = zoo.build("classification", "bert", batch=ROWS)
    create("vat")(model, batch, normalizer=ROWS, index=torch.arange(ROWS)).backward()
    for refused, after in of(found, f"bad-{engine}"):
        assert refused == [True, True]
        assert error(after, trained_gradient(model)) < 1e-6


def test_ranks_may_play_unequal_numbers_of_microbatches(found: list[dict[str, Any]]) -> None:
    """Under `no_sync` they meet only where DDP reduces; the flag of an earlier micro-batch is not lost."""
    model, batch = zoo.build("classification", "bert", batch=ROWS)
    create("salt")(model, batch, normalizer=ROWS, index=torch.arange(ROWS)).backward()
    for refused, gradient in of(found, "unequal"):
        assert refused
        assert error(gradient, trained_gradient(model)) < 1e-6


def test_ddp_join_with_uneven_inputs(found: list[dict[str, Any]]) -> None:
    """A step that only one rank has a batch for is that batch's gradient over the same N."""
    model, batch = zoo.build("classification", "bert", batch=6)
    game, expected = create("salt"), []
    for row in range(3):
        model.zero_grad()
        pair = {name: field[2 * row : 2 * row + (1 if row == 2 else 2)] for name, field in batch.items()}
        game(model, pair, normalizer=2, index=torch.arange(len(pair["labels"]))).backward()
        expected.append(trained_gradient(model))
        game.after_step()
    first, second = of(found, "join")
    assert len(first) == 3 and len(second) == 2
    for actual, wanted in [*zip(first, expected, strict=True), *zip(second, expected[:2], strict=True)]:
        assert error(actual, wanted) < 1e-6


def test_smart_is_saved_whole_and_loaded_into_shards(found: list[dict[str, Any]]) -> None:
    for shapes, (expected, actual) in of(found, "save"):
        assert shapes and all(shapes)
        assert torch.equal(actual, expected) and actual.any()


def test_methods_without_second_derivatives_keep_one_layer_whole_at_a_time(found: list[dict[str, Any]]) -> None:
    for most in of(found, "first-order"):
        assert most == 1


# --------------------------------------------------------------------------------------------------
# What is refused


@pytest.fixture
def one_process(tmp_path: Path) -> Any:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # from importing torch's compiler
def test_compile_and_ddp_together_are_refused(one_process: None) -> None:
    """Their gradients would differ silently between ranks."""
    model, batch = zoo.build("classification", "bert")
    with pytest.raises(ModelError, match=r"torch\.compile and DDP"):
        create("salt")(torch.compile(DistributedDataParallel(model)), batch)


@pytest.mark.filterwarnings("ignore:FSDP is switching to use `NO_SHARD`:UserWarning")  # with one process
def test_fsdp1_is_refused(one_process: None) -> None:
    model, batch = zoo.build("classification", "bert")
    with pytest.raises(ModelError, match=r"FSDP1.*fully_shard"):
        create("vat")(FullyShardedDataParallel(model, device_id=torch.device("cpu")), batch)


def test_cpu_offload_is_refused(one_process: None) -> None:
    model, batch = zoo.build("classification", "bert")
    shard(model, offload_policy=CPUOffloadPolicy(pin_memory=False))
    with pytest.raises(ModelError, match=r"CPUOffloadPolicy.*leave"):
        create("salt")(model, batch)


@pytest.mark.parametrize("name", ["salt", "vat"])
def test_mixed_precision_policy_is_the_passes_precision(name: str, one_process: None) -> None:
    """Parameters in float32, passes in bfloat16: an output that hardly moves is noise there."""
    guarded = {}
    for dtype in (None, torch.bfloat16):
        model, batch = zoo.build("classification", "bert", dtype=torch.float32)
        shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=dtype))
        assert Conditions(model, "shared", False).precision == ("bfloat16" if dtype else "float32")
        game = create(name, epsilon=1e-3)
        game(model, batch).backward()
        guarded[dtype] = None if game.report.guarded is None else float(game.report.guarded)
        assert all(p.grad.dtype == torch.float32 for p in model.parameters() if p.grad is not None)
    assert guarded == ({None: 0.0, torch.bfloat16: 1.0} if name == "salt" else dict.fromkeys(guarded))
