"""What a step costs on this machine beside a plain one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from functools import partial

import torch

from ..game.game import Game
from ..methods import SALT, VAT, Plain
from .finding import Finding, Level, sentence
from .memory import GIB, peak
from .patient import Patient

ROUNDS, SECONDS = 5, 20.0  # as many timed rounds as fit, one at least


def cost(patient: Patient, steps: int) -> Iterator[Finding]:
    """Time and peak memory of gradients by plain, VAT and SALT, which take turns; no optimizer's step among them."""
    games: dict[str, Game] = {
        "plain": Plain(mode="eager"),
        f"VAT, K = {steps}": VAT(steps=steps, mode="eager"),
        f"SALT, K = {steps}": SALT(steps=steps, mode="eager"),
    }
    if patient.device.type == "cuda":
        games[f"SALT, K = {steps}, captured"] = SALT(steps=steps, mode="graph")
    held = [*patient.model.parameters(), *patient.model.buffers(), *patient.batch.values()]
    memory: dict[str, int] = {}
    for name, game in dict(games).items():
        try:
            memory[name] = peak(partial(_step, patient, game), held, patient.device)
            if game.mode == "graph":
                _step(patient, game)  # the first one captures
        except Exception as error:  # of any kind: memory's, a compiler's
            level: Level = "warning" if game.mode == "graph" else "failure"
            yield Finding(level, f"cost.{name}", f"{name}: does not run here ({sentence(error)})")
            patient.model.zero_grad(set_to_none=True)
            del games[name]
    if "plain" not in games:
        return
    times: dict[str, list[float]] = {name: [] for name in games}
    begun = time.perf_counter()
    for _ in range(ROUNDS):
        for name, game in games.items():
            times[name].append(_timed(patient, game))
        if time.perf_counter() - begun > SECONDS:
            break
    plain, plain_memory = statistics.median(times["plain"]), memory["plain"]
    rows, tokens = patient.batch["input_ids"].shape
    for name in games:
        seconds = statistics.median(times[name])
        says = f"{name}: {_spoken(seconds)}, {memory[name] / GIB:.2f} GiB"
        if name == "plain":
            says += f" a gradient of {rows} × {tokens} tokens, beside the model itself"
        else:
            says += f", that is {seconds / plain:.1f} × the time and {memory[name] / plain_memory:.1f} × the memory"
        facts = {
            "seconds": seconds, "times": seconds / plain, "bytes": memory[name], "rounds": len(times[name]),
            "rows": rows, "tokens": tokens,
        }  # fmt: skip
        yield Finding("ok", f"cost.{name}", says, facts)


def _step(patient: Patient, game: Game) -> None:
    with patient.autocast():
        loss = game(patient.model, patient.batch)
    loss.backward()
    patient.model.zero_grad(set_to_none=True)


def _timed(patient: Patient, game: Game) -> float:
    on_gpu = patient.device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize(patient.device)
    begun = time.perf_counter()
    _step(patient, game)
    if on_gpu:
        torch.cuda.synchronize(patient.device)
    return time.perf_counter() - begun


def _spoken(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
