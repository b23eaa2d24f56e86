"""The README tells the truth: each of its blocks is run, on small data that lies where the README says."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import stackelberg
import tiny_demo
import tiny_runs
import tiny_translation
import zoo
from stackelberg import METHODS, cli
from stackelberg.nmt.synthetic import write_corpus

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
SMALL = ("max_steps=2", "batch_size=4", "max_length=16")


@dataclass(frozen=True)
class Block:
    """A fenced one."""

    language: str
    text: str

    @property
    def lines(self) -> list[list[str]]:
        return [words for line in self.text.splitlines() if (words := shlex.split(line, comments=True))]


BLOCKS = [Block(*found) for found in re.findall(r"^```(\w*)\n(.*?)^```", README, re.DOTALL | re.MULTILINE)]
INLINE = sorted(set(re.findall(r"`((?:stackelberg|make) [^`]+)`", README)))
# What makes a command small: words that are added to it. Those of a name that is not here are given as they are.
ADDED = {
    "doctor": ("--rows", "2", "--tokens", "8"),
    "train": SMALL,
    "train nmt": ("max_steps=2", "evaluate_every=2", "model=tiny", "merges=60", "precision=float32", "beam=2",
                  "batch_tokens=150", "max_tokens=160", "max_length=60", "segmentation=words"),
    "compare": (*SMALL, "--seeds", "2"),
}  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every file that the README names."""
    home = tmp_path_factory.mktemp("readme")
    rows = [line.split("\t") for line in (Path(tiny_runs.data()) / "SST-2" / "train.tsv").read_text().splitlines()[1:]]
    for name in ("reviews", "held-out"):
        text = "".join(f"{said}\t{('bad', 'good')[int(label)]}\n" for said, label in rows)
        (home / f"{name}.tsv").write_text(f"text\tlabel\n{text}")
    (home / "new.tsv").write_text("text\n" + "".join(f"{said}\n" for said, _ in rows))
    shutil.copytree(tiny_runs.model(), home / "my" / "encoder")
    shutil.copytree(tiny_runs.data(), home / "my" / "glue")
    write_corpus(home / "corpus", 120)
    corpus = home / "my" / "multi30k"
    corpus.mkdir()
    for theirs, ours in (("train", "train"), ("dev", "val"), ("test", "test_2016_flickr")):
        for end, language in ((tiny_translation.SOURCE, "en"), (tiny_translation.TARGET, "de")):
            shutil.copy(home / "corpus" / f"{theirs}.{end}", corpus / f"{ours}.{language}")
    lines = (corpus / "val.en").read_text().splitlines()[:3]
    (home / "test.en").write_text("\n".join(lines) + "\n")
    return home


@pytest.mark.parametrize("place", range(len(BLOCKS)))
@pytest.mark.filterwarnings("ignore:'pin_memory' argument:UserWarning")
def test_a_block_runs(
    place: int, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each by itself; one that nobody knows how to run fails."""
    monkeypatch.chdir(home)
    monkeypatch.setenv("STACKELBERG_CACHE", str(home / "cache"))
    tiny_demo.make_small(monkeypatch, ("plain", "salt"))
    block = BLOCKS[place]
    if block.language == "python":
        run_python(block)
        return
    assert block.language == "sh", f"a block of {block.language or 'no language'}: say in this test how it is run"
    for words in block.lines:
        if words[:2] == ["stackelberg", "export"]:
            pytest.importorskip("ctranslate2")
        run_line(words, monkeypatch)
        capsys.readouterr()


def run_python(block: Block) -> None:
    """With a model and its batches, as a loop or a Trainer has them."""
    from transformers import TrainingArguments

    model, batch = zoo.build("classification", "bert", dtype=torch.float32)
    rows = [{name: column[row] for name, column in batch.items()} for row in range(len(batch["labels"]))]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    args = TrainingArguments(output_dir="trainer", report_to=[], max_steps=1, logging_steps=1, disable_tqdm=True,
                             save_strategy="no", dataloader_pin_memory=False)  # fmt: skip
    names: dict[str, Any] = {
        "model": model, "loader": [batch] * 2, "optimizer": optimizer, "args": args, "data": rows
    }  # fmt: skip
    before = [weight.detach().clone() for weight in model.parameters()]
    exec(compile(block.text, "README.md", "exec"), names)
    if "trainer" in names:
        names["trainer"].train()
        assert "game/divergence" in names["trainer"].state.log_history[0]
    assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def run_line(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    program, *rest = words
    if program == "make":
        assert re.search(rf"^{rest[0]}:.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE), rest
    elif program == "pip":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        asked = re.fullmatch(r"stackelberg\[(.*)\]", rest[-1])
        assert rest[0] == "install" and asked and set(asked[1].split(",")) <= set(project["optional-dependencies"])
    else:
        assert program == "stackelberg", f"{shlex.join(words)}: say in this test how it is run"
        run_command(rest, monkeypatch)


def run_command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As it stands, but for what makes it small."""
    name = "train nmt" if words[0] == "train" and any(word.startswith("nmt/") for word in words) else words[0]
    monkeypatch.setattr(sys, "argv", ["stackelberg", *words, *ADDED.get(name, ())])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code, shlex.join(words)
    if "--out" in words:
        assert Path(words[words.index("--out") + 1]).exists(), shlex.join(words)


@pytest.mark.parametrize("said", INLINE)
def test_a_command_in_running_text_runs(
    said: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home)
    run_line(shlex.split(said), monkeypatch)


def test_its_links_lead_somewhere() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if not link.startswith("https://")]
    assert len(links) > 10
    for link in links:
        assert (ROOT / link).exists(), link


def test_its_picture_is_small() -> None:
    (picture,) = re.findall(r"!\[[^]]+\]\(([^)]+)\)", README)
    assert (ROOT / picture).stat().st_size < 100_000


def test_its_table_has_every_public_method() -> None:
    ours = {name for name, method in METHODS.items() if method.__name__ in stackelberg.__all__}
    assert set(re.findall(r"^\| `([a-z0-9-]+)` \|", README, re.MULTILINE)) == ours
