"""What a training step costs on a GPU: every method and mode beside a plain step, all from one run.

    python benchmarks/step_cost.py [--shapes 8x64 32x128 64x256] [--rows plain-eager salt-graph ...] [--out cost.json]

BERT-base's shape with random weights, dropout 0.1, bfloat16 autocast, AdamW: the gradient, clipping and the update,
by `TrainingStep`. The median of repeated steps, timed by CUDA events around each; the peak of allocated memory over
compilation, capture and steps; and the floor, the counted operations at the matrix rate measured beside them.
`plain-trainer` is the stock step, `model(**batch).loss.backward()`, eagerly, with clipping and an optimizer as Hugging
Face's Trainer makes them. `higher` is the way SALT was released: unrolled through every weight by a differentiable
optimizer.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

from stackelberg import SALT, VAT, Game, Plain, TrainingStep

GAMES: dict[str, Callable[..., Game]] = {
    "plain": lambda **mode: Plain(**mode),
    "vat": lambda **mode: VAT(**mode),
    "salt": lambda **mode: SALT(**mode),
    "salt-k2": lambda **mode: SALT(steps=2, **mode),
    "salt-k4": lambda **mode: SALT(steps=4, **mode),
    "salt-k8": lambda **mode: SALT(steps=8, **mode),
    "salt-every4": lambda **mode: SALT(every=4, **mode),
    "salt-differences": lambda **mode: SALT(product="differences", **mode),
    "exact": lambda **mode: SALT(gradient="exact", **mode),
}
MODES = ("eager", "compiled", "graph")


def build(attn: str, dropout: float) -> BertForSequenceClassification:
    """BERT-base."""
    torch.manual_seed(0)
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return BertForSequenceClassification(BertConfig(attn_implementation=attn, **rates)).cuda().train()


def random_batch(rows: int, length: int) -> dict[str, Tensor]:
    """Full rows of random words."""
    ids = torch.randint(1000, 20000, (rows, length), device="cuda")
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.randint(2, (rows,)).cuda()}


def stock_step(model: nn.Module) -> Callable[[Any], object]:
    """What the stock Trainer does with a batch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step(batch: Any) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(**batch).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


class PerturbedByParameter(nn.Module):
    """The released code's form: the perturbation is a parameter of the model."""

    def __init__(self, model: BertForSequenceClassification, shape: tuple[int, ...]) -> None:
        """`shape` (B, L, d)."""
        super().__init__()
        self.model = model
        self.delta = nn.Parameter(1e-2 * torch.randn(shape, device="cuda"))

    def forward(self, batch: Any, perturbed: bool) -> Any:
        """Logits and loss at x or x + δ."""
        x = self.model.bert.embeddings.word_embeddings(batch["input_ids"])
        mask, labels = batch["attention_mask"], batch["labels"]
        return self.model(inputs_embeds=x + self.delta if perturbed else x, attention_mask=mask, labels=labels)


def higher_step(model: BertForSequenceClassification, steps: int, shape: tuple[int, ...]) -> Callable[[Any], object]:
    """SALT unrolled by `higher`, K = `steps`."""
    import higher  # a benchmark's own dependency

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step(batch: Any) -> None:
        whole = PerturbedByParameter(model, shape)
        follower = torch.optim.SGD([whole.delta], lr=1.0)
        with higher.innerloop_ctx(whole, follower, copy_initial_weights=False) as (functional, ascent):
            with torch.autocast("cuda", torch.bfloat16):
                clean = functional(batch, perturbed=False)
                p = clean.logits.float().log_softmax(-1)
                for _ in range(steps):
                    q = functional(batch, perturbed=True).logits.float().log_softmax(-1)
                    ascent.step(-F.kl_div(q, p, log_target=True, reduction="sum"))
                q = functional(batch, perturbed=True).logits.float().log_softmax(-1)
                loss = clean.loss + F.kl_div(q, p, log_target=True, reduction="batchmean")
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def make(row: str, rows: int, length: int, dropout: float) -> Callable[[Any], object]:
    """The step of one row of the table."""
    name, _, mode = row.rpartition("-")
    if row == "plain-trainer":
        return stock_step(build("sdpa", dropout))
    if name == "higher":
        return higher_step(build("eager", dropout), int(mode.removeprefix("k")), (rows, length, 768))
    model = build("sdpa", dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    return TrainingStep(GAMES[name](mode=mode), model, optimizer, max_norm=1.0, precision="bfloat16")


UNITS = {"plain": 3, "vat": 8, "salt": 14, "salt-k2": 22, "salt-k4": 38, "salt-k8": 70, "salt-every4": 9.5}


def matrix_rate() -> float:
    """Operations a second of a large bfloat16 product, the median of ten."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    events = [torch.cuda.Event(enable_timing=True) for _ in range(14)]
    for event in events:
        a @ b
        event.record()
    torch.cuda.synchronize()
    return 2 * 8192**3 / (statistics.median(x.elapsed_time(y) for x, y in pairwise(events[3:])) / 1000)


def floor_ms(name: str, rows: int, length: int, rate: float) -> float | None:
    """What the counted operations of BERT-base's layers take at that rate; a unit is one forward pass."""
    if name not in UNITS:
        return None
    weights, width, layers = 12 * 12 * 768**2, 768, 12  # 12 d² weights a layer
    unit = rows * length * (2 * weights + layers * 4 * length * width)
    return 1000 * UNITS[name] * unit / rate


def measure(row: str, rows: int, length: int, dropout: float, repeats: int) -> dict[str, float]:
    """Time and memory of one row at one shape."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    step, batch = make(row, rows, length, dropout), random_batch(rows, length)
    for _ in range(8):  # compiles, captures (every=4 has two kinds of steps), warms up
        step(batch)
    torch.cuda.synchronize()
    ready = time.perf_counter() - begun
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    events[0].record()
    for event in events[1:]:
        step(batch)
        event.record()
    torch.cuda.synchronize()
    times = [a.elapsed_time(b) for a, b in pairwise(events)]
    middle = statistics.fmean(times) if "every" in row else statistics.median(times)
    return {
        "ms": middle,
        "spread": statistics.pstdev(times),
        "GiB": torch.cuda.max_memory_allocated() / 2**30,
        "ready_s": ready,
    }


def main() -> None:
    """Measure every row at every shape; print and write each as it is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["8x64", "32x128", "64x256"])
    parser.add_argument("--rows", nargs="+", default=None, help="NAME-MODE, higher-k1, plain-trainer; left out, all")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--out", type=Path, default=Path("step_cost.json"))
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("step_cost.py measures a GPU, and torch finds none; benchmarks/cpu_cost.py is for a CPU")
    warnings.simplefilter("ignore")
    warnings.filterwarnings("default", message="mode=")  # a row that is not played in the mode it names
    rows = args.rows or [
        "plain-trainer",
        *(f"{name}-{mode}" for name in GAMES for mode in MODES if name != "exact" or mode == "eager"),
        *(f"higher-k{k}" for k in (1, 2, 4)),
    ]
    results: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "dropout": args.dropout,
        "matrix_rate": matrix_rate(),
        "rows": [],
    }
    for shape in args.shapes:
        batch, length = map(int, shape.split("x"))
        print(f"{shape}, {results['device']}", flush=True)
        for row in rows:
            try:
                found: dict[str, Any] = measure(row, batch, length, args.dropout, args.repeats)
                found["floor_ms"] = floor_ms(row.rpartition("-")[0], batch, length, results["matrix_rate"])
                print(
                    f"  {row:26} {found['ms']:8.2f} ms ± {found['spread']:.2f}  {found['GiB']:6.2f} GiB  "
                    f"ready after {found['ready_s']:.0f} s",
                    flush=True,
                )
            except Exception as error:  # a row that fails is a result too
                found = {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"}
                print(f"  {row:26} {found['error']}", flush=True)
                traceback.print_exc(limit=-3)
            results["rows"].append({"shape": shape, "row": row, **found})
            args.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
