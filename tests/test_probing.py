"""Probing: features are the encoder's, a seed draws the same rows for every model, and nothing is computed twice."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from stackelberg.analysis import AnalysisError, save_figure
from stackelberg.analysis.frozen import FrozenEncoder
from stackelberg.analysis.probing import fit_head, probe, probing_task
from stackelberg.analysis.violins import violin_figure
from stackelberg.errors import SettingError
from stackelberg.nlu import DataError, Examples
from tiny import save_model, sentences, write_tsv


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MR in one file, TREC and MRPC in two."""
    home = tmp_path_factory.mktemp("data")
    write_tsv(home / "MR" / "all.tsv", ("text", "label"), sentences(200))
    write_tsv(home / "TREC" / "train.tsv", ("text", "label"), sentences(100))
    write_tsv(home / "TREC" / "test.tsv", ("text", "label"), sentences(30, seed=1))
    header = ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")
    for split, rows in (("train", 60), ("dev", 20)):
        pairs = [(label, 1, 2, text, "it is") for text, label in sentences(rows)]
        write_tsv(home / "MRPC" / f"{split}.tsv", header, pairs)
    return home


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_features_are_the_encoders_hidden_states(model: Path, pooling: str) -> None:
    texts = ("it is fine", "the plot is very very dull", "awful")
    found = FrozenEncoder(model, pooling=pooling).features(Examples(texts))  # type: ignore[arg-type]
    encoder, tokenizer = AutoModel.from_pretrained(model).eval(), AutoTokenizer.from_pretrained(model)
    for text, vector in zip(texts, found, strict=True):
        with torch.no_grad():
            hidden = encoder(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        expected = hidden[0] if pooling == "first" else hidden.mean(dim=0)
        assert vector == pytest.approx(expected.numpy(), abs=1e-5)  # rows of other lengths, and padding, do nothing


def test_pairs_are_read_as_pairs(model: Path) -> None:
    encoder = FrozenEncoder(model)
    alone = encoder.features(Examples(("it is fine",)))
    beside = encoder.features(Examples(("it is fine",), ("awful",)))
    assert not np.allclose(alone, beside)


def test_features_are_computed_once(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = Examples(("it is fine", "dull"))
    first = FrozenEncoder(model).features(examples, tmp_path)
    (kept,) = tmp_path.iterdir()
    times = []
    monkeypatch.setattr(FrozenEncoder, "_computed", lambda self, rows: times.append(rows) or first)
    assert (FrozenEncoder(model).features(examples, tmp_path) == first).all() and not times
    # other texts, another pooling and another model are not taken for these
    FrozenEncoder(model).features(Examples(("it is fine", "great")), tmp_path)
    FrozenEncoder(model, pooling="mean").features(examples, tmp_path)
    FrozenEncoder(model, max_length=8).features(examples, tmp_path)
    FrozenEncoder(save_model(tmp_path / "other", seed=1)).features(examples, tmp_path)
    assert len(times) == 4
    # a file that is not whole, or not what was written, is made anew
    for content in (kept.read_bytes()[:-5], b"", b"not an array"):
        kept.write_bytes(content)
        times.clear()
        assert (FrozenEncoder(model).features(examples, tmp_path) == first).all() and len(times) == 1
    np.save(kept, np.array([{"an": "object"}], dtype=object), allow_pickle=True)
    times.clear()
    assert (FrozenEncoder(model).features(examples, tmp_path) == first).all() and len(times) == 1


def test_what_a_seed_draws(data: Path) -> None:
    alone, split = probing_task("mr", data), probing_task("trec", data)
    assert (len(alone.examples), alone.tested, len(split.examples), split.tested) == (200, 0, 130, 30)
    fitted, tested = alone.rows(0)
    assert len(tested) == pytest.approx(20, abs=1) and not set(fitted) & set(tested)
    assert len(set(fitted) | set(tested)) == 200 and set(tested) != set(alone.rows(1)[1])
    shares = [alone.targets[rows].mean() for rows in (fitted, tested)]
    assert shares[0] == pytest.approx(shares[1], abs=0.05)  # classes keep theirs
    fitted, tested = split.rows(0)
    assert list(tested) == list(range(100, 130)) == list(split.rows(1)[1]) and max(fitted) < 100
    assert len(fitted) == pytest.approx(90, abs=1) and set(fitted) != set(split.rows(1)[0])
    assert (split.rows(3)[0] == split.rows(3)[0]).all()
    assert probing_task("mrpc", data).tested == 20 and "90%" in split.drawn and "10%" in alone.drawn


def test_a_probe_finds_what_is_there(model: Path, data: Path, tmp_path: Path) -> None:
    task, encoder = probing_task("mr", data), FrozenEncoder(model, pooling="mean")
    told: list[int] = []
    found = probe(encoder, task, seeds=4, cache=tmp_path, report=told.append)
    assert told == [0, 1, 2, 3] and len(found.accuracies) == 4 and found.unfinished == 0
    assert np.mean(found.accuracies) > 0.9  # which word is in a sentence can be read off its mean
    assert probe(FrozenEncoder(model, pooling="mean"), task, seeds=4, cache=tmp_path) == found
    assert len(list(tmp_path.iterdir())) == 1


def test_a_head_is_scikit_learns_and_a_constant_feature_does_no_harm() -> None:
    random = np.random.default_rng(0)
    features = random.normal(size=(60, 3)).astype(np.float32)
    features[:, 2] = 1.0
    targets = (features[:, 0] > 0).astype(int)
    head = fit_head(features, targets)
    assert (head.predict(features) == targets).mean() > 0.95 and head[-1].coef_[0, 2] == 0


def test_a_file_of_ones_own(model: Path, tmp_path: Path) -> None:
    path = write_tsv(tmp_path / "mine.tsv", ("words", "class"), [(t, "ab"[label]) for t, label in sentences(60)])
    task = probing_task(str(path), text="words", label="class")
    assert (task.title, len(task.examples), task.tested) == ("mine", 60, 0)
    assert len(probe(FrozenEncoder(model), task, seeds=2).accuracies) == 2


def test_bad_input_is_one_sentence(model: Path, data: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="did you mean 'trec'"):
        probing_task("trek", data)
    with pytest.raises(AnalysisError, match="scores"):
        write_tsv(tmp_path / "STS-B" / "dev.tsv", ("sentence1", "sentence2", "score"), [("a", "b", 1.0)])
        probing_task("sts-b", tmp_path)
    with pytest.raises(DataError, match="absent"):
        probing_task(str(tmp_path / "absent.tsv"))
    with pytest.raises(AnalysisError, match="no config"):
        FrozenEncoder(tmp_path)
    with pytest.raises(SettingError, match="pooling"):
        FrozenEncoder(model, pooling="cls")  # type: ignore[arg-type]
    with pytest.raises(AnalysisError, match="seeds=0"):
        probe(FrozenEncoder(model), probing_task("mr", data), seeds=0)


def test_violins_have_every_method_and_task(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    panels = {
        task: {method: list(0.8 + random.normal(size=10) * 0.01) for method in ("plain", "salt")}
        for task in ("CR", "MR", "SUBJ", "TREC")
    }
    panels["MRPC"] = {"plain": [0.7], "salt": [0.7, 0.7]}  # too few values for a violin
    figure = violin_figure(panels, title="Linear heads")
    assert [axes.get_title() for axes in figure.axes] == list(panels)
    assert all([tick.get_text() for tick in axes.get_xticklabels()] == ["plain", "salt"] for axes in figure.axes)
    assert [len(axes.collections) for axes in figure.axes][-2:] == [2 * 3, 2 * 2]
    for name in ("a.png", "a.svg"):
        save_figure(figure, tmp_path / name)
    assert ElementTree.parse(tmp_path / "a.svg").getroot().tag.endswith("svg")
    with pytest.raises(AnalysisError, match="nothing to draw"):
        violin_figure({"CR": {}})
