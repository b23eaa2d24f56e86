"""Memory of a step, counted: the bytes of activations that autograd keeps at once, at their peak.

Every tensor saved for a backward pass goes through `Tracker`'s hooks; a storage counts once however often it
is saved, from when it is first saved until nothing needs it any more. Parameters are not activations, and the
2 K embedding-sized tensors of the trajectory are not saved by autograd. Forward-over-reverse is left out: the
hooks do not see the tangents that it keeps. The counts are exact, the same in every run.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel

import zoo
from helping import error, plays
from stackelberg import SALT, VAT, Game

ROWS, LENGTH, WIDTH = 2, 16, 96
in_both_forms = pytest.mark.parametrize("streamed", [False, True], ids=["loss", "streamed"])
on_both_kernels = pytest.mark.parametrize("attn", ["eager", "sdpa"])


class Tracker:
    """The bytes of distinct storages saved for backward, now and at the peak, and whose shapes those were."""

    def __init__(self, model: nn.Module, batch: dict[str, Tensor]) -> None:
        held = [*model.parameters(), *model.buffers(), *batch.values()]
        self.ignored = {x.untyped_storage().data_ptr() for x in held}
        self.owners: Counter[int] = Counter()
        self.sizes: dict[int, tuple[int, str]] = {}
        self.now = self.peak = 0
        self.at_peak: Counter[str] = Counter()

    def hooks(self) -> saved_tensors_hooks:
        return saved_tensors_hooks(partial(Saved, self), Saved.unpack)

    def add(self, x: Tensor) -> int:
        storage = x.untyped_storage()
        key = storage.data_ptr()
        if key in self.ignored:
            return 0
        self.owners[key] += 1
        if self.owners[key] == 1:
            self.sizes[key] = storage.nbytes(), f"{tuple(x.shape)} {x.dtype}"
            self.now += storage.nbytes()
            if self.now > self.peak:
                self.peak = self.now
                self.at_peak = Counter()
                for size, what in self.sizes.values():
                    self.at_peak[what] += size
        return key

    def remove(self, key: int) -> None:
        if key == 0:
            return
        self.owners[key] -= 1
        if not self.owners[key]:
            del self.owners[key]
            self.now -= self.sizes.pop(key)[0]


class Saved:
    """One saved tensor, counted while it lives."""

    def __init__(self, tracker: Tracker, x: Tensor) -> None:
        # detached: an operation that saves its own output would otherwise hold itself
        self.tracker, self.x, self.key = tracker, x.detach(), tracker.add(x)

    def unpack(self) -> Tensor:
        return self.x

    def __del__(self) -> None:
        self.tracker.remove(self.key)


def build(attn: str, length: int = LENGTH) -> tuple[nn.Module, dict[str, Tensor]]:
    """A wide BERT classifier with dropout, and a batch without padding."""
    config = transformers.BertConfig(
        vocab_size=64,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=4 * WIDTH,
        attention_probs_dropout_prob=0.0,  # with it the fused kernel of a CPU is not used
        max_position_embeddings=length,
        attn_implementation=attn,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.BertForSequenceClassification(config).train()
        ids = torch.randint(4, 64, (ROWS, length))
    labels = torch.tensor([0, 1])
    return model, {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def tracked(
    attn: str,
    step: Callable[[nn.Module, Any], Any],
    kernel: SDPBackend | None = None,
    length: int = LENGTH,
) -> Tracker:
    """The tracker of one step."""
    model, batch = build(attn, length)
    tracker = Tracker(model, batch)
    chosen: AbstractContextManager[Any] = nullcontext() if kernel is None else sdpa_kernel(kernel)
    with chosen, tracker.hooks():
        step(model, batch)
    assert tracker.now == 0, "something is kept after the step"
    return tracker


@cache
def plain(attn: str, kernel: SDPBackend | None = None, length: int = LENGTH) -> int:
    """The stock training step's peak."""
    return tracked(attn, lambda model, batch: model(**batch).loss.backward(), kernel, length).peak


def game_step(game: Callable[[], Game], streamed: bool) -> Callable[[nn.Module, Any], Any]:
    return lambda model, batch: plays(game, model, batch, streamed=streamed)


def test_tracker_counts_what_it_should() -> None:
    """x² and exp: x once though saved twice, exp(x) once, nothing for w, and nothing after the backward."""
    linear = nn.Linear(3, 3)
    tracker = Tracker(linear, {})
    x = torch.randn(5, 3, requires_grad=True)
    with tracker.hooks():
        hidden = linear(x)  # saves x
        value = (hidden.square() * hidden).sum() + hidden.exp().sum()  # saves hidden, its square and its exp
        assert tracker.now == tracker.peak == 4 * 5 * 3 * 4
        value.backward()
    assert tracker.now == 0 and tracker.peak == 4 * 5 * 3 * 4


@on_both_kernels
@in_both_forms
@pytest.mark.parametrize("product", ["double_backward", "differences"])
def test_memory_does_not_grow_with_steps(attn: str, streamed: bool, product: Any) -> None:
    """K = 8 within 5 % of K = 1."""
    one, eight = (
        tracked(attn, game_step(partial(SALT, steps=steps, product=product), streamed)).peak for steps in (1, 8)
    )
    print(f"K = 8 / K = 1: {eight / one:.4f}")
    assert eight <= 1.05 * one


@on_both_kernels
def test_exact_route_does_grow(attn: str) -> None:
    """What the sweep saves: the unrolling keeps every step's graph. The test above can fail."""
    one, four = (tracked(attn, game_step(partial(SALT, steps=steps, gradient="exact"), False)).peak for steps in (1, 4))
    print(f"exact, K = 4 / K = 1: {four / one:.4f}")
    assert four > 1.5 * one


@on_both_kernels
@in_both_forms
@pytest.mark.parametrize(("game", "bound"), [(VAT, 2.1), (partial(SALT, product="differences"), 2.1)])
def test_first_order_games_cost_two_graphs(attn: str, streamed: bool, game: Any, bound: float) -> None:
    """At most 2.1 × the plain step on the same attention."""
    tracker = tracked(attn, game_step(game, streamed))
    print(f"{tracker.peak / plain(attn):.3f}", tracker.at_peak.most_common(5))
    assert tracker.peak <= bound * plain(attn)


@pytest.mark.parametrize("length", [LENGTH, 2 * LENGTH, 4 * LENGTH])
@on_both_kernels
@in_both_forms
def test_double_backward_costs_three_graphs(attn: str, streamed: bool, length: int) -> None:
    """At most 3 × the plain step on the same attention, which for SDPA is its math kernel.

    At one token for six coordinates, as BERT-base has at 128 tokens, at twice and at four times that. The longer
    the rows, the more of the peak is scores, of which the product keeps more than of the rest; there the clean
    pass is recomputed.
    """
    tracker = tracked(attn, game_step(partial(SALT, product="double_backward"), streamed), length=length)
    same = plain(attn, SDPBackend.MATH if attn == "sdpa" else None, length)
    print(f"{tracker.peak / same:.3f}", tracker.at_peak.most_common(8))
    assert tracker.peak <= 3 * same


@pytest.mark.soak
def test_double_backward_costs_three_graphs_on_rows_longer_than_the_model_is_wide() -> None:
    """256 tokens on a width of 96."""
    tracker = tracked("eager", game_step(partial(SALT, product="double_backward"), True), length=256)
    assert tracker.peak <= 3 * plain("eager", length=256)


@on_both_kernels
@in_both_forms
def test_recomputing_the_clean_pass_saves_a_graph(attn: str, streamed: bool) -> None:
    """`recompute=True` brings double backward to 2.2 × plain, at long rows too, and changes no gradient."""
    game = partial(SALT, product="double_backward", recompute=True)
    same = plain(attn, SDPBackend.MATH if attn == "sdpa" else None, 4 * LENGTH)
    assert tracked(attn, game_step(game, streamed), length=4 * LENGTH).peak <= 2.2 * same
    model, batch = zoo.build("classification", "bert", dropout=0.1, attn=attn)
    torch.manual_seed(0)
    kept = plays(SALT, model, batch, streamed=streamed)[1]
    torch.manual_seed(0)
    again = plays(partial(SALT, recompute=True), model, batch, streamed=streamed)[1]
    assert error(again, kept) < 1e-12


@on_both_kernels
def test_streaming_is_no_dearer_than_the_loss(attn: str) -> None:
    """`game.backward` keeps no more than `game(...)` for any method of one perturbed pass."""
    for game in (VAT, SALT, partial(SALT, product="differences")):
        streamed, kept = (tracked(attn, game_step(game, form)).peak for form in (True, False))
        assert streamed <= kept + 64  # a scale


@pytest.mark.parametrize("attn", ["eager"])
@in_both_forms
def test_checkpointing_saves_memory_here_too(attn: str, streamed: bool) -> None:
    """Recomputation makes a SALT step by differences cheaper than it was by half or more."""

    def step(model: Any, batch: Any) -> None:
        zoo.checkpointed(model)
        model.disable_input_require_grads()
        plays(partial(SALT, product="differences"), model, batch, streamed=streamed)

    kept = tracked(attn, game_step(partial(SALT, product="differences"), streamed)).peak
    assert tracked(attn, step).peak < 0.5 * kept
