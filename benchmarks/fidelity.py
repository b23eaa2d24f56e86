"""How well each precision computes SALT's interaction term on real weights, against float64.

    python benchmarks/fidelity.py MODEL_FOLDER PAIRS.tsv --columns 1 2 3 [--out fidelity.json]

A head is trained for 100 steps on the model as it is, then every sentence pair is played alone, from several
starts, in each precision and for each K; float64 plays the same trajectory. The table gives the median and the
worst cosine of the product, and beside it what else can go wrong: the ascent direction, the share of guarded
sentences, ‖δ⁰‖/ε.
"""

from __future__ import annotations

import argparse
import copy
import csv
import json
import math
import platform
import statistics
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from stackelberg import SALT
from stackelberg.game import follower


def read_pairs(path: Path, columns: list[int]) -> list[tuple[str, str, str]]:
    """(first text, second text, label) of each row; GLUE files have no quoting."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        next(rows)
        return [(row[columns[0]], row[columns[1]], row[columns[2]]) for row in rows if len(row) > max(columns)]


def encode(tokenizer: Any, pairs: list[tuple[str, str, str]], names: list[str], device: str) -> dict[str, torch.Tensor]:
    """A padded batch."""
    first, second, labels = zip(*pairs, strict=True)
    batch = tokenizer(list(first), list(second), padding=True, truncation=True, max_length=128, return_tensors="pt")
    batch["labels"] = torch.tensor([names.index(label) for label in labels])
    return {key: value.to(device) for key, value in batch.items()}


def autocast(precision: str, device: str) -> AbstractContextManager[Any]:
    """The context of a precision."""
    if precision == "tf32":
        torch.backends.cuda.matmul.allow_tf32 = True
        return nullcontext()
    torch.backends.cuda.matmul.allow_tf32 = False
    half = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(precision)
    return nullcontext() if half is None else torch.autocast(device, half)


def main() -> None:
    """Measure, print a line for each setting as it is done, and write everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--columns", type=int, nargs=3, default=[1, 2, 3], metavar=("FIRST", "SECOND", "LABEL"))
    parser.add_argument("--sentences", type=int, default=64)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 2], help="K")
    parser.add_argument("--radii", type=float, nargs="+", default=[SALT().init_radius], help="‖δ⁰‖/ε")
    parser.add_argument("--precisions", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--products", nargs="+", default=["double_backward"])
    parser.add_argument("--train-steps", type=int, default=100)
    parser.add_argument("--train-batch", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=128, help="longer pairs are left out")
    parser.add_argument("--freeze-embeddings", action="store_true", help="faster on a CPU; compares all other weights")
    parser.add_argument("--unguarded", action="store_true", help="guard nobody: shows what the guard keeps out")
    parser.add_argument("--out", type=Path, default=Path("fidelity.json"))
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if args.unguarded:
        follower.TRUSTED = 0.0
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    pairs = read_pairs(args.pairs, args.columns)
    names = sorted({label for *_, label in pairs})
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForSequenceClassification.from_pretrained(
        args.model, num_labels=len(names), dtype=torch.float32
    ).to(device)
    head = [p for name, p in model.named_parameters() if name.startswith("classifier")]
    model.requires_grad_(False)
    for p in head:
        p.requires_grad_()
    optimizer = torch.optim.AdamW(head, lr=1e-3)
    model.train()
    order = torch.randint(
        len(pairs), (args.train_steps, args.train_batch), generator=torch.Generator().manual_seed(0)
    ).tolist()
    for chosen in order:
        model(**encode(tokenizer, [pairs[i] for i in chosen], names, device)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.requires_grad_()
    model.get_input_embeddings().weight.requires_grad_(not args.freeze_embeddings)

    short = [pair for pair in pairs if len(tokenizer(*pair[:2])["input_ids"]) <= args.max_tokens][: args.sentences]
    reference = copy.deepcopy(model).double()
    batches = [encode(tokenizer, [pair], names, device) for pair in short]
    results: dict[str, Any] = {
        "model": args.model.name,
        "data": args.pairs.parent.name,
        "tokens": statistics.median(batch["input_ids"].shape[1] for batch in batches),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine(),
        "rows": [],
    }
    print(f"{results['model']} on {results['data']}, {len(batches)} pairs × {args.starts} starts, {results['device']}")
    print(
        "precision  product            K  ‖δ⁰‖/ε   product med   worst   interaction   |cos g|  reached  guarded",
        flush=True,
    )
    for precision in args.precisions:
        for product in args.products:
            for steps in args.steps:
                for radius in args.radii:
                    measured = []
                    for seed in range(args.starts):
                        for number, batch in enumerate(batches):
                            game = SALT(steps=steps, init_radius=radius, seed=seed, product=product)
                            game.clock.step = number  # another start for every sentence
                            with autocast(precision, device):
                                measured.append(asdict(game.fidelity(model, batch, reference=reference)))
                    row = summarise(measured)
                    setting = {"precision": precision, "product": product, "steps": steps, "radius": radius}
                    plays = [(m["moved"], m["product"], m["interaction"], m["direction"]) for m in measured]
                    results["rows"].append({**setting, "unguarded": args.unguarded, **row, "plays": plays})
                    print(
                        f"{precision:10} {product:18} {steps}  {row['start']:6.2f}   {row['product_median']:11.5f} "
                        f"{row['product_worst']:7.4f}   {row['interaction_median']:11.4f}   "
                        f"{row['direction_worst']:7.4f} {row['reached_median']:8.3f} {row['guarded']:8.1%}",
                        flush=True,
                    )
                    args.out.write_text(json.dumps(results))


def summarise(measured: list[dict[str, float]]) -> dict[str, float]:
    """Over sentences and starts; the cosines over those that were not guarded."""
    kept = [m for m in measured if m["guarded"] < 1 and not math.isnan(m["product"])]
    return {
        "product_median": statistics.median(m["product"] for m in kept) if kept else math.nan,
        "product_worst": min((m["product"] for m in kept), default=math.nan),
        "interaction_median": statistics.median(m["interaction"] for m in kept) if kept else math.nan,
        "interaction_worst": min((m["interaction"] for m in kept), default=math.nan),
        "direction_worst": min((m["direction"] for m in kept), default=math.nan),
        "reached_median": statistics.median(m["reached"] for m in measured),
        "share_median": statistics.median(m["share"] for m in measured),
        "guarded": statistics.fmean(m["guarded"] for m in measured),
        "start": statistics.fmean(m["start"] for m in measured),
        "played": len(measured),
    }


if __name__ == "__main__":
    main()
