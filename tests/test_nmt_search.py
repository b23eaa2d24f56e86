"""Translating: every line in its place whatever its length, and both engines of one mind."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stackelberg.cli import app
from stackelberg.errors import DataError, SettingError
from stackelberg.nmt.ctranslate import export, load_exported
from stackelberg.nmt.generating import load_translator
from stackelberg.nmt.lines import read_lines
from stackelberg.nmt.run import TranslationRun
from stackelberg.nmt.search import Found, Search, Translator
from tiny_translation import recipe

STEPS = 60  # until a model says something


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TranslationRun:
    home = tmp_path_factory.mktemp("search")
    its = recipe(home, synthetic=600, max_steps=STEPS, evaluate_every=STEPS, batch_tokens=400, max_tokens=420)
    return TranslationRun.train(its, home / "run", quiet=True, tensorboard=False)


@pytest.fixture(scope="module")
def exported(run: TranslationRun) -> Path:
    pytest.importorskip("ctranslate2")
    return export(run.model_folder, run.folder.parent / "exported")


@pytest.fixture(scope="module")
def lines(run: TranslationRun) -> list[str]:
    return list(read_lines(run.folder / "corpus" / "test.aa"))


def test_the_run_says_what_its_model_says(run: TranslationRun, lines: list[str]) -> None:
    found = run.translator.best(lines, run.search)
    assert [one.text for one in found] == run.translations("test")
    assert [one.tokenized for one in found] == run.translations("test", tokenized=True)


def test_lines_stay_in_their_places(run: TranslationRun, lines: list[str]) -> None:
    how, few = Search(beam=3), [*lines[:20], "", lines[3], "   "]
    alone = [run.translator.best([line], how)[0].text for line in few]
    small = Translator(run.translator.engine, run.translator.codec, batch_tokens=40)
    assert [one.text for one in small.best(few, how)] == alone
    assert [found[0].text for found in small.stream(iter(few), how)] == alone
    assert alone[20] == alone[22] == "" and alone[21] == alone[3]
    assert run.translator.translate([], how) == []


def test_n_best_are_in_order_with_the_scores_of_generate(run: TranslationRun, lines: list[str]) -> None:
    import torch

    how = Search(beam=4, n_best=3, length_penalty=0.7, scored=True)
    found = run.translator.translate(lines[:6], how)
    for each in found:
        assert len(each) == 3 and len({one.tokenized for one in each}) > 1
        scores = [one.score for one in each]
        assert scores == sorted(scores, reverse=True)
    engine, codec = run.translator.engine, run.translator.codec
    model: Any = engine.model  # type: ignore[attr-defined]
    ids = torch.tensor(codec.sources(lines[:1]))
    made = model.generate(
        ids, num_beams=4, num_return_sequences=3, length_penalty=0.7, early_stopping=True, max_new_tokens=60,
        return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    assert [one.score for one in found[0]] == pytest.approx(made.sequences_scores.tolist(), abs=1e-4)
    assert math.isnan(run.translator.best(lines[:1], Search(beam=2))[0].score)


def test_a_line_longer_than_the_positions_is_translated_in_parts(run: TranslationRun) -> None:
    class Counting:
        longest = 10

        def __init__(self) -> None:
            self.seen: list[list[int]] = []

        def search(self, sources: Any, how: Search, most: int) -> list[list[Found]]:
            self.seen += sources
            return [[Found(list(source), -1.0)] * how.n_best for source in sources]

    engine = Counting()
    translator = Translator(engine, run.translator.codec)
    text = " ".join(["xba", "xde", "hfi"] * 30)
    source = run.translator.codec.sources([text])[0]
    translator.translate([text, "hfi"], Search(beam=2, n_best=2))
    assert all(len(part) <= 10 and part[-1] == 0 for part in engine.seen)
    assert [i for part in sorted(engine.seen, key=lambda p: -len(p)) for i in part if i][: len(source) - 1]
    assert (
        sum(len(part) - 1 for part in engine.seen)
        == len(source) - 1 + len(run.translator.codec.sources(["hfi"])[0]) - 1
    )


@pytest.mark.parametrize("beam", [1, 4])
def test_ctranslate2_agrees(beam: int, run: TranslationRun, exported: Path, lines: list[str]) -> None:
    how = Search(beam=beam, length_penalty=0.8, scored=True)
    ours, theirs = run.translator.best(lines, how), load_exported(exported).best(lines, how)
    agreeing = [(a, b) for a, b in zip(ours, theirs, strict=True) if a.text == b.text]
    assert len(agreeing) >= 0.97 * len(lines)
    assert [a.score for a, _ in agreeing] == pytest.approx([b.score for _, b in agreeing], abs=0.02)


def test_int8_is_smaller(run: TranslationRun, exported: Path, tmp_path: Path, lines: list[str]) -> None:
    small = export(run.model_folder, tmp_path / "int8", quantization="int8")
    assert (small / "model.bin").stat().st_size < 0.5 * (exported / "model.bin").stat().st_size
    assert len(load_exported(small).best(lines[:3], Search())) == 3
    with pytest.raises(DataError, match="is there already"):
        export(run.model_folder, small)
    with pytest.raises(SettingError, match="quantization='int4' is not known"):
        export(run.model_folder, tmp_path / "int4", quantization="int4")
    assert not (tmp_path / "int4").exists()


def test_separate_vocabularies_are_exported_apart(tmp_path: Path) -> None:
    changes = {"synthetic": 600, "max_steps": STEPS, "evaluate_every": STEPS, "batch_tokens": 400, "max_tokens": 420}
    its = recipe(tmp_path, joint=False, **changes)
    run = TranslationRun.train(its, tmp_path / "run", quiet=True, tensorboard=False)
    assert run.translator.codec.target is not run.translator.codec.tokenizer
    pytest.importorskip("ctranslate2")
    out = export(run.model_folder, tmp_path / "out")
    source, target = (json.loads((out / f"{side}_vocabulary.json").read_text()) for side in ("source", "target"))
    assert source != target
    lines = list(read_lines(run.folder / "corpus" / "dev.aa"))
    ours, theirs = run.translator.best(lines, Search(beam=3)), load_exported(out).best(lines, Search(beam=3))
    assert sum(a.text == b.text for a, b in zip(ours, theirs, strict=True)) >= 194


# The commands


def test_files_and_streams_are_translated(
    run: TranslationRun, exported: Path, tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.aa").write_text("".join(line + "\n" for line in lines[:9]))
    told = CliRunner().invoke(app, ["translate", str(run.folder), "--input", str(tmp_path / "in.aa")])
    assert told.exit_code == 0, told.output
    assert told.stdout.split("\n")[:-1] == run.translations("test")[:9]
    streamed = CliRunner().invoke(
        app, ["translate", str(exported), "--beam", "2"], input="".join(f"{x}\n" for x in lines[:9])
    )
    assert streamed.exit_code == 0 and len(streamed.stdout.split("\n")) == 10
    best = CliRunner().invoke(
        app, ["translate", str(run.model_folder), "-i", str(tmp_path / "in.aa"), "--n-best", "2", "--beam", "3"]
    )
    assert best.exit_code == 0
    assert [line.partition(" ||| ")[0] for line in best.stdout.split("\n")[:4]] == ["0", "0", "1", "1"]


def test_translations_are_scored(run: TranslationRun, tmp_path: Path) -> None:
    corpus = run.folder / "corpus"
    told = CliRunner().invoke(
        app,
        ["translate", str(run.folder), "-i", str(corpus / "test.aa"), "--reference", str(corpus / "test.bb"),
         "--out", str(tmp_path / "out.bb")],
    )  # fmt: skip
    assert told.exit_code == 0, told.output
    assert f"{run.figures['test/tokenized_bleu']:6.2f}" in told.stderr and "tok:none" in told.stderr
    assert list(read_lines(tmp_path / "out.bb")) == run.translations("test")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "nowhere is not a folder"),
        (["RUN", "--backend", "ctranslate2"], "is not exported; make it so with: stackelberg export"),
        (["EXPORTED", "--backend", "transformers"], "is exported for ctranslate2"),
        (["RUN", "--backend", "marian"], "backend='marian' is not known"),
        (["RUN", "--n-best", "3", "--beam", "2"], "n_best=3 is more than beam=2 finds"),
        (["RUN", "-i", "nowhere.aa"], "nowhere.aa cannot be read"),
    ],
)
def test_mistakes_are_one_sentence(arguments: list[str], said: str, run: TranslationRun, exported: Path) -> None:
    places = {"RUN": str(run.folder), "EXPORTED": str(exported)}
    told = CliRunner().invoke(app, ["translate", *(places.get(each, each) for each in arguments)], input="hfi\n")
    assert said in str(told.exception)


def test_input_that_is_no_text_is_named_by_line(run: TranslationRun) -> None:
    told = CliRunner().invoke(app, ["translate", str(run.folder)], input=io.BytesIO(b"hfi\nna\xefve\n").getvalue())
    assert "standard input, line 2: not UTF-8" in str(told.exception)


def test_a_folder_without_our_notes_is_translated_too(run: TranslationRun, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(run.model_folder, tmp_path / "plain")
    (tmp_path / "plain" / "translation.json").unlink()
    assert load_translator(tmp_path / "plain").best(["hfi"], Search())[0].text
