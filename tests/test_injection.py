"""δ reaches the embeddings that really run, once a pass, and nothing of it stays behind."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import zoo
from helping import Passes, Spy, error, gradient, grown, plays
from stackelberg import SALT, VAT, FreeAT, FreeLB, Game, ModelError, SettingError, Task, create
from stackelberg.game.huggingface import HuggingFaceTask
from stackelberg.game.injection import Injection

MODELS = [(kind, arch) for kind, archs in zoo.KINDS.items() for arch in archs]
on_every_model = pytest.mark.parametrize(("kind", "arch"), MODELS)


def sides_of(model: Any, batch: zoo.Batch) -> dict[str, nn.Module]:
    return HuggingFaceTask.of(model, batch).sides(model)


def logits_of(passes: Passes, deltas: dict[str, Tensor] | None = None) -> tuple[Tensor, dict[str, Tensor]]:
    """The logits of a pass under the library's hooks, and what the embeddings put out."""
    injection = Injection(sides_of(passes.model, passes.batch))
    with injection(deltas) as seen:
        output = passes.model(**passes.batch)
    assert not grown(passes.model)
    if passes.kind == "span":
        return torch.stack([output.start_logits, output.end_logits], 1), seen
    return output.logits, seen


# --------------------------------------------------------------------------------------------------
# Hugging Face models


@on_every_model
def test_found_embeddings_are_those_that_run(kind: str, arch: str) -> None:
    """Each side's module is the one a look from outside sees firing, and it fires once a pass."""
    passes = Passes(kind, arch)
    sides = sides_of(passes.model, passes.batch)
    assert [*sides.values()] == passes.players.modules
    fired: list[nn.Module] = []
    handles = [
        m.register_forward_hook(lambda m, args, out: fired.append(m)) for m in set(sides.values())
    ]  # fmt: skip
    passes.model(**passes.batch)
    for handle in handles:
        handle.remove()
    assert fired == [*sides.values()]
    assert [*sides] == ["source", "target"][: len(sides)]


@on_every_model
def test_zero_changes_nothing_and_noise_what_it_should(kind: str, arch: str) -> None:
    """δ = 0 is the clean pass to the last bit; a random δ gives what adding it by hand gives."""
    passes = Passes(kind, arch)
    clean, seen = logits_of(passes)
    assert [x.shape for x in seen.values()] == passes.players.shapes
    same, _ = logits_of(passes, {side: torch.zeros_like(x) for side, x in seen.items()})
    assert torch.equal(clean, same)
    noise = passes.start()
    moved, unmoved = logits_of(passes, passes.named(noise))
    by_hand = passes.at(noise)
    expected = by_hand.logits if kind != "span" else torch.stack([by_hand.start_logits, by_hand.end_logits], 1)
    assert torch.equal(moved, expected) and not torch.allclose(moved, clean, rtol=1e-3)
    assert all(torch.equal(x, seen[side]) for side, x in unmoved.items())  # what is seen is x, not x + δ


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_zero_changes_nothing_in_any_precision(dtype: torch.dtype) -> None:
    """A float32 δ is added in float32 and the sum rounded to the model's type: 0 is still nothing."""
    model, batch = zoo.build("classification", "bert", dtype=dtype)
    with torch.no_grad(), Injection(sides_of(model, batch))() as seen:
        clean = model(**batch).logits
    zero = {side: torch.zeros(x.shape) for side, x in seen.items()}
    with torch.no_grad(), Injection(sides_of(model, batch))(zero):
        assert torch.equal(model(**batch).logits, clean)


@pytest.mark.parametrize("where", ["base", "embedding", "saved"])
def test_adapters_are_looked_through(where: str) -> None:
    """LoRA around the model, on the embedding itself, or a trained copy of it: δ reaches what runs."""
    peft = pytest.importorskip("peft")
    passes = Passes("causal", "llama")
    chosen: dict[str, Any] = {"target_modules": ["q_proj"]}
    if where == "embedding":
        chosen = {"target_modules": ["q_proj", "embed_tokens"]}
    if where == "saved":
        chosen["modules_to_save"] = ["embed_tokens"]
    adapted = peft.get_peft_model(passes.model, peft.LoraConfig(r=2, **chosen)).train()
    (module,) = sides_of(adapted, passes.batch).values()
    noise = passes.start()[0]
    clean = adapted(**passes.batch).logits
    with Injection({"source": module})({"source": noise}):
        moved = adapted(**passes.batch).logits
    # fresh adapters change nothing, so the bare model's own answer is the expected one
    assert torch.allclose(moved, passes.players.logits([noise]) if where == "base" else moved, rtol=1e-9)
    assert not torch.allclose(moved, clean, rtol=1e-3)
    value, found, _ = plays(partial(SALT, weight=0.7), adapted, passes.batch, streamed=False)
    assert torch.isfinite(value) and found.norm() > 0


@pytest.mark.parametrize("streamed", [False, True], ids=["loss", "streamed"])
@pytest.mark.parametrize("failing_pass", [1, 2, 3, 4])
def test_hooks_are_gone_after_a_failure(failing_pass: int, streamed: bool) -> None:
    """Clean pass, ascent, perturbed pass or product: whichever raises, no hook stays; a later play works."""
    passes = Passes("classification", "bert")
    calls = 0

    def fail(module: nn.Module, args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == failing_pass:
            raise ZeroDivisionError

    handle = passes.model.bert.pooler.register_forward_pre_hook(fail)
    with pytest.raises(ZeroDivisionError):
        plays(SALT, passes.model, passes.batch, streamed=streamed)
    handle.remove()
    assert calls == failing_pass and not grown(passes.model) and passes.model.training
    value, _, _ = plays(SALT, passes.model, passes.batch, streamed=streamed)
    assert torch.isfinite(value)


@pytest.mark.parametrize("name", ["salt", "vat", "freelb", "freeat", "plain", "rdrop"])
def test_embedding_that_never_runs_is_refused(name: str) -> None:
    """A batch of `inputs_embeds` passes the embedding by."""
    model, batch = zoo.build("classification", "bert", dropout=0.1)
    batch["inputs_embeds"] = model.bert.embeddings.word_embeddings(batch.pop("input_ids")).detach()
    with pytest.raises(ModelError, match=r"'source' \(Embedding\) ran 0 times") as caught:
        create(name)(model, batch)
    assert "\n" not in str(caught.value) and not grown(model)


def test_embedding_that_runs_twice_is_refused() -> None:
    class Twice(Bag):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids) + super().forward(ids.flip(1))

    with pytest.raises(ModelError, match=r"'source' \(Embedding\) ran 2 times"):
        SALT(task=task())(Twice(), toy_batch())


# --------------------------------------------------------------------------------------------------
# Any other module, described by two functions


class Bag(nn.Module):
    """The mean of the word embeddings of a sentence, then two layers."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.words = nn.Embedding(20, 6)
            self.head = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        self.double()

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.words(ids).mean(1))


class Pair(Bag):
    """Two sentences, each with embeddings of its own, or sharing them."""

    def __init__(self, shared: bool = False) -> None:
        super().__init__()
        self.others = self.words if shared else nn.Embedding(20, 6, dtype=torch.float64)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.words(ids).mean(1) - 0.5 * self.others(ids + 1).mean(1))


def toy_batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 18, (4, 5), generator=generator)
    return {
        "ids": ids,
        "y": torch.tensor([0, 1, 2, 0]),
        "real": torch.arange(5) < torch.tensor([[5], [4], [3], [5]]),
    }


def task(**changes: Any) -> Task:
    return Task(
        "classification",
        logits=lambda model, batch: model(batch["ids"]),
        loss=lambda logits, batch: cross_entropy(logits, batch["y"]),
        **changes,
    )


@pytest.mark.parametrize("make", [SALT, VAT, FreeLB, FreeAT], ids=lambda make: make.__name__)
def test_module_with_one_embedding_needs_no_more(make: Callable[..., Game]) -> None:
    model, batch = Bag(), toy_batch()
    value, expected, _ = plays(partial(make, task=task()), model, batch, streamed=False)
    streamed_value, found, _ = plays(partial(make, task=task()), model, batch, streamed=True)
    assert torch.allclose(value, streamed_value) and error(found, expected) < 1e-10


@pytest.mark.parametrize("given", ["path", "module"])
def test_two_embeddings_are_named(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By path or as modules; each gets a δ of its own."""
    model, batch = Pair(), toy_batch()
    named = {"source": "words", "target": "others"}
    if given == "module":
        named = {side: model.get_submodule(path) for side, path in named.items()}
    game = SALT(task=task(embeddings=named), epsilon=0.4)
    spy = Spy(monkeypatch)
    game.backward(model, batch)
    *_, used = spy.perturbed
    assert [*used] == ["source", "target"] and not torch.equal(used["source"], used["target"])
    assert torch.isfinite(gradient(model)).all()


def test_shared_embedding_fires_for_its_sides_in_order() -> None:
    """One module that runs twice is two sides, and each δ goes to its own call."""
    model, batch = Pair(shared=True), toy_batch()
    sides = task(embeddings={"source": "words", "target": "others"}).sides(model)
    generator = torch.Generator().manual_seed(0)
    source, target = (torch.randn(4, 5, 6, generator=generator, dtype=torch.float64) for _ in range(2))
    with Injection(sides)({"source": source, "target": target}):
        moved = model(batch["ids"])
    x = model.words(batch["ids"]) + source
    y = model.words(batch["ids"] + 1) + target
    assert torch.allclose(moved, model.head(x.mean(1) - 0.5 * y.mean(1)), rtol=1e-12)


class NoEmbedding(Bag):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Linear(1, 6, dtype=torch.float64)  # type: ignore[assignment]


class Bagged(Bag):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(20, 6, dtype=torch.float64)  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("model", "embeddings", "parts"),
    [
        (NoEmbedding(), None, ["NoEmbedding", "has none", "Task(embeddings="]),
        (Pair(), None, ["Pair", "has 2", "words", "others", "Task(embeddings="]),
        (Bagged(), None, ["Bagged", "has 1", "words"]),
        (Bag(), {"source": "wrods"}, ["'wrods'", "Bag"]),
    ],
    ids=["none", "two", "bag", "path"],
)
def test_unclear_embeddings_are_refused(model: nn.Module, embeddings: Any, parts: list[str]) -> None:
    """By name, before anything runs."""

    def ran(*_: Any) -> Tensor:
        raise AssertionError("a pass was run")

    game = SALT(task=Task("classification", logits=ran, loss=ran, embeddings=embeddings))
    with pytest.raises(ModelError) as caught:
        game(model, toy_batch())
    assert all(part in str(caught.value) for part in parts) and "\n" not in str(caught.value)


def test_masks_of_a_task_keep_padding_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, spy = toy_batch(), Spy(monkeypatch)
    SALT(task=task(masks=lambda batch: batch["real"])).backward(Bag(), batch)
    assert all(not note["source"][~batch["real"]].any() for note in spy.perturbed)
    assert all(note["source"][batch["real"]].all() for note in spy.perturbed)


def test_mask_of_another_shape_is_refused() -> None:
    wide = task(masks=lambda batch: torch.ones(4, 7))
    with pytest.raises(ModelError, match=r"mask of side 'source' is \(4, 7\), its embeddings are \(4, 5"):
        SALT(task=wide)(Bag(), toy_batch())


# --------------------------------------------------------------------------------------------------
# Where δ may be

METHODS_WITH_SPACE = ["salt", "vat", "adv", "smart", "r3f", "freelb", "freeat", "salt-adv"]


def injected(name: str, model: nn.Module, batch: zoo.Batch, spy: Spy, **settings: Any) -> list[dict[str, Tensor]]:
    """Every δ of two plays, the second of which starts from FreeAT's first."""
    game = create(name, **settings)
    for _ in range(2):
        game.backward(model, batch)
        game.after_step()
    return spy.perturbed


@pytest.mark.parametrize("name", METHODS_WITH_SPACE)
def test_excluded_tokens_and_padding_stay(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """δ is 0 at padding and at tokens that are left out, and not elsewhere."""
    passes = Passes("classification", "bert")
    ids = passes.batch["input_ids"]
    left_out = tuple({int(row[0]) for row in ids})
    allowed = passes.players.masks[0] & ~torch.isin(ids, torch.tensor(left_out))
    notes = injected(name, passes.model, passes.batch, Spy(monkeypatch), exclude_tokens=left_out)
    assert not any(note["source"][~allowed].any() for note in notes)
    assert notes[-1]["source"][allowed].any(-1).all()


@pytest.mark.parametrize("name", METHODS_WITH_SPACE)
def test_prompt_can_be_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = Passes("causal", "gpt2")
    answer = passes.batch["labels"] != -100
    notes = injected(name, passes.model, passes.batch, Spy(monkeypatch), perturb_prompt=False)
    assert not any(note["source"][~answer].any() for note in notes)
    assert notes[-1]["source"][answer].any(-1).any()


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("name", METHODS_WITH_SPACE)
def test_one_side_only(name: str, side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = Passes("seq2seq", "marian")
    notes = injected(name, passes.model, passes.batch, Spy(monkeypatch), sides=(side,))
    assert notes and all([*note] == [side] for note in notes)


@pytest.mark.parametrize("name", METHODS_WITH_SPACE)
def test_decoder_start_token_is_perturbed_though_it_is_the_pad(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Marian's and T5's decoders start with the pad id; their mask comes from the shifted labels."""
    passes = Passes("seq2seq", "marian")
    (*_, last) = injected(name, passes.model, passes.batch, Spy(monkeypatch), norm="linf")
    assert last["target"][:, 0].any(-1).all()
    assert torch.equal(last["target"].any(-1), passes.players.masks[1])


@pytest.mark.parametrize("name", METHODS_WITH_SPACE)
@pytest.mark.parametrize(
    ("arch", "settings", "start", "parts"),
    [
        ("bert", {"sides": ("target",)}, None, ["sides=('target',)", "source"]),
        ("bert", {"sides": ()}, None, ["sides=()"]),
        ("bert", {}, {"target": (4, 9, 16)}, ["start", "target", "source"]),
        ("bert", {}, {"source": (4, 9, 16), "target": (4, 8, 16)}, ["start", "target", "source"]),
        ("bert", {}, (4, 8, 16), ["source", "(4, 8, 16)", "(4, 9, 16)"]),
        ("marian", {}, (4, 9, 16), ["start", "source", "target"]),
        ("marian", {}, {"source": (4, 9, 16)}, ["start", "source", "target"]),
        ("marian", {}, {"source": (4, 9, 16), "target": (4, 9, 16)}, ["target", "(4, 9, 16)", "(4, 8, 16)"]),
    ],
)
def test_wrong_side_or_start_is_refused(
    name: str, arch: str, settings: dict[str, Any], start: Any, parts: list[str]
) -> None:
    """By one sentence that names what was given and what there is; no gradient is touched."""
    model, batch = zoo.build("classification" if arch == "bert" else "seq2seq", arch)
    with pytest.raises(SettingError) as caught:
        given = {s: torch.zeros(shape) for s, shape in start.items()} if isinstance(start, dict) else start
        given = torch.zeros(given) if isinstance(given, tuple) else given
        create(name, **settings).backward(model, batch, start=given)
    assert all(part in str(caught.value) for part in parts) and "\n" not in str(caught.value)
    assert not grown(model) and all(p.grad is None for p in model.parameters())
