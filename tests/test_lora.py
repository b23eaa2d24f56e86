"""LoRA, and causal language models that are tuned on the answers to prompts."""

from __future__ import annotations

from typing import Any

import peft
import pytest
import torch
from torch import Tensor

import zoo
from helping import Spy, error, gradient, plays
from stackelberg import METHODS, SALT, Game, create
from stackelberg.game.settings.perturbing import Perturbing

PERTURBING = [name for name, method in METHODS.items() if issubclass(method, Perturbing)]
LORA: dict[str, Any] = {"r": 3, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False}

in_both_forms = pytest.mark.parametrize("streamed", [False, True], ids=["loss", "streamed"])


def tuned(dtype: torch.dtype = torch.float64, **chosen: Any) -> tuple[Any, zoo.Batch]:
    """A Llama with LoRA that is not 0, and its batch of prompts and answers."""
    model, batch = zoo.build("causal", "llama", dtype=dtype)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **LORA | chosen))
    return adapted.to(dtype).train(), batch


def instruction_game(name: str, **settings: Any) -> Game:
    return create(name, perturb_prompt=False, epsilon=0.5, **settings)


@in_both_forms
@pytest.mark.parametrize("name", ["salt", "salt-adv", "vat", "freelb"])
def test_gradient_on_lora_is_the_full_gradient_seen_through_it(name: str, streamed: bool) -> None:
    """W = W₀ + s·BA, so ∂F/∂A = s Bᵀ ∂F/∂W and ∂F/∂B = s ∂F/∂W Aᵀ, with ∂F/∂W of the merged model."""
    adapted, batch = tuned()
    value, _, _ = plays(lambda: instruction_game(name), adapted, batch, streamed=streamed)
    found = {name: p.grad.clone() for name, p in adapted.named_parameters() if p.grad is not None}
    assert found and all("lora_" in name for name in found)
    assert {name for name, p in adapted.named_parameters() if p.requires_grad} == set(found)

    merged = tuned()[0].merge_and_unload().train()
    for p in merged.parameters():
        p.requires_grad_()
    merged_value, _, _ = plays(lambda: instruction_game(name), merged, batch, streamed=streamed)
    assert float(value) == pytest.approx(float(merged_value), rel=1e-9)
    checked = 0
    for path, module in adapted.named_modules():
        if not isinstance(module, peft.tuners.lora.Linear):
            continue
        whole = merged.get_submodule(path.removeprefix("base_model.model.")).weight.grad
        a, b = module.lora_A["default"].weight.detach(), module.lora_B["default"].weight.detach()
        scale = module.scaling["default"]
        assert error(found[f"{path}.lora_A.default.weight"], scale * b.T @ whole) < 1e-9
        assert error(found[f"{path}.lora_B.default.weight"], scale * whole @ a.T) < 1e-9
        checked += 1
    assert checked == 4  # q and v of two layers


@in_both_forms
@pytest.mark.parametrize("saved", [["lm_head"], ["embed_tokens"], ["embed_tokens", "lm_head"]], ids=",".join)
def test_modules_to_save_have_their_full_gradient(saved: list[str], streamed: bool) -> None:
    """They are copies that run instead of the originals, the perturbed embedding too."""
    adapted, batch = tuned(modules_to_save=saved)
    plays(lambda: instruction_game("salt"), adapted, batch, streamed=streamed)
    kept = {name: p for name, p in adapted.named_parameters() if p.grad is not None}
    assert all("lora_" in name or "modules_to_save" in name for name in kept)

    merged = tuned()[0].merge_and_unload().train()
    for p in merged.parameters():
        p.requires_grad_()
    plays(lambda: instruction_game("salt"), merged, batch, streamed=streamed)
    whole = {"lm_head": merged.lm_head.weight.grad, "embed_tokens": merged.model.embed_tokens.weight.grad}
    for module in saved:
        (copied,) = [p.grad for name, p in kept.items() if f"{module}.modules_to_save" in name]
        assert error(copied, whole[module]) < 1e-9


@pytest.mark.parametrize("name", ["salt", "smart", "rdrop"])
def test_lora_under_gradient_checkpointing(name: str) -> None:
    """With the embedding's output made to require a gradient, as transformers does for frozen embeddings."""
    settings: dict[str, Any] = {} if name == "rdrop" else {"perturb_prompt": False}
    found = []
    for checkpointing in (False, True):
        adapted, batch = tuned(torch.float32, lora_dropout=0.1)
        if checkpointing:
            zoo.checkpointed(adapted.base_model.model)
            adapted.enable_input_require_grads()
        found.append(plays(lambda: create(name, **settings), adapted, batch, streamed=False)[1])
    assert error(found[1], found[0]) < 1e-4


# --------------------------------------------------------------------------------------------------
# Prompts and padding


def padded_left(batch: zoo.Batch, extra: int) -> tuple[zoo.Batch, Tensor]:
    """Every row with its padding, and `extra` more of it, on the left; and where each position went, (B, L)."""
    lengths = batch["attention_mask"].sum(1)
    rows, longest = len(lengths), batch["input_ids"].shape[1]
    places = torch.arange(longest).expand(rows, -1) + (longest + extra - lengths)[:, None]
    real = batch["attention_mask"].bool()
    moved = {}
    for name, fill in (("input_ids", 0), ("attention_mask", 0), ("labels", -100)):
        field = batch[name].new_full((rows, longest + extra), fill)
        field[torch.arange(rows)[:, None].expand_as(places)[real], places[real]] = batch[name][real]
        moved[name] = field
    return moved, places


def move(delta: Tensor, places: Tensor, real: Tensor, length: int) -> Tensor:
    found = delta.new_zeros(len(delta), length, delta.shape[2])
    found[torch.arange(len(delta))[:, None].expand_as(places)[real], places[real]] = delta[real]
    return found


@in_both_forms
@pytest.mark.parametrize("perturb_prompt", [True, False])
@pytest.mark.parametrize("name", ["salt", "salt-adv", "vat", "smart"])
def test_left_and_right_padding_are_the_same_game(name: str, perturb_prompt: bool, streamed: bool) -> None:
    """Rotary positions are relative, so only what is padding, prompt and answer could tell the two apart."""
    adapted, batch = tuned()
    left, places = padded_left(batch, extra=2)
    real = batch["attention_mask"].bool()
    start = torch.randn(*real.shape, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) / 20
    settings = {"perturb_prompt": perturb_prompt, "epsilon": 0.5}
    make = lambda: create(name, **settings)  # noqa: E731
    right_value, on_the_right, _ = plays(make, adapted, batch, streamed=streamed, start=start)
    moved = move(start, places, real, left["input_ids"].shape[1])
    left_value, on_the_left, _ = plays(make, adapted, left, streamed=streamed, start=moved)
    assert float(left_value) == pytest.approx(float(right_value), rel=1e-9)
    assert error(on_the_left, on_the_right) < 1e-7
    if perturb_prompt:
        settings["perturb_prompt"] = False
        assert error(plays(make, adapted, batch, streamed=streamed, start=start)[1], on_the_right) > 1e-3


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", PERTURBING)
def test_only_answers_move(name: str, side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer's words but the last, which predicts nothing; no prompt, no padding."""
    adapted, batch = tuned()
    if side == "left":
        batch = padded_left(batch, extra=1)[0]
    spy = Spy(monkeypatch)
    game = instruction_game(name)
    for _ in range(2):  # FreeAT's δ begins at 0
        game.backward(adapted, batch)
        game.after_step()
    answer = batch["labels"] != -100
    last = answer & (answer.flip(1).cumsum(1).flip(1) == 1)
    moved = spy.perturbed[-1]["source"].any(-1)
    assert not moved[~answer].any()
    assert moved[answer & ~last].all()


@in_both_forms
def test_only_answers_count(streamed: bool) -> None:
    """N is the number of predicted answer words, the first of them included."""
    adapted, batch = tuned()
    count = int((batch["labels"][:, 1:] != -100).sum())
    make = lambda: SALT(perturb_prompt=False)  # noqa: E731
    value, expected, _ = plays(make, adapted, batch, streamed=streamed)
    again, same, _ = plays(make, adapted, batch, streamed=streamed, normalizer=count)
    assert float(again) == pytest.approx(float(value), rel=1e-12)
    assert error(same, expected) < 1e-9
    adapted.zero_grad()
    game = make()
    for part, index in zip(zoo.split(batch, 2), torch.arange(4).chunk(2), strict=True):  # unequal numbers of words
        game(adapted, part, normalizer=count, index=index).backward()
    assert error(gradient(adapted), expected) < 1e-6
