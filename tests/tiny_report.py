"""Finished runs that nobody trained, as reports read them; and a browser to look at a page with."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from stackelberg.nlu import find_task
from stackelberg.nlu.predictions import as_tsv
from stackelberg.nlu.recipe import Recipe
from stackelberg.nlu.recipe_data import read_data
from stackelberg.storage import write_whole
from tiny import sentences, write_tsv

ROWS = 60
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def data(home: Path, rows: int = ROWS) -> Path:
    """SST-2 and MRPC, a few rows each."""
    for seed, split in enumerate(("train", "dev")):
        write_tsv(home / "SST-2" / f"{split}.tsv", ("sentence", "label"), sentences(rows, seed=seed))
        header = ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")
        pairs = [(label, n, n, text, text) for n, (text, label) in enumerate(sentences(rows, seed=seed))]
        write_tsv(home / "MRPC" / f"{split}.tsv", header, pairs)
    return home


def recipe(home: Path, task: str = "sst-2", **changes: Any) -> Recipe:
    return Recipe(**{"task": task, "data": str(home), "model": str(home / "tiny-bert"), "max_steps": 20, **changes})


def play(its: Recipe, folder: Path, right: float = 0.7, **figures: float) -> Path:
    """What `Run.train` leaves behind, right on such a share of the rows."""
    task, examples = find_task(str(its.task)), read_data(its)["dev"]
    random = np.random.default_rng([its.seed, *its.method.encode()])
    truth = np.asarray(examples.targets)
    answer = np.where(random.uniform(size=len(truth)) < right, truth, 1 - truth)
    sure = random.uniform(0.5, 1, size=len(truth))
    second = np.where(answer == 1, sure, 1 - sure)
    write_whole(folder / "recipe.yaml", its.to_yaml())
    labels = {str(number): label for number, label in enumerate(task.labels or ())}
    write_whole(folder / "model" / "config.json", json.dumps({"id2label": labels}))
    machine = {"stackelberg": "1", "torch": "2", "device": "a CPU", "threads": 1}
    write_whole(folder / "versions.json", json.dumps(machine))
    write_whole(folder / "predictions" / "dev.tsv", as_tsv(task, np.stack([1 - second, second], axis=1), examples))
    write_whole(folder / "predictions" / "judged_by.json", '["dev"]')
    steps = (5, 10, 15, 20)
    records = [{"step": step, "game/task_loss": 1 / step, "seconds": step, "seconds_per_step": 1.0} for step in steps]
    records += [{"step": step, "dev/score": step / 40, "dev/nll": 2 / step} for step in steps]
    write_whole(folder / "metrics.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    said = {"score": float((answer == truth).mean()), "accuracy": float((answer == truth).mean()), "f1": 0.5}
    if task.metrics == ("accuracy",):
        del said["f1"]
    calibration = {"ece": 0.1, "ece_width": 0.1, "mce": 0.2, "brier": 0.3, "nll": 0.5, "confidence": 0.75}
    cost = {"steps": 20, "best_step": 15, "seconds": 10.0, "seconds_per_step": 0.01 * len(its.method)}
    write_whole(folder / "result.json", json.dumps({**said, **calibration, **cost, **figures}))
    return folder


def play_all(home: Path, out: Path, shares: dict[str, float], seeds: int = 3, task: str = "sst-2") -> Path:
    """Every method with every seed."""
    for method, share in shares.items():
        for seed in range(seeds):
            play(recipe(home, task, method=method, seed=seed), out / task / method / str(seed), share)
    return out


def look(page: Path, width: int, scheme: str) -> dict[str, Any]:
    """Open a page in headless Chromium: what its console said, what it asked for, how wide it is."""
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "about:blank"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as browser:
        try:
            assert browser.stderr is not None
            address = next(
                found[1] for line in browser.stderr if (found := re.search(r"listening on (ws://\S+)", line))
            )
            return asyncio.run(_look(address, page, width, scheme))
        finally:
            browser.kill()


async def _look(address: str, page: Path, width: int, scheme: str) -> dict[str, Any]:
    import aiohttp

    seen: dict[str, Any] = {"said": [], "asked": []}
    async with aiohttp.ClientSession() as session, session.ws_connect(address, max_msg_size=0) as socket:
        number = 0

        async def ask(method: str, session_id: str | None = None, **params: Any) -> Any:
            nonlocal number
            number += 1
            about = {"sessionId": session_id} if session_id else {}
            await socket.send_json({"id": number, "method": method, "params": params, **about})
            while True:
                answer = await socket.receive_json(timeout=30)
                if answer.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
                    seen["said"].append(answer["params"])
                if answer.get("method") == "Network.requestWillBeSent":
                    seen["asked"].append(answer["params"]["request"]["url"])
                if answer.get("id") == number:
                    return answer["result"]

        target = (await ask("Target.createTarget", url="about:blank"))["targetId"]
        tab = (await ask("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        for domain in ("Runtime", "Log", "Network", "Page"):
            await ask(f"{domain}.enable", tab)
        await ask("Emulation.setEmulatedMedia", tab, features=[{"name": "prefers-color-scheme", "value": scheme}])
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        await ask("Emulation.setDeviceMetricsOverride", tab, **size)
        await ask("Page.navigate", tab, url=page.absolute().as_uri())
        for _ in range(100):
            if (await ask("Runtime.evaluate", tab, expression="document.readyState"))["result"]["value"] == "complete":
                break
            await asyncio.sleep(0.1)
        for name, expression in (
            ("width", "innerWidth"),
            ("beyond", "document.documentElement.scrollWidth - document.documentElement.clientWidth"),
            ("title", "document.title"),
            ("paper", "getComputedStyle(document.body).backgroundColor"),
            ("scripts", "document.scripts.length"),
            ("headings", "[...document.querySelectorAll('h1,h2')].map(it => it.textContent).join('|')"),
        ):
            found = await ask("Runtime.evaluate", tab, expression=expression)
            seen[name] = found["result"]["value"]
    return seen
