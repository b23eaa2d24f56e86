"""The smallest size of a study: a tiny model and made-up rows, which show that everything runs and nothing else."""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from stackelberg.nlu.catalogue import ANLI_ROUNDS, find_task
from stackelberg.nlu.submission import FILES
from stackelberg.nlu.task import NluTask
from stackelberg.nmt.recipe_file import is_translation
from stackelberg.storage import write_whole
from stackelberg.studies.measures import check_options
from stackelberg.studies.small_bert import write_small_bert

ROWS = {"train": 96, "dev": 48}
POSITIONS = 256
WIDTH = 32
MOODS = (("dull", "poor", "awful", "grey"), ("fine", "good", "lovely", "bright"), ("odd", "long", "plain", "short"))
FILLERS = ("a", "film", "the", "plot", "was", "and", "very", "not", "it", "of")
SAID = "A tiny model on made-up rows: this shows that everything runs, and its figures mean nothing."
WRONG = 0.1  # share of labels, so that no score is perfect


UNDERSTANDING: dict[str, Any] = {
    "max_steps": 40,
    "batch_size": 8,
    "max_length": 32,
    "learning_rate": 5e-3,
    "evaluate_every": 20,
}
TRANSLATION: dict[str, Any] = {
    "model": "tiny", "merges": 60, "batch_tokens": 300, "max_tokens": 320, "max_length": 60,
    "shapes": 3, "max_steps": 12, "warmup": 4, "evaluate_every": 12, "beam": 2,
}  # fmt: skip
PLACES = ("data", "train", "hub")
PAIRS = 300  # and a few more for each task, so that no two are one corpus


def shrink(values: dict[str, Any], folder: Path, given: Collection[str], kept: Mapping[str, Mapping[str, Any]]) -> None:
    """Give every task of a study a tiny model and made-up data.

    Args:
        values: the study's.
        folder: that both are written into.
        given: names on the command line, which says what else to take.
        kept: fields of tasks that the study's file wants at this size.
    """
    for number, (name, fields) in enumerate(values["tasks"].items()):
        places = {f"{prefix}{field}" for prefix in ("", f"{name}.", f"{name.rpartition('/')[2]}.") for field in PLACES}
        own = bool(places & set(given)) or "train" in fields
        if is_translation(str(fields.get("recipe", name))) or is_translation(f"nmt/{name}"):
            made_up: dict[str, Any] = {} if own else {"recipe": "nmt/tiny", "synthetic": PAIRS + 10 * number}
            fields.update({**TRANSLATION, **made_up, **kept.get(name, {})})
        else:
            made_up = {} if own else tiny_task(folder, fields.get("task", name))
            fields.update({**UNDERSTANDING, "model": str(tiny_model(folder / "model").resolve()), **made_up})
            fields.update(kept.get(name, {}))
    probing = values["measures"].get("probing")
    if probing is not None:
        check_options("probing", probing)
        probing["tasks"] = [tiny_file(folder, name) for name in probing["tasks"]]
    values["title"] += " (smoke)"
    values["remarks"] = (SAID, *values["remarks"])


def tiny_model(folder: Path) -> Path:
    """BERT with one narrow layer and random weights, and a tokenizer of the words that the rows are made of."""
    if folder.is_dir():
        return folder
    words = [*FILLERS, *(word for mood in MOODS for word in mood)]
    try:
        write_small_bert(folder, words, layers=1, width=WIDTH, heads=2, inner=WIDTH, positions=POSITIONS)
    except OSError:
        if not folder.is_dir():  # it is, where another process has made the same in the meantime
            raise
    return folder


def tiny_task(folder: Path, name: str) -> dict[str, str]:
    """Fields of a recipe that say where made-up rows of a task are: as many to train on and judge by as `ROWS` says.

    Its test split, if the GLUE server has it, is as long as the server wants it. ANLI's rounds are there too.
    """
    task = find_task(name)
    home = folder / task.name
    wanted = {**ROWS, **{file.split: file.rows for file in FILES.values() if file.task == task.name}}
    wanted = {split: rows for split, rows in wanted.items() if split in (*ROWS, "test")}
    for split, rows in wanted.items():
        _write(home / f"{split}.jsonl", task, rows, split)
    found = {split: str((home / f"{split}.jsonl").resolve()) for split in wanted}
    if task.name == "anli":
        for round_ in ANLI_ROUNDS:
            for split in ("train", "dev", "test"):
                its = find_task(f"anli-{round_}")
                _write(folder / "ANLI" / round_.upper() / f"{split}.jsonl", its, ROWS["dev"], f"{round_} {split}")
        found["data"] = str(folder)
    return found


def tiny_file(folder: Path, name: str) -> str:
    """A file of rows for a probing task."""
    path = folder / "probing" / f"{Path(name).stem}.tsv"
    if not path.is_file():
        draw = random.Random(name)
        rows = [(draw.randrange(2)) for _ in range(ROWS["train"])]
        write_whole(path, "text\tlabel\n" + "".join(f"{_text(draw, mood)}\t{('no', 'yes')[mood]}\n" for mood in rows))
    return str(path.resolve())


def _write(path: Path, task: NluTask, rows: int, said: str) -> None:
    """Rows of JSON: a text's mood is its class, or its score."""
    if path.is_file():
        return
    draw = random.Random(f"{task.name} {said}")
    columns, lines = task.columns, []
    for number in range(rows):
        classes = len(task.labels) or 2
        mood = number % classes
        shown = draw.randrange(classes) if draw.random() < WRONG else mood
        row: dict[str, Any] = {columns.text: _text(draw, shown)}
        if columns.pair is not None:
            row[columns.pair] = _text(draw, shown)
        if columns.label is not None and said != "test":
            low, high = task.bounds or (0.0, 1.0)
            row[columns.label] = task.labels[mood] if task.labels else low + (high - low) * (mood + draw.random()) / 2
        lines.append(json.dumps(row) + "\n")
    write_whole(path, "".join(lines))


def _text(draw: random.Random, mood: int) -> str:
    words = [draw.choice(FILLERS) for _ in range(draw.randrange(3, 8))]
    words.insert(draw.randrange(len(words)), draw.choice(MOODS[mood]))
    return " ".join(words)
