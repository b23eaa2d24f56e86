"""Models as they are trained: the loss, the pad that never is, where δ sits, and every family that can go on."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from stackelberg import create
from stackelberg.errors import DataError
from stackelberg.nmt.architectures import ARCHITECTURES, NEVER
from stackelberg.nmt.batches import of_sentences
from stackelberg.nmt.ctranslate import export, load_exported
from stackelberg.nmt.generating import load_translator
from stackelberg.nmt.model import in_space, load_model, positions, scale
from stackelberg.nmt.prepare import Prepared
from stackelberg.nmt.search import Search
from stackelberg.nmt.task import TranslationTask, likelihood, smoothed
from stackelberg.nmt.training import make_game
from tiny_translation import recipe, synthetic


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return synthetic(tmp_path_factory.mktemp("corpus"))


def model_of(prepared: Prepared, **changes: Any) -> Any:
    torch.manual_seed(0)
    return load_model("tiny", prepared.codec, **changes)


def batch_of(prepared: Prepared) -> dict[str, torch.Tensor]:
    codec = prepared.codec
    sources, targets = ["xba xde hba", "hfi"], ["kbast mde mba", "kfi"]
    return of_sentences(codec.sources(sources), codec.targets(targets), codec.tokenizer.pad_token_id)


# The loss


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("silent", [None, 6])
def test_the_loss_is_torchs_over_the_tokens_that_can_be(smoothing: float, silent: int | None) -> None:
    torch.manual_seed(0)
    z = torch.randn(3, 5, 7)
    labels = torch.randint(0, 6, (3, 5))
    labels[0, 3:] = labels[2, 1:] = -100
    if silent is not None:
        z[..., silent] = NEVER
    z.requires_grad_()
    loss = smoothed(z, labels, smoothing, silent)
    seen = z if silent is None else z[..., :silent]
    expected = cross_entropy(seen.flatten(0, 1), labels.flatten(), label_smoothing=smoothing)
    torch.testing.assert_close(loss, expected)
    found = torch.autograd.grad(loss, z)[0]
    torch.testing.assert_close(found, torch.autograd.grad(expected, z)[0])
    if silent is not None:
        assert not found[..., silent].any()
    total, tokens = likelihood(z, labels)
    torch.testing.assert_close(total / tokens, cross_entropy(seen.flatten(0, 1), labels.flatten()))


def test_padding_changes_nothing(prepared: Prepared) -> None:
    model, batch = model_of(prepared, dropout=0.0), batch_of(prepared)
    game = create("plain", task=TranslationTask.reading(model, 0.1))
    whole = game(model, batch)
    alone = [
        game(
            model,
            {
                "input_ids": b["input_ids"][:, :s],
                "attention_mask": b["attention_mask"][:, :s],
                "labels": b["labels"][:, :t],
            },
        )
        for b, s, t in (
            (
                ({k: v[i : i + 1] for k, v in batch.items()}),
                int(batch["attention_mask"][i].sum()),
                int((batch["labels"][i] != -100).sum()),
            )
            for i in (0, 1)
        )
    ]
    counts = [(batch["labels"][i] != -100).sum() for i in (0, 1)]
    expected = (alone[0] * counts[0] + alone[1] * counts[1]) / (counts[0] + counts[1])
    torch.testing.assert_close(whole, expected)


# The pad


@pytest.mark.parametrize("method", ["plain", "salt", "vat", "smart", "freelb", "adv", "rdrop", "r3f"])
def test_no_gradient_reaches_the_pad(method: str, prepared: Prepared) -> None:
    model, batch = model_of(prepared), batch_of(prepared)
    pad = model.config.pad_token_id
    assert pad == model.config.decoder_start_token_id == model.config.vocab_size - 1
    game = create(method, task=TranslationTask.reading(model, 0.1))
    model.train()
    game(model, batch).backward()
    table = model.model.shared.weight
    assert table.grad.abs().sum() > 0 and not table.grad[pad].any() and not table[pad].any()


def test_a_model_comes_back_as_it_was_saved(prepared: Prepared, tmp_path: Path) -> None:
    model, batch = model_of(prepared).eval(), batch_of(prepared)
    model.save_pretrained(tmp_path)
    prepared.codec.save(tmp_path)
    again = load_model(str(tmp_path), prepared.codec).eval()
    torch.testing.assert_close(again(**batch).logits, model(**batch).logits, rtol=0, atol=0)
    assert again.final_logits_bias[0, -1] == NEVER and positions(again) == 1024


@pytest.mark.parametrize("name", ["base", "iwslt", "big"])
def test_architectures_have_the_sizes_of_their_papers(name: str, prepared: Prepared) -> None:
    with torch.device("meta"):
        from stackelberg.nmt.architectures import untrained

        model = untrained(ARCHITECTURES[name], prepared.codec, dropout=None)
    body = sum(
        p.numel() for n, p in model.named_parameters() if "embed" not in n and "shared" not in n and "lm_head" not in n
    )
    expected = {"base": 44.1e6, "iwslt": 31.5e6, "big": 176.4e6}[name]
    assert body == pytest.approx(expected, rel=0.01)


# Where δ sits


def input_of_layers(model: Any, batch: dict[str, torch.Tensor], delta: float) -> torch.Tensor:
    """What the first encoder layer gets, with δ added to what the embedding puts out."""
    from stackelberg.game.huggingface import HuggingFaceTask

    seen = []
    module = HuggingFaceTask.of(model, {}).sides(model)["source"]
    stack = model.get_encoder()
    first = stack.layers[0] if hasattr(stack, "layers") else stack.block[0]
    handles = [
        module.register_forward_hook(lambda m, a, x: x + delta),
        first.register_forward_hook(
            lambda m, a, k, x: seen.append(a[0] if a else k["hidden_states"]), with_kwargs=True
        ),
    ]
    with torch.no_grad():
        model.eval()(**batch)
    for handle in handles:
        handle.remove()
    return seen[0]


@pytest.mark.parametrize(
    ("family", "factor", "after"), [("marian", 8.0, False), ("bart", 4.0, True), ("t5", 1.0, True)]
)
def test_the_scale_is_where_it_is_said_to_be(
    family: str, factor: float, after: bool, prepared: Prepared, tmp_path: Path
) -> None:
    model = model_of(prepared) if family == "marian" else pretrained(family, prepared, tmp_path)
    batch = batch_of(prepared)
    assert scale(model) == (factor, after)
    if family == "bart":  # normed between embedding and layers, so δ is looked at before
        model.model.encoder.layernorm_embedding = torch.nn.Identity()
    moved = input_of_layers(model, batch, 0.5) - input_of_layers(model, batch, 0.0)
    torch.testing.assert_close(moved, torch.full_like(moved, 0.5 * (1.0 if after else factor)), rtol=1e-4, atol=1e-4)


def test_lengths_in_both_spaces_are_one_game(prepared: Prepared, tmp_path: Path) -> None:
    model, batch = model_of(prepared, dropout=0.0), batch_of(prepared)
    factor = math.sqrt(64)
    for settings in (
        {"epsilon": 0.3, "init_std": 0.01},
        {"epsilon": 0.3, "init_std": 0.01, "ascent": "sgd", "step_size": 0.4},
        {"epsilon": 0.3, "init_std": 0.01, "ascent": "normalized", "step_size": 0.1},
    ):
        stretched = {name: value * factor for name, value in settings.items() if isinstance(value, float)}
        if settings.get("ascent") == "sgd":
            stretched["step_size"] = 0.4 * factor**2
        values = []
        for space, these in (("lookup", settings), ("input", {**settings, **stretched})):
            game = make_game(recipe(tmp_path, method="salt", settings=these, space=space), model)
            model.train()
            values.append(game(model, batch).detach())
        torch.testing.assert_close(values[0], values[1])
    assert in_space({}, "input", model, 1.0) == {"epsilon": 1 / factor}
    assert in_space({"relative": True, "epsilon": 0.1}, "input", model, 0.1) == {"relative": True, "epsilon": 0.1}
    assert in_space({"epsilon": 0.1}, "lookup", model, 0.1) == {"epsilon": 0.1}


# Families


def pretrained(family: str, prepared: Prepared, folder: Path) -> Any:
    """A random tiny model of a family in a folder, with our tokenizer, loaded as any other."""
    import transformers

    size = len(prepared.codec.tokenizer)
    ids = {"vocab_size": size, "pad_token_id": size - 1, "eos_token_id": 0, "decoder_start_token_id": size - 1}
    stack = {
        "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 64,
        "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "attention_dropout": 0.0,
    }  # fmt: skip
    torch.manual_seed(0)
    built: Any
    if family == "t5":
        built = transformers.T5ForConditionalGeneration(
            transformers.T5Config(d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, **ids)
        )
    elif family == "bart":
        built = transformers.BartForConditionalGeneration(
            transformers.BartConfig(scale_embedding=True, bos_token_id=2, forced_eos_token_id=None, **stack, **ids)
        )
    else:
        built = transformers.M2M100ForConditionalGeneration(
            transformers.M2M100Config(
                scale_embedding=True, bos_token_id=2, **{**stack, **ids, "max_position_embeddings": 128}
            )
        )
    built.save_pretrained(folder / family)
    prepared.codec.save(folder / family)
    if family == "bart":  # whose tokenizers have a first token
        said = folder / family / "tokenizer_config.json"
        said.write_text(json.dumps({**json.loads(said.read_text()), "bos_token": "</s>"}))
    return load_model(str(folder / family), prepared.codec, dropout=0.0)


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_pretrained_families_are_exported(family: str, prepared: Prepared, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    pretrained(family, prepared, tmp_path)
    out = export(tmp_path / family, tmp_path / "out")
    lines, how = ["xba hfi", "xde xde hba"], Search(beam=2, scored=True)
    ours, theirs = load_translator(tmp_path / family).best(lines, how), load_exported(out).best(lines, how)
    assert [one.score for one in ours] == pytest.approx([one.score for one in theirs], rel=0.02)


def test_a_model_that_cannot_be_served_is_one_sentence(prepared: Prepared, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    pretrained("m2m_100", prepared, tmp_path)  # whose tokenizer here has no first token
    with pytest.raises(DataError, match="CTranslate2 cannot load"):
        load_exported(export(tmp_path / "m2m_100", tmp_path / "out"))


@pytest.mark.parametrize("family", ["t5", "bart", "m2m_100"])
def test_pretrained_families_play(family: str, prepared: Prepared, tmp_path: Path) -> None:
    model, batch = pretrained(family, prepared, tmp_path), batch_of(prepared)
    assert {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)} <= {0.0}
    model.train()
    plain = create("plain", task=TranslationTask.reading(model, 0.0))(model, batch)
    torch.testing.assert_close(plain, model(**batch).loss)
    game = create("salt", task=TranslationTask.reading(model, 0.1))
    game(model, batch).backward()
    assert game.report is not None and float(game.report.divergence) > 0  # type: ignore[arg-type]
