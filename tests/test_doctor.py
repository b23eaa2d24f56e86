"""The doctor: what it finds of an installation and of models of every head, and one sentence for all that is bad."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from click.testing import Result
from torch import Tensor, nn
from typer.testing import CliRunner

import zoo
from stackelberg import METHODS, Game
from stackelberg.cli import app
from stackelberg.doctor import cost, gradients, installation
from stackelberg.doctor.faithfulness import Faithfulness, judged
from stackelberg.doctor.finding import Finding, exit_code
from stackelberg.doctor.memory import peak
from stackelberg.doctor.patient import guess_head, load
from stackelberg.game.game import Play
from stackelberg.game.round import Round

# folder → (kind of task in the zoo, architecture); the head is to be guessed
FOLDERS = {
    "bert": ("classification", "bert"),
    "tagger": ("token", "bert"),
    "gpt2": ("causal", "gpt2"),
    "llama": ("causal", "llama"),
    "t5": ("seq2seq", "t5"),
    "marian": ("seq2seq", "marian"),
    "bart": ("classification", "bart"),
}
SMALL = ["--rows", "2", "--tokens", "6"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name, (kind, arch) in FOLDERS.items():
        model, _ = zoo.build(kind, arch, dtype=torch.float32, dropout=0.1)
        model.save_pretrained(folder / name)
    return folder


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["doctor", *map(str, arguments)])


def examined(*arguments: object) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The JSON document, and its findings by topic."""
    outcome = run(*arguments, "--json")
    document: dict[str, Any] = json.loads(outcome.stdout)
    assert outcome.exit_code == document["exit_code"]
    return document, {finding["topic"]: finding for finding in document["findings"]}


def refused(*arguments: object) -> str:
    """The one sentence of something that cannot work."""
    outcome = run(*arguments)
    assert outcome.exit_code == 2 and "Traceback" not in outcome.output
    lines = [line for line in outcome.output.splitlines() if "✗" in line]
    assert len(lines) == 1, outcome.output
    return lines[0]


# --------------------------------------------------------------------------------------------------
# The installation


def test_this_installation_works() -> None:
    document, found = examined()
    assert document["exit_code"] == 0 and document["recommended"] is None
    assert {"python", "torch", "transformers", "cpu", "compiler", "extra.hf"} <= set(found)
    assert set(found["methods"]["facts"]["played"]) == set(METHODS)


def test_lines_are_marked() -> None:
    outcome = run()
    assert outcome.exit_code == 0
    assert f"✓ torch {metadata.version('torch')}" in outcome.output


def test_another_version_is_named_with_the_command_that_fixes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version
    old = {"torch": "2.0.0", "transformers": "4.1"}
    monkeypatch.setattr(metadata, "version", lambda name: old.get(name) or real(name))
    found = {finding.topic: finding for finding in (*installation.versions(), *installation.extras())}
    assert found["torch"].level == found["transformers"].level == "failure"
    assert found["torch"].says.endswith("pip install -U 'torch>=2.11'")
    assert found["extra.hf"].level == "warning" and found["extra.peft"].level == "ok"


def test_an_extra_that_is_not_installed_gives_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version

    def version(name: str) -> str:
        if name == "peft":
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    lacking = next(finding for finding in installation.extras() if finding.topic == "extra.peft")
    assert lacking.level == "note" and lacking.says.endswith("pip install 'stackelberg[peft]'")


def test_a_missing_compiler_is_only_noted_where_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    (without,) = installation.compiler()
    assert without.level == ("warning" if torch.cuda.is_available() else "note") and "g++" in without.says


def test_a_gpu_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="Some GPU", total_memory=80 * 2**30, major=9)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    gpu, _ = installation.devices()
    assert gpu.says == "GPU 0: Some GPU, 80 GiB, bfloat16 yes, TF32 yes"


@pytest.fixture
def broken_method() -> Iterator[str]:
    class Broken(Game):
        """Raises."""

        name: ClassVar[str] = "broken"

        def play(self, round: Round) -> Play:
            raise RuntimeError("nothing to play")
            yield

    yield Broken.name
    del METHODS[Broken.name]


def test_a_method_that_cannot_play_is_named(broken_method: str) -> None:
    document, found = examined()
    assert document["exit_code"] == 2
    assert "nothing to play" in found["method.broken"]["says"]
    assert broken_method not in found["methods"]["facts"]["played"]


# --------------------------------------------------------------------------------------------------
# Models


@pytest.mark.parametrize("name", FOLDERS)
def test_a_model_is_examined(name: str, models: Path) -> None:
    document, found = examined(models / name, *SMALL)
    assert document["exit_code"] == 0, document
    assert ("embeddings.target" in found) == (name in ("t5", "marian", "bart"))
    for product in ("double_backward", "forward_over_reverse", "differences"):
        assert found[f"product.{product}"]["facts"]["works"]
    assert found["product.forward_over_reverse"]["facts"]["agreement"] > 0.999
    assert found["dropout"]["facts"]["divergence"] == 0 and found["dropout"]["facts"]["noise"] > 0
    plain, vat, salt = (found[f"cost.{game}"]["facts"] for game in ("plain", "VAT, K = 1", "SALT, K = 1"))
    assert plain["seconds"] > 0 and plain["bytes"] <= vat["bytes"] <= salt["bytes"]
    assert found["fidelity"]["facts"]["worst"] > 0.99
    assert document["recommended"]["method"] == "salt"
    assert ("embeddings.scale" in found) == (name == "marian")


def test_a_recommendation_can_be_played(models: Path) -> None:
    from stackelberg import create

    document, _ = examined(models / "bert", *SMALL, "--steps", "2")
    game = create(document["recommended"]["method"], **document["recommended"]["settings"])
    model, batch = zoo.build("classification", "bert", dtype=torch.float32)
    assert game.settings["steps"] == 2 and torch.isfinite(game(model, batch))


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precisions(precision: str, models: Path) -> None:
    document, found = examined(models / "bert", *SMALL, "--precision", precision)
    assert document["exit_code"] == 0
    assert "fidelity" in found and precision in found["fidelity"]["says"]


def test_sentences_of_ones_own(models: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers import models as kinds
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(kinds.WordLevel({"[PAD]": 0, "[UNK]": 1, "one": 5, "line": 6}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    zoo.build("classification", "bert", dtype=torch.float32)[0].save_pretrained(tmp_path)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
    fast.save_pretrained(tmp_path)
    lines = tmp_path / "lines.txt"
    lines.write_text("one line of five words\n\nanother line\n", encoding="utf-8")
    _, found = examined(tmp_path, "--text", lines)
    assert found["embeddings.source"]["facts"]["shape"] == [2, 5, 16]
    assert "has no line of text" in refused(tmp_path, "--text", _written(tmp_path / "empty.txt", "\n"))
    assert "cannot be read" in refused(tmp_path, "--text", tmp_path / "absent.txt")
    assert "knows no word" in refused(models / "t5", "--text", lines)
    assert "tokenizer" in refused(models / "gpt2", "--text", lines)


def test_warnings_fail_only_if_strict(models: Path, tmp_path: Path) -> None:
    """GPT-2 as a classifier, whose configuration names no padding token."""
    model, _ = zoo.build("causal", "gpt2", dtype=torch.float32)
    model.config.pad_token_id = None
    model.save_pretrained(tmp_path)
    arguments = [tmp_path, "--head", "sequence-classification", *SMALL]
    document, found = examined(*arguments)
    assert document["exit_code"] == 0 and found["model.padding"]["level"] == "warning"
    assert found["model"]["facts"]["new"] == ["score.weight"]
    assert run(*arguments, "--strict").exit_code == 1


@pytest.mark.parametrize(
    ("failing", "code", "method", "product"),
    [
        (["double_backward"], 0, "salt", "forward_over_reverse"),
        (["double_backward", "forward_over_reverse"], 0, "salt", "differences"),
        (["double_backward", "forward_over_reverse", "differences"], 2, "vat", None),
    ],
)
def test_the_best_way_that_works_is_recommended(
    failing: list[str], code: int, method: str, product: str | None, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = gradients.interaction

    def interaction(patient: Any, name: Any, steps: int) -> Any:
        if name in failing:
            raise RuntimeError("derivative is not implemented")
        return real(patient, name, steps)

    monkeypatch.setattr(gradients, "interaction", interaction)
    document, found = examined(models / "bert", *SMALL)
    assert document["exit_code"] == code
    assert document["recommended"]["method"] == method
    assert document["recommended"]["settings"].get("product") == product
    assert "not implemented" in found["product.double_backward"]["says"]


def test_noise_that_does_not_replay_is_found(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that draws from a generator of its own."""
    from transformers import BertForSequenceClassification

    class NoisyForSequenceClassification(BertForSequenceClassification):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.own = torch.Generator().manual_seed(0)
            self.dropout = Own(self.own)

    class Own(nn.Module):
        def __init__(self, generator: torch.Generator) -> None:
            super().__init__()
            self.generator = generator

        def forward(self, x: Tensor) -> Tensor:
            return x + 0.1 * torch.randn(x.shape, generator=self.generator)

    monkeypatch.setattr("transformers.AutoModelForSequenceClassification", NoisyForSequenceClassification)
    monkeypatch.setattr(
        NoisyForSequenceClassification, "from_config", classmethod(lambda cls, config, **_: cls(config)), raising=False
    )
    _, found = examined(models / "bert", *SMALL)
    assert found["dropout"]["level"] == "warning" and "dropout='off'" in found["dropout"]["says"]


def test_a_method_that_does_not_fit_leaves_the_others_measured(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = cost._step

    def step(patient: Any, game: Game) -> None:
        if game.name == "salt":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        real(patient, game)

    monkeypatch.setattr(cost, "_step", step)
    document, found = examined(models / "bert", *SMALL)
    assert document["exit_code"] == 2 and "not enough memory" in found["cost.SALT, K = 1"]["says"]
    assert found["cost.VAT, K = 1"]["facts"]["seconds"] > 0


def test_sentences_of_the_wrong_sign_are_counted(models: Path) -> None:
    patient = load(str(models / "bert"), None)
    patient.precision = "bfloat16"
    good, turned = Faithfulness(0.4, 0.999, 0.998, 0.0, 0), Faithfulness(0.4, 0.999, -0.998, 0.25, 1)
    assert judged(patient, good).level == "ok" and not turned.doubtful
    found = judged(patient, turned)
    assert found.level == "warning" and "1 with the wrong sign" in found.says
    none = Faithfulness(0.4, float("nan"), float("nan"), 1.0, 0)
    assert none.doubtful and "SALT is VAT here" in judged(patient, none).says


# --------------------------------------------------------------------------------------------------
# What cannot work


def _written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_what_is_not_a_model(models: Path, tmp_path: Path) -> None:
    assert "no folder ./nothing" in refused("./nothing")
    assert "no config.json" in refused(tmp_path)
    assert "MODEL is empty" in refused("")
    assert "is a file" in refused(_written(tmp_path / "model.bin", ""))
    _written(tmp_path / "config.json", '{"model_type": "perpetuum-mobile"}')
    assert "describes no model that is known" in refused(tmp_path)
    _written(tmp_path / "config.json", "{")
    assert "describes no model that is known" in refused(tmp_path)
    _written(tmp_path / "config.json", (models / "bert" / "config.json").read_text(encoding="utf-8"))
    assert "weights" in refused(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    assert "weights" in refused(tmp_path)
    _written(tmp_path / "adapter_config.json", "{}")
    assert "adapter" in refused(tmp_path)


def test_a_name_that_the_hub_does_not_give(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoConfig

    def offline(name: str, **_: object) -> None:
        raise OSError("We couldn't connect\nto the hub")

    monkeypatch.setattr(AutoConfig, "from_pretrained", offline)
    assert "no folder here" in refused("somebody/something")


def test_what_does_not_go_together(models: Path) -> None:
    assert "no token head" in refused(models / "marian", "--head", "token")
    assert "32 positions" in refused(models / "bert", "--tokens", "33")
    for bad in (["--rows", "0"], ["--head", "foot"], ["--precision", "float8"], ["--steps", "one"]):
        assert run(models / "bert", *bad).exit_code == 2


def test_a_model_too_large_for_the_machine(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stackelberg.doctor.patient.available", lambda device: 1000)
    assert "larger machine" in refused(models / "bert")


def test_fidelity_is_left_out_where_it_does_not_fit(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stackelberg.doctor.faithfulness.available", lambda device: 1000)
    document, found = examined(models / "bert", *SMALL)
    assert document["exit_code"] == 0 and found["fidelity"]["level"] == "note"


# --------------------------------------------------------------------------------------------------
# Parts


@pytest.mark.parametrize(
    ("kind", "architectures", "head"),
    [
        ("bert", None, "sequence-classification"),
        ("bert", ["BertForMaskedLM"], "sequence-classification"),
        ("gpt2", ["GPT2Model"], "causal"),
        ("gpt2", ["GPT2ForSequenceClassification"], "sequence-classification"),
        ("t5", None, "seq2seq"),
    ],
)
def test_the_head_is_guessed(kind: str, architectures: list[str] | None, head: str) -> None:
    from transformers import AutoConfig

    config = AutoConfig.for_model(kind)
    config.architectures = architectures
    assert guess_head(config) == head


def test_severity() -> None:
    ok, warned, failed = (Finding(level, "topic", "") for level in ("ok", "warning", "failure"))  # type: ignore[arg-type]
    assert [exit_code([ok], True), exit_code([ok, warned], True), exit_code([ok, warned], False)] == [0, 1, 0]
    assert exit_code([failed, warned], False) == 2


def test_peak_memory_is_counted_exactly() -> None:
    held = torch.zeros(1000)

    def work() -> None:
        for _ in range(3):
            a = held + 1  # 4000 bytes
            b = a * 2  # 4000 more, and a goes
            del a
            (b[:10].exp() + held[:10]).sum()  # a view makes none; 40 + 40 + 4
            del b

    assert peak(work, [held], torch.device("cpu")) == 8000
