"""AdversarialTrainer as people run it, on real weights and real sentence pairs: does the loss fall, and at what pace?

    python benchmarks/trainers.py MODEL_FOLDER PAIRS.tsv [--rows bfloat16 lora ...] [--steps 50] [--out trainers.json]

SALT with its defaults in every row. The table gives the task loss over the first and the last fifth of the steps,
the share of guarded sentences there, and the median time of a step.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import transformers
from fidelity import read_pairs
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    TrainerCallback,
    TrainingArguments,
)

from stackelberg import SALT, AdversarialTrainer

# Renamed after transformers 5.17.
CHECKPOINTING = next(f for f in ("activation_checkpointing", "gradient_checkpointing") if hasattr(TrainingArguments, f))

# name → (arguments of training, how attention is loaded, settings of the game)
ROWS: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "float32": ({}, "sdpa", {"mode": "eager"}),
    "bfloat16": ({"bf16": True}, "sdpa", {"mode": "eager"}),
    "bfloat16-captured": ({"bf16": True}, "sdpa", {"mode": "graph"}),
    "bfloat16-compiled": ({"bf16": True, "torch_compile": True}, "sdpa", {"mode": "compiled"}),
    "float16-scaler": ({"fp16": True}, "sdpa", {}),
    "lora": ({"bf16": True, "learning_rate": 2e-3}, "sdpa", {"mode": "graph"}),
    "checkpointing": ({"bf16": True, CHECKPOINTING: True}, "sdpa", {}),
}


class StepTimes(TrainerCallback):
    """When each optimizer step ended."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.ends: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Wait for the device and look at the clock."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())

    def median(self) -> float:
        """Of the second half, in milliseconds: compilation and capture lie in the first."""
        late = self.ends[len(self.ends) // 2 :]
        return 1000 * statistics.median(b - a for a, b in pairwise(late))


def main() -> None:
    """Train, print a line for each row as it is done, and write everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--columns", type=int, nargs=3, default=[1, 2, 3], metavar=("FIRST", "SECOND", "LABEL"))
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=256, help="so large that the steps are several epochs")
    parser.add_argument("--examples", type=int, help="the first so many; left out, all")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--rate", type=float, default=3e-4)
    parser.add_argument("--out", type=Path, default=Path("trainers.json"))
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()

    pairs = read_pairs(args.pairs, args.columns)[: args.examples]
    names = sorted({label for *_, label in pairs})
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    first, second, labels = zip(*pairs, strict=True)
    encoded = tokenizer(list(first), list(second), truncation=True, max_length=args.max_tokens)
    data = [
        {**{key: encoded[key][i] for key in encoded}, "labels": names.index(label)} for i, label in enumerate(labels)
    ]
    # One length for all batches, so that a captured row has one graph.
    collate = DataCollatorWithPadding(tokenizer, padding="max_length", max_length=args.max_tokens)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or "CPU"
    results: dict[str, Any] = {
        "device": device, "torch": torch.__version__, "transformers": transformers.__version__,
        "model": args.model.name, "examples": len(pairs), "steps": args.steps, "batch": args.batch,
        "max_tokens": args.max_tokens, "rows": {},
    }  # fmt: skip
    print(f"{'row':<20} {'loss, first':>11} {'last':>7} {'guarded, first':>14} {'last':>6} {'ms/step':>8}", flush=True)
    for row in args.rows:
        changes, attention, settings = ROWS[row]
        torch.manual_seed(0)
        model = AutoModelForSequenceClassification.from_pretrained(
            args.model, num_labels=len(names), dtype=torch.float32, attn_implementation=attention
        )
        if row == "lora":
            model = get_peft_model(
                model, LoraConfig(task_type="SEQ_CLS", target_modules=["query", "value"], r=16, lora_alpha=32)
            )
        times = StepTimes()
        with tempfile.TemporaryDirectory() as folder:
            training = {
                "learning_rate": args.rate, "max_steps": args.steps, "per_device_train_batch_size": args.batch,
                "logging_steps": 1, "save_strategy": "no", "report_to": [], "disable_tqdm": True, "seed": 0,
                "warmup_steps": args.steps // 10, "use_cpu": not torch.cuda.is_available(),
            }  # fmt: skip
            trainer = AdversarialTrainer(
                model,
                TrainingArguments(folder, **training | changes),
                train_dataset=data,
                data_collator=collate,
                callbacks=[times],
                game=SALT(**settings),
            )
            trainer.pop_callback(transformers.PrinterCallback)
            trainer.train()
        history = [entry for entry in trainer.state.log_history if "game/task_loss" in entry]
        fifth = max(1, len(history) // 5)
        found = {
            f"{figure}_{when}": statistics.mean(entry[f"game/{figure}"] for entry in entries)
            for figure in ("task_loss", "guarded")
            for when, entries in (("first", history[:fifth]), ("last", history[-fifth:]))
        }
        found["ms"] = times.median()
        found["mode"] = trainer.game.speed.mode
        results["rows"][row] = found
        print(
            f"{row:<20} {found['task_loss_first']:>11.4f} {found['task_loss_last']:>7.4f} "
            f"{found['guarded_first']:>14.1%} {found['guarded_last']:>6.1%} {found['ms']:>8.1f}",
            flush=True,
        )
        args.out.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
