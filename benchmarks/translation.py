"""How fast translation trains and translates, and what a large corpus costs in memory and in time to its first step.

    python benchmarks/translation.py train nmt/iwslt15-en-vi data=FOLDER --methods plain vat salt --out speed.json
    python benchmarks/translation.py decode RUN --beams 1 5 10 --out decode.json
    python benchmarks/translation.py memory --pairs 4500000 --out memory.json

Tokens are real ones, of both sides, padding left out. Results are written after each measurement, so that what a
machine had time for is there. Fields of the recipe are changed as in `stackelberg train`: `model=base shapes=12`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any


def main() -> None:
    """One of the three."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("train")
    train.add_argument("recipe")
    train.add_argument("changes", nargs="*", default=[])
    train.add_argument("--methods", nargs="+", default=["plain", "vat", "salt"])
    train.add_argument("--warm-up", type=float, default=90.0, help="seconds at most, for compiling and capturing")
    train.add_argument("--seconds", type=float, default=20.0, help="of measuring, a method")
    train.add_argument("--pairs", type=int, default=0, help="random pairs instead of the recipe's corpus")
    decode = commands.add_parser("decode")
    decode.add_argument("run", type=Path)
    decode.add_argument("--beams", type=int, nargs="+", default=[1, 5, 10])
    decode.add_argument("--split", default="test")
    memory = commands.add_parser("memory")
    memory.add_argument("--pairs", type=int, default=4_500_000)
    memory.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    for command in (train, decode, memory):
        command.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    if given.command == "memory" and given.child:
        first_steps(given.child)
        return
    results = {"train": train_speed, "decode": decode_speed, "memory": memory_of}[given.command](given)
    print(json.dumps(results, indent=2))


def note(results: dict[str, Any], out: Path | None) -> None:
    """Write down what there is so far."""
    if out is not None:
        out.write_text(json.dumps(results, indent=2) + "\n")


def machine() -> dict[str, Any]:
    """What it was measured on."""
    from stackelberg.runs.provenance import provenance

    return provenance()


# Training


def train_speed(given: argparse.Namespace) -> dict[str, Any]:
    """Tokens a second of each method, on one recipe's corpus and model."""
    from stackelberg.nmt.prepare import home, prepare
    from stackelberg.nmt.recipe import TranslationRecipe
    from stackelberg.nmt.recipe_data import corpora, preparation

    recipe = TranslationRecipe.load(given.recipe, given.changes)
    results: dict[str, Any] = {"machine": machine(), "recipe": given.recipe, "changes": given.changes, "methods": {}}
    with tempfile.TemporaryDirectory() as place:
        if given.pairs:
            prepared = random_corpus(Path(place), given.pairs)
        else:
            caches = Path(recipe.cache) if recipe.cache else home()
            prepared = prepare(corpora(recipe, Path(place))["train"], preparation(recipe), caches, print)
        for method in given.methods:
            try:
                found = speed_of(recipe.replace(method=method), prepared, given.warm_up, given.seconds)
            except Exception as error:  # the next method is measured all the same
                traceback.print_exc()
                found = {"error": f"{type(error).__name__}: {error}"}
            results["methods"][method] = found
            print(method, json.dumps(found), flush=True)
            note(results, given.out)
    return results


def speed_of(recipe: Any, prepared: Any, warm_up: float, seconds: float) -> dict[str, Any]:
    """Steps until every shape of batch was met often enough to be captured, then the measured ones."""
    import torch

    from stackelberg.nmt.batches import ahead, on, tensors
    from stackelberg.nmt.model import load_model
    from stackelberg.nmt.plan import Plan
    from stackelberg.nmt.processes import processes
    from stackelberg.nmt.schedule import adam
    from stackelberg.nmt.stepping import Stepping
    from stackelberg.nmt.training import make_game

    with processes() as here:
        torch.manual_seed(recipe.seed)
        gpu = here.device.type == "cuda"
        if gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        model = load_model(recipe.model, prepared.codec, dropout=recipe.dropout).to(here.device).train()
        plan = Plan(
            prepared.cache, seed=recipe.seed, batch_tokens=recipe.batch_tokens, max_tokens=recipe.max_tokens,
            most=recipe.shapes, step=recipe.length_step,
        )  # fmt: skip
        game = make_game(recipe, model)
        stepping = Stepping(
            game, model, adam(recipe, model), clip=recipe.clip, precision=recipe.precision, processes=here
        )
        pad = prepared.codec.tokenizer.pad_token_id

        def made(planned: Any) -> Any:
            micro, _ = planned
            batches = [
                on(here.device, tensors(prepared.cache, b.rows, b.shape.source, b.shape.target, pad)) for b in micro
            ]
            return micro, batches

        steps = ahead(plan.steps(), made)
        met: Counter[Any] = Counter()

        def step() -> tuple[int, int]:
            micro, batches = next(steps)
            stepping(batches, [0] * len(batches), sum(map(plan.target_tokens, micro)), sum(len(b.rows) for b in micro))
            met.update((len(micro), b.shape) for b in micro)
            padded = sum(len(b.rows) * (b.shape.source + b.shape.target) for b in micro)
            return sum(map(plan.tokens, micro)), padded

        def wait() -> None:
            if gpu:
                torch.cuda.synchronize()

        begun = time.perf_counter()
        step()
        wait()
        first = time.perf_counter() - begun
        while time.perf_counter() - begun < warm_up and (
            len({shape for _, shape in met}) < len(plan.shapes) or (gpu and min(met.values()) < 3) or not gpu
        ):
            step()
            if not gpu and sum(met.values()) >= 3:
                break
        wait()
        warm = time.perf_counter() - begun
        begun, real, padded, count = time.perf_counter(), 0, 0, 0
        while time.perf_counter() - begun < seconds or count < 3:
            found = step()
            real, padded, count = real + found[0], padded + found[1], count + 1
            if count % 20 == 0:
                wait()
        wait()
        took = time.perf_counter() - begun
        steps.close()
        captured = [len(kept.recordings) for kept in game.speed._models.values()]
        return {
            "tokens_per_second": real / took,
            "padded_tokens_per_second": padded / took,
            "seconds_per_step": took / count,
            "steps": count,
            "first_step_seconds": first,
            "warm_up_seconds": warm,
            "padding": plan.padding,
            "shapes": len(plan.shapes),
            "graphs": sum(captured),
            "mode": game.speed.mode,
            "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if gpu else None,
            "parameters": sum(p.numel() for p in model.parameters()),
            "report": (game.report.numbers() if game.report is not None else {}),
        }


# Decoding


def decode_speed(given: argparse.Namespace) -> dict[str, Any]:
    """Seconds to translate a run's test set, by each engine and beam; and how far the engines agree."""
    from stackelberg.nmt.ctranslate import export, load_exported
    from stackelberg.nmt.evaluation import Sentences
    from stackelberg.nmt.recipe_data import corpora
    from stackelberg.nmt.run import TranslationRun
    from stackelberg.nmt.scores import tokenized_bleu
    from stackelberg.nmt.search import Search

    run = TranslationRun.open(given.run)
    results: dict[str, Any] = {"machine": machine(), "run": str(given.run), "measured": []}
    ours = run.translator
    these = Sentences.of(corpora(run.recipe, run.folder)[given.split], ours.codec)
    engines = {"transformers": ours}
    with tempfile.TemporaryDirectory() as place:
        for quantization in ("float32", "int8"):
            try:
                out = export(run.model_folder, Path(place) / quantization, quantization=quantization)
                engines[f"ctranslate2 {quantization}"] = load_exported(out)
            except ModuleNotFoundError as error:
                results["ctranslate2"] = str(error)
                break
        for beam in given.beams:
            how = Search(beam=beam, length_penalty=run.recipe.length_penalty)
            texts: dict[str, list[str]] = {}
            for name, engine in engines.items():
                engine.best(these.sources[:8], how, prepared=True)  # loads kernels
                begun = time.perf_counter()
                found = engine.best(these.sources, how, prepared=True)
                took = time.perf_counter() - begun
                texts[name] = [one.tokenized for one in found]
                same = sum(a == b for a, b in zip(texts[name], texts["transformers"], strict=True))
                results["measured"].append(
                    {
                        "engine": name,
                        "beam": beam,
                        "seconds": took,
                        "sentences_per_second": len(these) / took,
                        "tokenized_bleu": tokenized_bleu(texts[name], these.references).value,
                        "as_transformers": same / len(these),
                    }
                )
                print(json.dumps(results["measured"][-1]), flush=True)
                note(results, given.out)
    return results


# Memory


def memory_of(given: argparse.Namespace) -> dict[str, Any]:
    """Of a process that trains on a cache of so many pairs, from its start to its first step and some more."""
    with tempfile.TemporaryDirectory() as place:
        begun = time.perf_counter()
        prepared = random_corpus(Path(place), given.pairs)
        built = time.perf_counter() - begun
        size = sum(path.stat().st_size for path in prepared.cache.folder.rglob("*") if path.is_file())
        begun = time.perf_counter()
        command = [sys.executable, __file__, "memory", "--child", place]
        told = subprocess.run(command, capture_output=True, text=True, check=False)
        if told.returncode:
            raise SystemExit(told.stderr)
        found = json.loads(told.stdout.splitlines()[-1])
        results = {
            "machine": machine(),
            "pairs": given.pairs,
            "cache_gib": size / 2**30,
            "cache_written_seconds": built,
            "process_seconds": time.perf_counter() - begun,
            **found,
        }
    note(results, given.out)
    return results


def first_steps(place: Path, steps: int = 30) -> None:
    """What the measured process does; prints what it took as JSON."""
    begun = time.perf_counter()
    peak, over = [0], threading.Event()
    watch = threading.Thread(target=watch_memory, args=(peak, over), daemon=True)
    watch.start()
    import torch

    from stackelberg.nmt.batches import ahead, tensors
    from stackelberg.nmt.cache import Cache
    from stackelberg.nmt.codec import Codec
    from stackelberg.nmt.model import load_model
    from stackelberg.nmt.plan import Plan
    from stackelberg.nmt.prepare import Prepared
    from stackelberg.nmt.processes import processes
    from stackelberg.nmt.recipe import TranslationRecipe
    from stackelberg.nmt.schedule import adam
    from stackelberg.nmt.stepping import Stepping
    from stackelberg.nmt.training import make_game

    imported, before = time.perf_counter() - begun, anonymous()
    prepared = Prepared(Cache(place / "corpus"), Codec.load(place / "corpus" / "tokenizer"))
    plan = Plan(prepared.cache, seed=0, batch_tokens=1000, max_tokens=1024)
    planned, after = time.perf_counter() - begun, anonymous()
    recipe = TranslationRecipe.load("nmt/tiny", method="plain")
    torch.manual_seed(0)
    model = load_model("tiny", prepared.codec).train()
    pad = prepared.codec.tokenizer.pad_token_id
    first = 0.0
    with processes() as here:
        game = make_game(recipe, model)
        stepping = Stepping(game, model, adam(recipe, model), clip=0.0, precision="float32", processes=here)
        making = ahead(
            plan.steps(),
            lambda p: (p[0], [tensors(prepared.cache, b.rows, b.shape.source, b.shape.target, pad) for b in p[0]]),
        )
        for number in range(steps):
            micro, batches = next(making)
            stepping(batches, [], sum(map(plan.target_tokens, micro)), 1)
            if not number:
                first = time.perf_counter() - begun
        making.close()
    over.set()
    watch.join()
    gib = {"imports": before, "corpus_and_plan": after - before, "peak": peak[0]}
    print(
        json.dumps(
            {
                "seconds_to_imports": imported,
                "seconds_to_plan": planned,
                "seconds_to_first_step": first,
                "anonymous_gib": {name: value / 2**20 for name, value in gib.items()},
                "padding": plan.padding,
            }
        )
    )


def anonymous() -> int:
    """KiB of memory that is this process's own, mapped files left out."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


def watch_memory(peak: list[int], over: threading.Event) -> None:
    """Until told that it is over."""
    while not over.wait(0.01):
        peak[0] = max(peak[0], anonymous())


def random_corpus(place: Path, pairs: int, at_once: int = 1 << 18) -> Any:
    """A cache of sentences of random ids, as long as those of news are; about 25 pieces."""
    import numpy as np

    from stackelberg.nmt.cache import TOKENIZER, Cache, CacheWriter
    from stackelberg.nmt.codec import Codec
    from stackelberg.nmt.prepare import Prepared
    from stackelberg.nmt.subwords import Alphabet, finished, learn
    from stackelberg.nmt.text import TextForm

    words = [f"w{i:05d}" for i in range(10_000)]
    tokenizer = finished(learn([" ".join(words)], Alphabet(), merges=1, segmentation="pieces"))
    folder = place / "corpus"
    folder.mkdir()
    codec = Codec(tokenizer, TextForm(source="xx", target="yy", segmentation="pieces"))
    codec.save(folder / TOKENIZER)
    draw = np.random.default_rng(0)
    with CacheWriter(folder, len(tokenizer)) as writer:
        for first in range(0, pairs, at_once):
            count = min(at_once, pairs - first)
            source = np.clip(draw.gamma(2.5, 11, count), 2, 250).astype(np.int64)
            target = np.clip(source * draw.normal(1.05, 0.2, count), 2, 250).astype(np.int64)
            for side, lengths in (("source", source), ("target", target)):
                ids = draw.integers(2, 10_000, int(lengths.sum()), dtype=np.uint16)
                ids[np.cumsum(lengths) - 1] = 0
                writer.add_flat(side, ids, lengths)  # type: ignore[arg-type]
        writer.finish({"counts": {"read": pairs, "kept": pairs}, "corpus": "random ids"})
    return Prepared(Cache(folder), codec)


if __name__ == "__main__":
    main()
