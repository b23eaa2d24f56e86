"""What a step costs on this CPU beside a plain one: BERT-small, every figure from one run.

    python benchmarks/cpu_cost.py [--out cpu_cost.json]

The median of repeated steps (forward, backward, optimizer), the methods taking turns so that a busy moment of the
machine is shared by all.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import torch
import transformers
from transformers import BertConfig, BertForSequenceClassification

from stackelberg import SALT, VAT, Game, Plain

GAMES: dict[str, Game] = {
    "plain": Plain(),
    "vat K=1": VAT(),
    "salt K=1": SALT(),
    "salt K=1, forward over reverse": SALT(product="forward_over_reverse"),
    "salt K=1, differences": SALT(product="differences"),
    "salt K=2": SALT(steps=2),
    "salt K=1, every 4th": SALT(every=4),
    "salt K=1, exact": SALT(gradient="exact"),
}


def main() -> None:
    """Time every game on the same model and batch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("cpu_cost.json"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    # google/bert_uncased_L-4_H-512_A-8: "BERT-small"
    config = BertConfig(hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=2048)
    model = BertForSequenceClassification(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    ids = torch.randint(1000, 20000, (args.batch, args.length))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.randint(2, (args.batch,))}

    times: dict[str, list[float]] = {name: [] for name in GAMES}
    for round_number in range(args.rounds + 1):
        for name, game in GAMES.items():
            optimizer.zero_grad()
            begun = time.perf_counter()
            game(model, batch).backward()
            optimizer.step()
            if round_number:  # the first round warms up
                times[name].append(time.perf_counter() - begun)
    plain = statistics.median(times["plain"])
    rows = {}
    print(f"BERT-small, {args.batch} × {args.length} tokens, {args.threads} threads, {platform.processor()}")
    for name, seconds in times.items():
        median = statistics.fmean(seconds) if name.endswith("4th") else statistics.median(seconds)
        rows[name] = {"ms": 1000 * median, "ratio": median / plain, "spread": statistics.pstdev(seconds) / median}
        print(f"{name:32} {1000 * median:8.1f} ms  {median / plain:5.2f} × plain  ± {rows[name]['spread']:.0%}")
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    args.out.write_text(json.dumps({**vars(args), **versions, "rows": rows}, indent=1, default=str))


if __name__ == "__main__":
    main()
