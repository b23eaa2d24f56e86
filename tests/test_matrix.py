"""One matrix: every registered method on every task kind and architecture, under every variant of the model.

The default run draws a seeded sample in which every method meets every task kind, every architecture and
every variant; `pytest -m soak` runs all other cells. A method that registers itself joins without a change.
"""

import random
from dataclasses import fields
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import zoo
from helping import error, grown, plays
from stackelberg import METHODS, Game, create

MODELS = [(kind, arch) for kind, archs in zoo.KINDS.items() for arch in archs]
NO_SDPA = ("mpnet", "deberta_v2")
NO_CHECKPOINTING = ("albert", "mpnet")  # transformers does not offer it


class Cell(NamedTuple):
    """One test of the matrix."""

    method: str
    kind: str
    arch: str
    variant: str = "as it is"


def settings(method: str) -> set[str]:
    return {f.name for f in fields(METHODS[method]) if f.init}


def fits(cell: Cell) -> bool:
    """Whether the variant exists for this method and architecture."""
    if "sdpa" in cell.variant and cell.arch in NO_SDPA:
        return False
    if "checkpointing" in cell.variant and cell.arch in NO_CHECKPOINTING:
        return False
    if cell.variant.startswith("dropout"):
        policy = cell.variant.split()[1]
        return "dropout" in settings(cell.method) and (cell.method != "rdrop" or policy == "independent")
    return True


def exact(method: str) -> bool:
    """Whether the method's gradient is that of F: no δ that climbs with θ is taken for a constant."""
    return "gradient" in settings(method) or "steps" not in settings(method)


def everything(variants: list[str]) -> list[Cell]:
    cells = [Cell(m, *model, variant) for m in METHODS for model in MODELS for variant in variants]
    return [cell for cell in cells if fits(cell)]


def sampled(variants: list[str]) -> set[Cell]:
    """Seeded and greedy: each (method, variant), (method, kind), (method, arch), (variant, kind) … once."""
    cells = everything(variants)
    random.Random(0).shuffle(cells)

    def pairs(c: Cell) -> set[tuple[str, ...]]:
        variant = {("v", c.method, c.variant), ("vk", c.variant, c.kind), ("va", c.variant, c.arch)}
        return variant | {("k", c.method, c.kind), ("a", c.method, c.arch)}

    wanted = set[tuple[str, ...]]().union(*map(pairs, cells))
    chosen: set[Cell] = set()
    for least in (5, 4, 3, 2, 1):
        for cell in cells:
            if len(pairs(cell) & wanted) >= least:
                chosen.add(cell)
                wanted -= pairs(cell)
    return chosen


def matrix(variants: list[str]) -> Any:
    """Parametrisation by all cells, those outside the sample marked `soak`."""
    chosen = sampled(variants)
    return pytest.mark.parametrize(
        "cell",
        [
            pytest.param(cell, id="-".join(cell).replace(" ", "_"), marks=[] if cell in chosen else [pytest.mark.soak])
            for cell in everything(variants)
        ],
    )


def build(cell: Cell, **changes: Any) -> tuple[Any, zoo.Batch]:
    """The cell's model; R-Drop needs dropout, the others are compared without."""
    needed = 0.1 if cell.method == "rdrop" or cell.variant.startswith("dropout") else 0.0
    return zoo.build(cell.kind, cell.arch, **{"dropout": needed} | changes)


def both(cell: Cell, model: nn.Module, batch: zoo.Batch, times: int = 2, **how: Any) -> tuple[Tensor, Tensor, Game]:
    """Value and gradient in loss form and streamed, found equal; twice in a row, so that FreeAT has a δ."""
    make = partial(create, cell.method, **how.pop("settings", {}))
    tolerance = how.pop("tolerance", 1e-10)
    value, expected, _ = plays(make, model, batch, streamed=False, times=times, **how)
    touched = {name for name, p in model.named_parameters() if p.grad is not None}
    streamed_value, actual, game = plays(make, model, batch, streamed=True, times=times, **how)
    assert torch.isfinite(value) and torch.isfinite(expected).all() and float(expected.norm()) > 0
    assert error(actual, expected) < tolerance
    assert torch.allclose(streamed_value.double(), value.double(), rtol=max(tolerance, 1e-10))
    assert touched == {name for name, p in model.named_parameters() if p.grad is not None}
    assert not grown(model)
    return value, expected, game


# --------------------------------------------------------------------------------------------------
# Every method on every model


@matrix(["as it is"])
def test_method_plays(cell: Cell) -> None:
    """Finite; both forms agree; the report is sane; a step lowers F by what the gradient promises."""
    model, batch = build(cell)
    value, _, game = both(cell, model, batch)
    assert game.report is not None
    numbers = game.report.numbers()
    assert numbers["loss"] == pytest.approx(float(value)) and all(map(is_finite, numbers.values()))
    assert numbers["task_loss"] > 0
    assert 0 <= numbers.get("surface", 0) <= 1 and 0 <= numbers.get("guarded", 0) <= 1
    assert numbers.get("divergence", 1) > 0
    if "final_norm" in numbers:
        assert 0 < numbers["final_norm"] or cell.method == "freeat"  # which starts from 0 and moves afterwards
        if game.settings["norm"] == "l2":
            assert numbers["final_norm"] <= numbers["radius"] * (1 + 1e-6)

    if exact(cell.method):
        assert descent(cell.method, model, batch) == pytest.approx(1, abs=0.1)


def descent(method: str, model: nn.Module, batch: zoo.Batch) -> float:
    """How far a small step of SGD lowers F, as a share of what its gradient promises."""
    make = partial(create, method)
    before, slope, _ = plays(make, model, batch, streamed=True)
    promised = 1e-4 * float(before)
    torch.optim.SGD(model.parameters(), lr=promised / float(slope.norm()) ** 2).step()
    after, _, _ = plays(make, model, batch, streamed=True)
    return float(before - after) / promised


@pytest.mark.parametrize("method", [method for method in METHODS if not exact(method)])
def test_most_steps_lower_the_objective(method: str) -> None:
    """A method whose δ is a constant to the leader follows no gradient of F, but mostly descends."""
    drops = [descent(method, *build(Cell(method, *model))) for model in MODELS]
    assert sum(drop > 0 for drop in drops) >= 0.9 * len(drops)


def is_finite(x: float) -> bool:
    return abs(x) < float("inf")


def test_sample_covers_the_matrix() -> None:
    """Every method meets every task kind and every architecture in the default run."""
    chosen = sampled(["as it is"])
    for method in METHODS:
        mine = [cell for cell in chosen if cell.method == method]
        assert {cell.kind for cell in mine} == set(zoo.KINDS)
        assert {cell.arch for cell in mine} == set(zoo.ARCHS)


# --------------------------------------------------------------------------------------------------
# Variants of the model

VARIANTS = [
    "autocast",
    "bfloat16",
    "checkpointing",
    "checkpointing sdpa",
    "dropout shared",
    "dropout off",
    "dropout independent",
    "frozen embeddings",
    "lora",
    "sdpa",
]


@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set:UserWarning")  # GPT-2 holds both kinds of layer
@matrix(VARIANTS)
def test_variant(cell: Cell) -> None:
    """See the function of each variant for what it proves."""
    globals()["check_" + cell.variant.split()[0]](cell)


def precise(cell: Cell) -> float:
    """What two exact routes may differ by: some architectures have float32 inside."""
    return 1e-4 if cell.arch in zoo.PARTLY_SINGLE else 1e-10


def check_autocast(cell: Cell) -> None:
    """bfloat16 autocast on float32 parameters: near the float32 gradient, float32 `.grad`."""
    model, batch = build(cell, dtype=torch.float32)
    around = partial(torch.autocast, "cpu", torch.bfloat16)
    both(cell, model, batch, times=1, around=around, tolerance=0.1)
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32}
    # the interaction of these ill-conditioned models is not bfloat16's to give; the rest is
    make = partial(create, cell.method, **({"gradient": "none"} if "gradient" in settings(cell.method) else {}))
    _, expected, _ = plays(make, model, batch, streamed=True)
    _, found, _ = plays(make, model, batch, streamed=True, around=around)
    assert torch.cosine_similarity(found, expected, dim=0) > 0.85


def check_bfloat16(cell: Cell) -> None:
    """Parameters in bfloat16: finite, both forms agree to that precision."""
    model, batch = build(cell, dtype=torch.bfloat16)
    both(cell, model, batch, times=1, tolerance=0.1)


def check_checkpointing(cell: Cell) -> None:
    """Recomputed activations give the gradient of kept ones."""
    attn = "sdpa" if "sdpa" in cell.variant else "eager"
    # the zoo's way of keeping float64 throughout does not reach what is run again
    single = cell.arch in zoo.PARTLY_SINGLE
    model, batch = build(cell, attn=attn, dtype=torch.float32 if single else torch.float64)
    make = partial(create, cell.method)
    value, expected, _ = plays(make, model, batch, streamed=False)
    zoo.checkpointed(model)
    model.disable_input_require_grads()
    assert any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
    for streamed in (False, True):
        again, actual, _ = plays(make, model, batch, streamed=streamed)
        assert torch.allclose(again, value, rtol=precise(cell)) and error(actual, expected) < precise(cell)


def check_dropout(cell: Cell) -> None:
    """Both forms agree under each policy, drawing from the same seed."""
    model, batch = build(cell)
    both(cell, model, batch, settings={"dropout": cell.variant.split()[1]})


def check_frozen(cell: Cell) -> None:
    """Frozen embeddings get no gradient, and all others the gradient they had before."""
    model, batch = build(cell)
    make = partial(create, cell.method)
    plays(make, model, batch, streamed=False, times=2)
    before = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    frozen = [m for m in model.modules() if isinstance(m, nn.Embedding)]
    for module in frozen:
        module.requires_grad_(False)
    both(cell, model, batch)
    for name, p in model.named_parameters():
        if not p.requires_grad:
            assert p.grad is None
        elif p.grad is not None:
            assert error(p.grad, before[name]) < 1e-9 or float(before[name].norm()) < 1e-12


def check_lora(cell: Cell) -> None:
    """Only the adapters train, and both forms agree on their gradient."""
    peft = pytest.importorskip("peft")
    model, batch = build(cell)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        adapted = peft.get_peft_model(
            model,
            peft.LoraConfig(
                r=2, target_modules="all-linear", init_lora_weights=False, fan_in_fan_out=cell.arch == "gpt2"
            ),
        )
    both(cell, adapted, batch, tolerance=precise(cell))
    trained = [name for name, p in adapted.named_parameters() if p.requires_grad]
    assert trained and all("lora_" in name for name in trained)
    assert all(p.grad is None for p in adapted.parameters() if not p.requires_grad)


def check_sdpa(cell: Cell) -> None:
    """Fused and plain attention give the same objective and gradient, and the model keeps its own."""
    values, gradients = [], []
    for attn in ("eager", "sdpa"):
        model, batch = build(cell, attn=attn)
        value, found, _ = both(cell, model, batch, times=1, tolerance=precise(cell))
        assert model.config._attn_implementation == attn
        values.append(value)
        gradients.append(found)
    assert torch.allclose(*values, rtol=precise(cell)) and error(*gradients) < precise(cell)
