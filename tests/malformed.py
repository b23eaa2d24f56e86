"""Command lines that are certainly wrong, made from what the command says of itself and from a seed.

Each is an invocation that could have worked with one or more things spoilt: a flag, a value, a file, a recipe, a run's
folder. Commands and their parameters are read from the command line's own description, so that a new command is covered
by being there; what it takes to get further into one than its words is in `USUAL`.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import typer

import tiny_runs
from stackelberg.cli import app
from stackelberg.nlu.recipe import Recipe
from stackelberg.nmt.recipe import TranslationRecipe
from stackelberg.runs.folder import RECIPE, RESULT

NO_NUMBERS = ("", " ", "three", "0x", "1,5", "1e", "--", "½", "[1]", "nil", "\x1b[31m", "9" * 30 + "x")
TOO_LONG = "9" * 5000  # longer than Python reads as a number
UNKNOWN = ("--frobnicate", "--Seed", "--no-such-flag=3", "-Z", "--methodd", "--set-seed", "--jsonn")
NO_SUCH = "nowhere/at/all"


@dataclass(frozen=True)
class Case:
    """Words after `stackelberg`, and what is wrong with them."""

    words: tuple[str, ...]
    wrong: tuple[str, ...]

    def __str__(self) -> str:
        shown = " ".join(word if len(word) < 80 else f"{word[:60]}…" for word in self.words)
        return f"stackelberg {shown!r} ({'; '.join(self.wrong)})"


@dataclass(frozen=True)
class Parameter:
    """One of a command's, as the command describes it."""

    name: str
    flag: str | None  # None for an argument
    kind: Any  # int, float, bool, Path, str, an enumeration
    required: bool
    many: bool
    least: float | None


@dataclass(frozen=True)
class Command:
    words: tuple[str, ...]
    parameters: tuple[Parameter, ...]

    @property
    def arguments(self) -> list[Parameter]:
        return [each for each in self.parameters if each.flag is None]

    @property
    def options(self) -> list[Parameter]:
        return [each for each in self.parameters if each.flag is not None]


def commands() -> list[Command]:
    """All there are, with what they take."""

    def walk(command: Any, words: tuple[str, ...]) -> Iterator[Command]:
        for name, each in getattr(command, "commands", {}).items():
            yield from walk(each, (*words, name))
        if not hasattr(command, "commands"):
            hints = get_type_hints(command.callback)
            yield Command(words, tuple(_parameter(each, hints) for each in command.params if each.name in hints))

    return list(walk(typer.main.get_command(app), ()))


def _parameter(said: Any, hints: dict[str, Any]) -> Parameter:
    kind = hints[said.name]
    while get_args(kind):
        kind = next(each for each in get_args(kind) if each is not type(None))
    flag = said.opts[0] if said.param_type_name == "option" else None
    many = said.nargs == -1 or getattr(said, "multiple", False)
    return Parameter(said.name, flag, kind, said.required, many, getattr(said, "min", None))


# --------------------------------------------------------------------------------------------------
# Files


class Spoilt:
    """A folder of files and run folders, each wrong in one way.

    Args:
        home: to write them in.
        run: a finished run of understanding, which is copied.
        translation: one of translation.
    """

    def __init__(self, home: Path, run: Path, translation: Path) -> None:
        self.home, self.run, self.translation = home, run, translation
        rows = "the film was fine\t1\na dull plot\t0\n"
        self.rows = _written(home / "rows.tsv", "sentence\tlabel\n" + rows * 4)
        self.pair = _written(home / "pair.tsv", "sentence\tlabel\n" + rows)
        self.file = home / "file.txt"
        self.file.write_text("a line\n")
        (home / "empty-folder").mkdir()
        self.tables = self._tables()
        self.recipes = dict(_recipes(home))
        self.torn = dict(self._torn(run, TEARS))
        self.torn_translations = dict(self._torn(translation, {**READ, **USED}))

    def _tables(self) -> dict[str, Path]:
        header = b"sentence\tlabel\n"
        contents = {
            "an empty file": ("t0.tsv", b""),
            "only blank lines": ("t1.tsv", b"\n\n  \n"),
            "a header alone": ("t2.tsv", header),
            "bytes": ("t3.tsv", bytes(range(256)) * 8),
            "a PNG": ("t4.tsv", b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(40)),
            "Latin-1": ("t5.tsv", header + "caf\xe9 noir\t1\n".encode("latin-1")),
            "UTF-16": ("t6.tsv", (header.decode() + "fine\t1\n").encode("utf-16")),
            "one line of a million letters": ("t7.tsv", b"x" * 1_000_000),
            "a row with too many columns": ("t8.tsv", header + b"fine\t1\t1\t1\n"),
            "a row with too few columns": ("t9.tsv", header + b"fine\n"),
            "other columns": ("t10.tsv", b"colour\tprice\nred\t3\n"),
            "the column twice": ("t11.tsv", b"sentence\tsentence\tlabel\nfine\tfine\t1\n"),
            "JSON that ends early": ("t12.jsonl", b'{"sentence": "fine", "label": 1}\n{"sentence": "du'),
            "JSON that is a list": ("t13.jsonl", b"[1, 2, 3]\n"),
            "JSON with a number for a text": ("t14.jsonl", b'{"sentence": 3, "label": 1}\n'),
            "JSON without the column": ("t15.jsonl", b'{"colour": "red"}\n'),
            "brackets without end": ("t16.jsonl", b"[" * 20_000 + b"\n"),
            "CSV with an open quote": ("t17.csv", b'sentence,label\n"fine,1\n'),
            "an ending that is none": ("t18.parquet", b"PAR1"),
        }
        found = {wrong: _written(self.home / name, data) for wrong, (name, data) in contents.items()}
        return found | {"a folder": self.home / "empty-folder", "no file": self.home / NO_SUCH}

    def _torn(self, run: Path, tears: dict[str, Callable[[Path], None]]) -> Iterator[tuple[str, Path]]:
        """Runs: a copy of the whole one, less something."""
        for number, (wrong, tear) in enumerate(tears.items()):
            folder = self.home / f"{run.name}-torn{number}"
            shutil.copytree(run, folder)
            tear(folder)
            yield wrong, folder
        yield "no run: an empty folder", self.home / "empty-folder"
        yield "no run: a file", self.file
        yield "no run: nothing there", self.home / NO_SUCH
        yield "no run: a file for a folder", self.file / "run"


def _cut(name: str) -> Callable[[Path], None]:
    def tear(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: len(data) // 2])

    return tear


def _garbled(name: str, data: bytes) -> Callable[[Path], None]:
    return lambda folder: _written(folder / name, data) and None


def _gone(name: str) -> Callable[[Path], None]:
    return lambda folder: shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()


# What every command that takes a run reads.
READ = {
    "no recipe": _gone(RECIPE),
    "half a recipe": _garbled(RECIPE, b"task: [rte\n"),
    "a recipe of bytes": _garbled(RECIPE, bytes(range(128, 256))),
    "an empty recipe": _garbled(RECIPE, b""),
    "a recipe with another key": _garbled(RECIPE, b"task: sst-2\nepoch: 3\n"),
    "no result": _gone(RESULT),
    "half a result": _cut(RESULT),
    "an empty result": _garbled(RESULT, b""),
    "a result that is a list": _garbled(RESULT, b"[1, 2]"),
    "a result of texts": _garbled(RESULT, b'{"score": "high"}'),
    "a result of bytes": _garbled(RESULT, bytes(range(128, 256))),
}
# What those read that use the model.
USED = {
    "no model": _gone("model"),
    "no configuration": _gone("model/config.json"),
    "half a configuration": _cut("model/config.json"),
    "an empty configuration": _garbled("model/config.json", b"{}"),
    "a configuration that is a list": _garbled("model/config.json", b"[]"),
    "half the weights": _cut("model/model.safetensors"),
    "empty weights": _garbled("model/model.safetensors", b""),
    "weights that are text": _garbled("model/model.safetensors", b"not weights" * 100),
    "no weights": _gone("model/model.safetensors"),
    "half a tokenizer": _cut("model/tokenizer.json"),
}
# What those read that ask how the model answered.
ANSWERS = {
    "half the answers": _garbled("predictions/dev.tsv", b"id\tlab"),
    "answers that are bytes": _garbled("predictions/dev.tsv", bytes(range(256))),
    "answers that are words": _garbled("predictions/dev.tsv", b"a\tb\nc\td\n"),
    "nothing says what judged it": _gone("predictions/judged_by.json"),
    "what judged it is no list": _garbled("predictions/judged_by.json", b"3"),
}
TEARS = {**READ, **USED, **ANSWERS}


def _written(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def _recipes(home: Path) -> Iterator[tuple[str, Path]]:
    """Files that are no recipes."""
    contents: dict[str, str | bytes] = {
        "an empty recipe": b"",
        "a recipe of bytes": bytes(range(256)),
        "a recipe in Latin-1": "task: caf\xe9".encode("latin-1"),
        "a recipe that is a list": "- task\n- rte\n",
        "a recipe that is a word": "rte\n",
        "brackets that are not closed": "task: [rte\n",
        "a tab for an indent": "task: rte\nsettings:\n\tweight: 1\n",
        "an object": "task: !!python/object/apply:os.getcwd []\n",
        "an alias to nothing": "task: *rte\n",
        "a key twice": "task: rte\ntask: mnli\n",
        "keys that are numbers": "1: rte\n",
        "brackets without end": "task: " + "[" * 3000,
        "a number without end": f"task: rte\nseed: {TOO_LONG}\n",
        "forms that are a list": "task: rte\nforms: [tuned]\n",
        "no such form": "task: rte\nform: loud\nforms: {tuned: {}}\n",
        "methods that are a list": "task: rte\nmethods: [salt]\n",
        "a line of a million letters": "task: " + "x" * 1_000_000,
        "no task": "seed: 3\n",
        "two languages that are one": "source: en\ntarget: en\n",
        "a corpus from two places": "source: en\ntarget: de\nsynthetic: 10\nhub: a/b\n",
        "a date that is none": "task: rte\nseed: 2021-99-99\n",
    }
    for number, (wrong, content) in enumerate(contents.items()):
        yield wrong, _written(home / f"recipe{number}.yaml", content)
    yield "a recipe that is a folder", home / "empty-folder"
    yield "no recipe there", home / "nowhere.yaml"


# --------------------------------------------------------------------------------------------------
# Invocations


def usual(at: Spoilt, out: Path) -> dict[str, list[str]]:
    """Words with which a command would work: arguments, then options that it needs. Whatever is not here gets none."""
    run, rows = str(at.run), str(at.rows)
    small = ["--model", tiny_runs.model(), "--data", tiny_runs.data()]
    return {
        "calibrate": [run, "--out", str(out / "diagram.png")],
        "compare": [
            "--task",
            "sst-2",
            *small,
            "--methods",
            "plain,vat",
            "--seeds",
            "2",
            "max_length=16",
            "--out",
            str(out / "all"),
        ],
        "evaluate": [run],
        "export": [str(at.translation), str(out / "exported")],
        "predict": [run, rows],
        "probe": [
            run,
            "--tasks",
            rows,
            "--text",
            "sentence",
            "--seeds",
            "1",
            "--max-length",
            "16",
            "--out",
            str(out / "probing"),
        ],
        "robustness": [run, "--data", tiny_runs.data()],
        "submit": [run, "--fill", "majority", "--out", str(out / "glue.zip")],
        "train": ["sst-2", *small, "--max-steps", "1", "--max-length", "16", "--out", str(out / "run")],
        "translate": [str(at.translation), "--input", str(at.file)],
    }


RUNS = ("calibrate", "evaluate", "predict", "probe", "robustness", "submit", "export", "translate")
USE = ("predict", "robustness", "submit", "export", "translate")  # the model
TRANSLATE = ("export", "translate")
ASK = ("calibrate", "evaluate")
DIAGNOSIS = "doctor"  # whose first argument may be ill: that is an answer, on standard output
FOLDERS = ("probe", "translate", "export")  # take a model's folder too
USUAL = (*RUNS, "compare", "train")


def cases(at: Spoilt, out: Path, count: int, seed: int) -> list[Case]:
    """As many, over all commands in turn; a fifth of them with more than one thing wrong.

    Args:
        at: the files.
        out: a folder for what is written, were anything written.
        count: how many.
        seed: of the draws.
    """
    draw, known = random.Random(seed), commands()
    return [_case(known[number % len(known)], at, out, draw) for number in range(count)]


def _case(command: Command, at: Spoilt, out: Path, draw: random.Random) -> Case:
    wrong, spoil = draw.choice(_ways(command, at, out, draw))
    words, said = spoil(list(usual(at, out).get(command.words[0], []))), [wrong]
    if draw.random() < 0.2:  # in front, where no option that lacks its value can swallow it
        wrong, spoil = draw.choice([way for way in _with_words(command, draw) if not way[0].startswith(ALONE)])
        words, said = [*spoil([]), *words], [*said, wrong]
    return Case((*command.words, *words), tuple(said))


NO_ARGUMENT, WITHOUT_VALUE = "no argument", "without a value: "
ALONE = (NO_ARGUMENT, WITHOUT_VALUE)  # are nothing in front of other words
Way = tuple[str, Callable[[list[str]], list[str]]]


def _ways(command: Command, at: Spoilt, out: Path, draw: random.Random) -> list[Way]:
    """One of each kind that there is for the command, so that kinds are drawn alike."""
    kinds = [list(_with_words(command, draw)), list(_with_runs(command, at)), list(_with_files(command, at, out))]
    kinds += [list(_with_recipes(command, at, draw)), list(_with_outputs(command, at))]
    kinds += [list(_with_senseless(command, at))]
    return [draw.choice(ways) for ways in kinds if ways]


def _with_words(command: Command, draw: random.Random) -> Iterator[Way]:
    """What is wrong whatever the files."""
    unknown, value = draw.choice(UNKNOWN), draw.choice(NO_NUMBERS)
    yield f"unknown {unknown}", lambda words: [*words, unknown]
    arguments = command.arguments
    if not any(each.many for each in arguments):
        yield "too many arguments", lambda words: [*words, *["more"] * (len(arguments) + 1)]
    if any(each.required for each in arguments):
        yield NO_ARGUMENT, lambda words: []
    for each in command.options:
        flag = str(each.flag)
        if each.kind is bool:
            yield f"{flag} with a value", lambda words, flag=flag: [*words, f"{flag}=perhaps"]
            continue
        yield WITHOUT_VALUE + flag, lambda words, flag=flag: [*words, flag]
        if each.kind in (int, float):
            yield f"{flag} {value!r}", lambda words, flag=flag: [*words, f"{flag}={value}"]
        if each.kind is int:
            yield f"{flag} 1.5", lambda words, flag=flag: [*words, flag, "1.5"]
            yield f"{flag} without end", lambda words, flag=flag: [*words, flag, TOO_LONG]
        if each.least is not None:
            low = str(int(each.least) - 1 - draw.randrange(5))
            yield f"{flag} {low}", lambda words, flag=flag, low=low: [*words, f"{flag}={low}"]
        if hasattr(each.kind, "__members__"):
            yield f"{flag} perhaps", lambda words, flag=flag: [*words, flag, "perhaps"]


def _with_runs(command: Command, at: Spoilt) -> Iterator[Way]:
    """The run, or what stands in its place."""
    name = command.words[0]
    first = next(iter(command.arguments), None)
    if first is not None and first.kind is str and not first.many and name != DIAGNOSIS:
        for wrong, path in at.recipes.items():
            yield wrong, lambda words, path=path: [str(path), *words[1:]]
    if first is None or first.kind is not Path or not first.required:
        return
    rest = ["x"] * (len(command.arguments) - 1)
    for wrong, folder in (at.torn_translations if name in TRANSLATE else at.torn).items():
        reads = wrong in READ and name in RUNS and (wrong != "no recipe" or name not in FOLDERS)
        if reads or (wrong in USED and name in USE) or (wrong in ANSWERS and name in ASK) or wrong.startswith("no run"):
            yield wrong, lambda words, folder=folder: [str(folder), *(words[1:] or rest)]


def _with_files(command: Command, at: Spoilt, out: Path) -> Iterator[Way]:
    """Tables of rows."""
    if command.words == ("probe",):
        yield "two rows alone", lambda words: [words[0], "--tasks", str(at.pair), *words[3:]]
    for wrong, path in at.tables.items():
        own = ["--model", tiny_runs.model(), "--out", str(out / "own"), "--max-steps", "1", "--text", "sentence"]
        if command.words == ("predict",):
            yield wrong, lambda words, path=path: [words[0], str(path)]
        if command.words == ("train",):
            yield wrong, lambda words, path=path, own=own: ["--train", str(path), *own]
            yield f"dev: {wrong}", lambda words, path=path, own=own: [
                "--train", str(at.rows), "--dev", str(path), *own]  # fmt: skip
        if command.words == ("evaluate",):
            yield wrong, lambda words, path=path: [*words, "--data", str(path)]
        if command.words == ("probe",):
            yield wrong, lambda words, path=path: [
                words[0], "--tasks", str(path), "--text", "sentence", "--out", str(out / "p")]  # fmt: skip


def _with_recipes(command: Command, at: Spoilt, draw: random.Random) -> Iterator[Way]:
    """Recipes, and the changes made to them."""
    if command.words not in (("train",), ("compare",)):
        return
    trains = command.words == ("train",)
    place = (lambda path: [str(path)]) if trains else (lambda path: ["--recipe", str(path)])
    for wrong, path in at.recipes.items():
        yield wrong, lambda words, path=path: [*place(path), *words[1 if trains else 2 :]]
    for change in _changes(Recipe, draw):
        yield change, lambda words, change=change: [*words, change]
    if trains:
        for change in _changes(TranslationRecipe, draw):
            yield change, lambda words, change=change: ["nmt/tiny", change]
    for setting in ("weight=loud", "steps=-1", "epsilon=-1", "norm=l7", "wait=3", "steps", "=3", "ascent=[sgd]"):
        said = setting if trains else f"vat.{setting}"
        yield f"--set {said}", lambda words, said=said: [*words, "--set", said]
    yield "method", lambda words: [*words, *(["--method", "sault"] if trains else ["--methods", "plain,sault"])]


def _changes(kind: type[Any], draw: random.Random) -> Iterator[str]:
    """Fields of a recipe, each with values that it cannot have."""
    for field in fields(kind):
        said = str(field.type)
        if "Literal" in said or field.name in ("kind", "segmentation"):
            yield f"{field.name}=perhaps"
        elif said.startswith(("int", "float")):
            yield f"{field.name}={draw.choice(['three', '[1]', 'yes', '-.inf', '{}', '2021-01-01', '.nan'])}"
            yield f"{field.name}={draw.choice(['-1000000000', '-1e30'])}" if field.name != "length_penalty" else "a.b=1"
        elif said.startswith("bool"):
            yield f"{field.name}=perhaps"
        elif "Mapping" in said:
            yield f"{field.name}=perhaps"
        elif said.startswith("str"):
            yield f"{field.name}={draw.choice(['[a]', '{a: b}', '3', 'yes'])}"
        else:
            yield f"{field.name}={draw.choice(['perhaps', '3', '{a: b}'])}"
    yield from (f"{draw.choice('abc')}{draw.randrange(99)}=3", "=3", "seed=[1", "seed=*a", "seed", f"seed={TOO_LONG}")


def _with_senseless(command: Command, at: Spoilt) -> Iterator[Way]:
    """Values that are texts, but mean nothing."""
    for said in SENSELESS.get(command.words[0], ()):
        yield said, lambda words, said=said: [*words, *said.split()]
    if command.words == ("train",):
        for wrong, folder in at.torn.items():
            if wrong in READ:
                yield f"into {wrong}", lambda words, folder=folder: [*words, "--out", str(folder)]
            if wrong in USED:
                yield f"on {wrong}", lambda words, folder=folder: [*words, "--model", str(folder / "model")]
    for name in ("--data", "--model"):
        if name in [each.flag for each in command.options] and command.words[0] in ("train", "compare", "robustness"):
            yield f"{name} nowhere", lambda words, name=name: [*words, name, str(at.home / NO_SUCH)]


SENSELESS = {
    "calibrate": ("--split nowhere", "--fit-on nowhere --temperature", "--out diagram.jpeg"),
    "compare": (
        "--seeds x", "--seeds 0", "--seeds 1,1", "--seeds 1,-1", "--methods plain,plain", "--methods ,",
        "--baseline sault", "--baseline smart", "--task sst-3", "--set weight=3", "--set smart.weight=3",
        "--recipe sst-3", "method=salt", "seed=3",
    ),
    "evaluate": ("--split nowhere", "--split train --split nowhere"),
    "export": ("--quantization int3",),
    "predict": ("--text colour", "--pair colour", "--out rows.parquet", "--out rows"),
    "probe": ("--pooling middle", "--tasks nothing", "--tasks ,", "--text colour", "--label colour", "--pair colour"),
    "robustness": ("--attack nothing", "--attack textfooler"),
    "submit": ("--fill minority", "--out glue.tar"),
    "train": (
        "mnli", "--kind perhaps", "--precision float8", "--form loud", "--method salted", "--max-length 1000",
        "--test nowhere.tsv", "--label colour", "--text colour", "--set epsilon=0", "--batch-size 0", "--epochs -1",
        "--epochs nan", "--learning-rate inf", "--max-steps 0", "--seed -1", "--precision float16",
    ),
    "translate": (
        "--backend perhaps", "--beam 0", "--n-best 0", "--beam 2 --n-best 5", "--input nowhere.txt",
        "--reference nowhere.txt", "--threads 0",
        "--precision float8", "--length-penalty nan", "--backend ctranslate2",
    ),
}  # fmt: skip


def _with_outputs(command: Command, at: Spoilt) -> Iterator[Way]:
    """Places where nothing can be written."""
    for each in command.parameters:
        if each.kind is not Path or not each.name.startswith("out") or command.words[0] not in USUAL:
            continue
        for wrong, place in (("below a file", at.file / "out"), ("in no file system", Path("/proc/nowhere/out"))):
            for ending in (".png", ".zip", ".tsv", ""):
                path = str(place.with_suffix(ending))
                if each.flag is None:
                    yield f"{each.name} {wrong}", lambda words, path=path: [words[0], path]
                else:
                    yield f"{each.flag} {wrong}", lambda words, flag=each.flag, path=path: [*words, str(flag), path]
