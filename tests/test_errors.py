"""Every mistake gets one sentence that names what was given, and gets it before any work is done."""

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import zoo
from helping import error, gradient, grown, plays
from stackelberg import (
    METHODS,
    R3F,
    SALT,
    SMART,
    VAT,
    Adv,
    FreeAT,
    FreeLB,
    Game,
    ModelError,
    NonFiniteLossError,
    Plain,
    RDrop,
    SALTAdv,
    SettingError,
    StackelbergError,
    Task,
    create,
)
from stackelberg.game.labels import checking_labels

in_both_forms = pytest.mark.parametrize("streamed", [False, True], ids=["loss", "streamed"])


def sentence(caught: Any, *parts: str) -> None:
    """One line that says all of `parts`, and has nothing of Python's internals."""
    message = str(caught.value)
    assert "\n" not in message and len(message) < 400, message
    for part in parts:
        assert part in message, f"{part!r} is not in {message!r}"


def play(game: Game, model: Any, batch: Any, streamed: bool) -> None:
    if streamed:
        game.backward(model, batch)
    else:
        game(model, batch)


def counted(model: nn.Module) -> list[int]:
    """Grows by one at each forward pass that begins."""
    passes: list[int] = []
    model.register_forward_pre_hook(lambda module, args: passes.append(1))
    return passes


def refused_before_any_pass(game: Game, model: nn.Module, batch: Any, streamed: bool, *parts: str) -> None:
    passes = counted(model)
    with pytest.raises(StackelbergError) as caught:
        play(game, model, batch, streamed)
    sentence(caught, *parts)
    assert not grown(model) and all(p.grad is None for p in model.parameters())
    assert not passes, "a forward pass was run first"


# --------------------------------------------------------------------------------------------------
# Settings

NAN, INF = float("nan"), float("inf")
BAD: list[tuple[type[Game], str, list[Any]]] = [
    (SALT, "steps", [-1, 1.0, 1.5, True, "2", None]),
    (VAT, "steps", [-1, 0.5]),
    (FreeLB, "steps", [0, -1, 1.0, True]),
    (SALT, "epsilon", [0, 0.0, -1.0, NAN, INF, True, "1"]),
    (FreeAT, "epsilon", [0, -1.0]),
    (SALT, "init_std", [-1e-5, NAN, INF, "small"]),
    (R3F, "init_std", [-1e-5, NAN]),
    (SALT, "init_radius", [-0.1, NAN, None]),
    (SALT, "step_size", [0, -0.1, NAN, INF]),
    (FreeAT, "step_size", [0, NAN]),
    (SALT, "weight", [-1.0, NAN, INF, None]),
    (RDrop, "weight", [-1.0]),
    (SALT, "norm", ["l1", "L2", None, 2]),
    (SALT, "per", ["batch", "word", None]),
    (SALT, "start_noise", ["gaussian", None]),
    (SALT, "ascent", ["adamw", "pgd", None]),
    (FreeAT, "ascent", ["sgd", "adam"]),
    (SALT, "divergence", ["kld", "l2", 3]),
    (SMART, "divergence", ["symmetric-kl"]),
    (SALT, "product", ["hessian", "double-backward", None]),
    (SALTAdv, "product", ["difference"]),
    (SALT, "gradient", ["unroll", "stackelberg", None, True]),
    (SALT, "radius_of_differences", [0, -1e-3, NAN]),
    (SALT, "dropout", ["share", "on", None, 0.1]),
    (RDrop, "dropout", ["shared", "off"]),
    (SALT, "reduction", ["mean", "sum", None]),
    (SALT, "every", [0, -1, 1.5, True]),
    (SALT, "start_step", [-1, 0.5, None]),
    (SALT, "ramp", [-1, 0.5, None]),
    (SALT, "sides", [("sauce",), ("source", "decoder"), "source", ()]),
    (SALT, "seed", [1.5, "0", None, NAN]),
    (FreeLB, "form", ["regularised", None]),
    (FreeAT, "replays", [0, -1, 2.0, True]),
    (SMART, "proximal_weight", [-1.0, NAN]),
    (SMART, "momentum", [-0.1, 1.1, NAN, None]),
    (SMART, "later_momentum", [1.5]),
    (SMART, "switch_step", [-1, 0.1]),
]


@pytest.mark.parametrize(
    ("method", "name", "value"),
    [
        pytest.param(method, name, value, id=f"{method.name}-{name}-{value!r}")
        for method, name, values in BAD
        for value in values
    ],
)
def test_bad_setting_is_refused(method: type[Game], name: str, value: Any) -> None:
    """When the game is made, by the setting's name and its value."""
    with pytest.raises(SettingError) as caught:
        method(**{name: value})
    assert isinstance(caught.value, ValueError)
    shown = repr(value) if not isinstance(value, tuple) or not value else ""
    sentence(caught, name, shown)


@pytest.mark.parametrize(
    ("given", "setting", "meant"),
    [("l_2", "norm", "l2"), ("normalised", "ascent", "normalized"), ("klx", "divergence", "kl")],
)
def test_near_miss_is_suggested(given: str, setting: str, meant: str) -> None:
    with pytest.raises(SettingError) as caught:
        create("salt", **{setting: given})
    sentence(caught, f"did you mean {meant!r}")


class Nonsense:
    """What no setting should take."""


def test_every_setting_is_checked() -> None:
    """No setting of any method takes an object that means nothing."""
    unchecked = set()
    for name in METHODS:
        for setting in [*create(name).settings, "task"]:
            try:
                create(name, **{setting: Nonsense()})
            except SettingError:
                continue
            except Exception as error:
                unchecked.add(f"{setting} ({type(error).__name__})")
            else:
                unchecked.add(setting)
    assert not unchecked


@pytest.mark.parametrize("make", [SALT, SALTAdv])
def test_anticipating_a_sign_is_refused(make: type[Game]) -> None:
    """It has no derivative; without anticipation it is allowed."""
    with pytest.raises(SettingError) as caught:
        make(ascent="sign")  # type: ignore[call-arg]
    sentence(caught, "ascent='sign'", "no derivative", "vat")
    make(ascent="sign", gradient="none")  # type: ignore[call-arg]
    make(ascent="sign", steps=0)  # type: ignore[call-arg]
    VAT(ascent="sign")


def test_sgd_needs_a_step_size() -> None:
    with pytest.raises(SettingError) as caught:
        SALT(ascent="sgd")
    sentence(caught, "ascent='sgd'", "step_size")
    SALT(ascent="sgd", step_size=0.1)


# --------------------------------------------------------------------------------------------------
# Batches


@pytest.mark.parametrize(
    ("name", "divergence"),
    [
        ("salt", "kl"),
        ("vat", "js"),
        ("smart", "kl"),
        ("r3f", "symmetric_kl"),
        ("rdrop", "kl"),
        ("freelb", "kl"),
    ],
)
def test_distributions_of_a_single_value_are_refused(name: str, divergence: str) -> None:
    """A KL on a regression head is always 0."""
    model, batch = zoo.build("regression", "bert", dropout=0.1)
    form = {"form": "regularized"} if name == "freelb" else {}
    game = create(name, divergence=divergence, **form)
    refused_before_any_pass(game, model, batch, False, f"divergence={divergence!r}", "regression", "mse")
    model, batch = zoo.build("regression", "bert", dropout=0.1)
    create(name, divergence="mse", **form).backward(model, batch)


@pytest.mark.parametrize("make", [Adv, SALTAdv, FreeLB, FreeAT], ids=lambda make: make.__name__)
@pytest.mark.parametrize(("kind", "arch"), [("causal", "gpt2"), ("span", "bert")])
@in_both_forms
def test_methods_on_labels_need_them(make: type[Game], kind: str, arch: str, streamed: bool) -> None:
    model, batch = zoo.build(kind, arch)
    batch = {name: x for name, x in batch.items() if name not in ("labels", "start_positions", "end_positions")}
    refused_before_any_pass(make(), model, batch, streamed, "no labels")


def packed(how: str) -> tuple[Any, zoo.Batch]:
    """Two sequences in each row."""
    model, batch = zoo.build("causal", "llama")
    batch["attention_mask"][:] = 1
    if how == "position_ids":
        batch["position_ids"] = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 4]).expand(4, -1)
        del batch["attention_mask"]
    else:
        batch[how] = torch.tensor([0, 4, 9], dtype=torch.int32)
    return model, batch


@pytest.mark.parametrize("name", ["salt", "vat", "adv", "salt-adv", "smart", "r3f", "freelb", "freeat"])
@pytest.mark.parametrize("how", ["position_ids", "cu_seq_lens_q"])
def test_packed_sequences_are_refused(name: str, how: str) -> None:
    """Two sentences of a row would share a ball."""
    model, batch = packed(how)
    refused_before_any_pass(create(name), model, batch, False, how, "packs", 'per="token"')


@pytest.mark.parametrize("name", ["salt", "freelb", "freeat"])
@pytest.mark.parametrize("how", ["range", "left padding", "per token"])
def test_position_ids_of_one_sequence_are_not_packing(name: str, how: str) -> None:
    """An explicit range; left padding, whose pads transformers numbers 1; a ball for each token."""
    model, batch = packed("position_ids")
    if how == "range":
        batch["position_ids"] = torch.arange(9).expand(4, -1)
    if how == "left padding":
        batch["position_ids"] = torch.tensor([[1, 1, 1, 0, 1, 2, 3, 4, 5]] * 4)
        batch["attention_mask"] = (torch.arange(9) >= 3).long().expand(4, -1)
    create(name, per="token" if how == "per token" else "sentence").backward(model, batch)


@in_both_forms
def test_mask_of_another_rank_is_refused(streamed: bool) -> None:
    """A 3-D attention mask does not say which tokens are real."""
    model, batch = zoo.build("classification", "bert")
    batch["attention_mask"] = batch["attention_mask"][:, None].expand(-1, 9, -1)
    refused_before_any_pass(SALT(), model, batch, streamed, "attention_mask", "(4, 9, 9)")


@pytest.mark.parametrize("bad", [-1, 3])
@pytest.mark.parametrize("name", ["plain", "salt", "vat"])
def test_labels_out_of_range_are_refused_by_name(name: str, bad: int) -> None:
    """By the number of classes, before a pass; −100 is in range."""
    model, batch = zoo.build("classification", "bert")
    batch["labels"][2] = bad
    refused_before_any_pass(create(name), model, batch, False, f"label is {bad}", "3 classes")
    model, batch = zoo.build("classification", "bert")
    batch["labels"][2] = -100
    create(name).backward(model, batch)


def test_collator_refuses_labels_out_of_range() -> None:
    """Where a device would only assert."""

    def collate(labels: list[int]) -> zoo.Batch:
        return {"labels": torch.tensor(labels)}

    checked = checking_labels(collate, classes=3)
    assert torch.equal(checked([0, 2, -100])["labels"], torch.tensor([0, 2, -100]))
    for bad in (3, -1):
        with pytest.raises(ModelError) as caught:
            checked([0, bad])
        sentence(caught, f"label is {bad}", "3 classes", "num_labels")


def test_batch_that_is_no_mapping_is_refused() -> None:
    model, batch = zoo.build("classification", "bert")
    with pytest.raises(ModelError) as caught:
        SALT()(model, tuple(batch.values()))
    sentence(caught, "mapping", "tuple")


@in_both_forms
def test_sentence_reduction_needs_both_denominators(streamed: bool) -> None:
    model, batch = zoo.build("causal", "gpt2")
    game = SALT(reduction="sentences")
    with pytest.raises(SettingError) as caught:
        (game.backward if streamed else game)(model, batch, normalizer=7)
    sentence(caught, 'reduction="sentences"', "normalizer=(tokens, sentences)")
    game.backward(model, batch, normalizer=(7, 4))


def test_tokens_cannot_be_left_out_unseen() -> None:
    """`exclude_tokens` without ids, and a prompt where nothing marks one."""
    task = Task("classification", lambda m, b: m(b["ids"]), lambda z, b: cross_entropy(z, b["y"]))
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 2))
    batch = {"ids": torch.zeros(2, 3, dtype=torch.long), "y": torch.tensor([0, 1])}
    with pytest.raises(SettingError) as caught:
        SALT(task=task, exclude_tokens=(0,))(model, batch)
    sentence(caught, "exclude_tokens", "ids")
    bert, batch = zoo.build("classification", "bert")
    with pytest.raises(SettingError) as caught:
        SALT(perturb_prompt=False)(bert, batch)
    sentence(caught, "perturb_prompt=False", "causal")


# --------------------------------------------------------------------------------------------------
# Models


class Words(nn.Module):
    """A module that describes nothing of itself."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.words(ids).sum((1, 2))


@pytest.mark.parametrize("name", METHODS)
def test_module_without_a_task_is_refused(name: str) -> None:
    with pytest.raises(ModelError) as caught:
        create(name)(Words(), {"ids": torch.zeros(2, 3, dtype=torch.long)})
    assert isinstance(caught.value, TypeError)
    sentence(caught, "Words", "not a Hugging Face model", "task=Task(")


def test_unknown_kind_of_task_is_refused() -> None:
    with pytest.raises(SettingError) as caught:
        Task("clasification", lambda m, b: b, lambda z, b: z)  # type: ignore[arg-type]
    sentence(caught, "'clasification'", "did you mean 'classification'")


@in_both_forms
def test_unknown_head_is_refused(streamed: bool) -> None:
    """A bare encoder has no task."""
    model, batch = zoo.build("classification", "bert")
    del batch["labels"]
    refused_before_any_pass(SALT(), model.bert, batch, streamed, "BertModel", "task=Task(")


@in_both_forms
def test_model_without_embeddings_is_refused(streamed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = zoo.build("classification", "bert")
    monkeypatch.setattr(type(model), "get_input_embeddings", lambda self: None)
    refused_before_any_pass(SALT(), model, batch, streamed, "no input embeddings", type(model).__name__)


@in_both_forms
def test_data_parallel_is_refused(streamed: bool) -> None:
    model, batch = zoo.build("classification", "bert")
    refused_before_any_pass(SALT(), nn.DataParallel(model), batch, streamed, "DataParallel", "Distributed")


@pytest.mark.parametrize("how", ["engine", "zero"])
@in_both_forms
def test_deepspeed_is_refused(how: str, streamed: bool) -> None:
    model, batch = zoo.build("classification", "bert")
    if how == "engine":
        wrapper = type("DeepSpeedEngine", (nn.Sequential,), {})(model)
    else:
        wrapper = model
        next(model.parameters()).ds_id = 0
    refused_before_any_pass(SALT(), wrapper, batch, streamed, "DeepSpeed", "DDP")


@pytest.fixture
def alone(tmp_path: Any) -> Iterator[None]:
    """A process group of one."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("static", [False, True])
@in_both_forms
def test_static_graph_is_refused(static: bool, streamed: bool) -> None:
    """DDP records one backward and replays it; without that it is welcome."""
    model, batch = zoo.build("classification", "bert")
    wrapped = nn.parallel.DistributedDataParallel(model, static_graph=static)
    if static:
        refused_before_any_pass(SALT(), wrapped, batch, streamed, "static_graph=True", "DDP")
        return
    if streamed:
        SALT().backward(wrapped, batch)
    else:
        SALT()(wrapped, batch).backward()
    found = gradient(model)
    model.zero_grad()
    SALT().backward(model, batch)
    assert torch.allclose(found, gradient(model), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("name", METHODS)
def test_fused_loss_without_logits_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Liger's kernels do it: the loss is there, the logits are not. What needs no logits may go on."""
    model, batch = zoo.build("causal", "llama", dropout=0.1)
    original = type(model).forward

    def fused(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        output = original(self, *args, **kwargs)
        return type(output)(loss=output.loss)

    monkeypatch.setattr(type(model), "forward", fused)
    try:
        create(name)(model, batch)
    except ModelError as error:
        sentence(SimpleNamespace(value=error), "returned no logits", "Liger", "Llama")
    else:
        assert name in ("plain", "adv", "freeat")
    assert not grown(model)


class Square(torch.autograd.Function):
    """x², whose backward is declared not to be differentiable."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * g


class Kernel(Square):
    """x², whose backward is a kernel that autograd does not see, as those of Triton and CUDA."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return (2 * ctx.saved_tensors[0] * g).detach()


def flash(x: Tensor) -> Tensor:
    """Attention of each sentence to itself alone, which is the identity, by a kernel without a second derivative."""
    alone = x[:, None, None]
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(alone, alone, alone)[0][:, 0, 0]


class Layer(nn.Module):
    """A module around an operation."""

    def __init__(self, operation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.operation = operation

    def forward(self, x: Tensor) -> Tensor:
        return self.operation(x)


def with_layer(operation: Callable[[Tensor], Tensor]) -> tuple[Any, zoo.Batch]:
    model, batch = zoo.build("classification", "bert")
    model.dropout = Layer(operation)
    return model, batch


# an operation whose backward autograd cannot differentiate, and what it computes
once_only = pytest.mark.parametrize(
    ("operation", "same"),
    [(Square.apply, torch.square), (Kernel.apply, torch.square), (flash, lambda x: x)],
    ids=["once_differentiable", "kernel", "flash"],
)


@once_only
@pytest.mark.parametrize("product", ["double_backward", "forward_over_reverse"])
@in_both_forms
def test_operation_without_a_second_derivative_is_named(
    operation: Any, same: Any, product: Any, streamed: bool
) -> None:
    """SALT must not take its backward for a constant: that gradient is 90 % off, and silently."""
    model, batch = with_layer(operation)
    with pytest.raises(ModelError) as caught:
        plays(partial(SALT, product=product), model, batch, streamed=streamed)
    named = {"double_backward": "dropout (Layer)"}.get(product, "operation")
    sentence(caught, named, "product='d")  # and what to choose instead
    assert not grown(model)


@once_only
@in_both_forms
def test_automatic_product_does_without_a_second_derivative(operation: Any, same: Any, streamed: bool) -> None:
    """It says once that it takes central differences, and is right."""
    expected = plays(SALT, *with_layer(same), streamed=streamed)[1]
    with pytest.warns(UserWarning, match="central differences") as caught:
        found = plays(SALT, *with_layer(operation), streamed=streamed)[1]
    assert len(caught) == 1 and error(found, expected) < 1e-5


@once_only
@pytest.mark.parametrize("make", [VAT, partial(SALT, product="differences")])
def test_first_derivatives_are_enough_for_the_others(operation: Any, same: Any, make: Any) -> None:
    """VAT and central differences do not mind, and are right."""
    found = [plays(make, *with_layer(square), streamed=False)[1] for square in (operation, same)]
    assert error(*found) < 1e-9


# --------------------------------------------------------------------------------------------------
# Objectives that are not finite


def spoil(model: Any, batch: zoo.Batch, what: str) -> None:
    """Make the task's own loss, or everything, NaN."""
    if what == "label":
        batch["labels"][1] = NAN
    else:
        with torch.no_grad():
            next(p for name, p in model.named_parameters() if name.startswith("classifier")).fill_(NAN)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("what", ["label", "weight"])
@in_both_forms
def test_non_finite_objective_is_never_stepped_on(name: str, what: str, streamed: bool) -> None:
    """It raises before any gradient is touched: what earlier micro-batches gave stays as it was."""
    model, batch = zoo.build("regression", "bert", dropout=0.1)
    game = create(name)
    game.backward(model, batch)
    before = gradient(model)
    spoil(model, batch, what)
    with pytest.raises(NonFiniteLossError) as caught:
        play(game, model, batch, streamed)
    assert isinstance(caught.value, ArithmeticError)
    sentence(caught, "not finite", "learning rate")
    assert torch.equal(gradient(model), before) and not grown(model)


@pytest.mark.parametrize("name", ["salt", "vat", "freeat"])
def test_game_survives_a_bad_batch(name: str) -> None:
    """The play after a refused one is that of a game that never saw it, but for the noise's number."""
    model, batch = zoo.build("regression", "bert")
    bad = {k: x.clone() for k, x in batch.items()}
    spoil(model, bad, "label")
    game = create(name, **({"start_noise": "zero", "steps": 1} if name != "freeat" else {}))
    with pytest.raises(NonFiniteLossError):
        game(model, bad)
    assert torch.isfinite(game(model, batch))


# --------------------------------------------------------------------------------------------------
# The errors themselves


def test_errors_have_one_base() -> None:
    for kind in (SettingError, ModelError, NonFiniteLossError):
        assert issubclass(kind, StackelbergError)


def test_plain_needs_a_loss() -> None:
    """Without labels there is nothing to train on."""
    model, batch = zoo.build("classification", "bert")
    del batch["labels"]
    refused_before_any_pass(Plain(), model, batch, True, "no labels")
