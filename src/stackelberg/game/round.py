"""One batch under play: the model's clean answer, and what it would answer to x + δ under the same conditions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..errors import ModelError, SettingError
from .blame import nodes
from .conditions import Conditions, Dropout, Masks
from .divergence import per_sentence
from .huggingface import HuggingFaceTask, describes_itself
from .injection import Deltas, Draw, Injection
from .layers import CompiledLayers
from .payoff import DivergencePayoff, LabelPayoff
from .precision import movement, unit_rounding
from .report import Report
from .shards import Shards
from .task import Batch, Outputs, Task

Count = float | Tensor
Normalizer = Count | tuple[Count, Count]  # of the task loss's unit, or of (that unit, sentences)


class Round:
    """A model and a batch, dealt. Call `clean()` (or `open`) first, and once."""

    def __init__(
        self,
        model: nn.Module,
        batch: Batch,
        task: Task | None,
        *,
        dropout: Dropout,
        second_derivative: bool,
        compares: bool = True,
        normalizer: Normalizer | None = None,
        start: Tensor | Mapping[str, Tensor] | None = None,
        index: Tensor | None = None,
        offset: Count = 0,
        step: int | Tensor = 0,
        alpha: Count = 1.0,
        streamed: bool = False,
        recompute: bool | None = False,
        measure_interaction: bool = False,
        layers: CompiledLayers | None = None,
    ) -> None:
        """See the attributes for what each argument means."""
        if start is not None and not isinstance(start, Tensor | Mapping):
            raise SettingError(f"start is a {type(start).__name__}; give a tensor, or a mapping from side to tensor")
        refuse_bad_counts(normalizer, index)
        self.model = model
        self.core = unwrap(model, second_derivative)
        self.batch = batch
        self.task = task or _describe(self.core, batch)
        self.injection = Injection(self.task.sides(self.core))
        head = self.task.head(self.core) if compares and not hasattr(self.core, "_orig_mod") else ()
        self.conditions = Conditions(self.core, dropout, second_derivative, head, layers)
        self.normalizer = normalizer  # N, where it was given
        self.start = start  # δ⁰, where it was given
        self.index = index  # each example's number within the step, where it was given
        self.offset = offset  # how many rows of the step were embedded before
        self.step = step  # the optimizer step, which keys the noise
        self.alpha = alpha  # α at this step
        self.streamed = streamed  # later passes see leaf copies; `task_term` hands their cotangents on
        wrapped = isinstance(model, nn.parallel.DistributedDataParallel)  # whose forward runs once a step
        worth_it = second_derivative and not wrapped and self.task.long_rows(self.core, batch)
        self.recompute = worth_it if recompute is None else recompute  # the clean pass, in the backward pass
        self.measure_interaction = measure_interaction
        self.shards = Shards(self.core)  # where FSDP2 has cut the parameters up
        self.report = Report()
        self.base: Deltas = {}  # the clean pass's embeddings, which later passes add δ to
        self._clean: list[tuple[Tensor, Tensor]] = []  # (in the clean graph, the leaf that other passes see)

    def clean(self, needs_target: bool = True) -> None:
        """The clean pass: the task loss, and the logits that ℓ compares with.

        With dropout `off` the target is a second, differentiated reference pass without dropout.
        """
        logits = self.open(None)
        if needs_target and self.conditions.dropout == "off":
            logits = self.answer({}, self.conditions.draw())
        self.logits = logits  # in the graph
        if needs_target:
            self.target = self._seen_by_others(logits)
            # The words are embedded once: what reaches x in a later pass is what reaches δ, so one backward
            # through the embedding serves all of them, and its large sparse gradient is made once.
            self.base = {side: self._seen_by_others(x) for side, x in self.embedded.items()}

    def aside(self) -> Round:
        """The same round on embeddings that are constants, for passes whose gradient on x is taken from δ."""
        other = copy(self)
        other.base = {side: x.detach() for side, x in self.base.items()}
        return other

    def open(self, draw: Draw | None) -> Tensor:
        """The step's first pass, the one that goes through the user's own wrapper; on x + δ if `draw` makes one."""
        wrapped = isinstance(self.model, nn.parallel.DistributedDataParallel)
        model = self.core if self.conditions.second_derivative and not wrapped else self.model
        play = partial(self.task.play, model, self.batch, self.task.labelled(self.batch))
        with self.conditions.clean(), self.injection(draw) as self.embedded:
            outputs = self._recomputed(play) if self.recompute and draw is None else play()
        if self.core.training and torch.is_grad_enabled():
            self.conditions.refuse_hidden_autocast(self.injection.ran_in)
        logits = outputs.logits.float() if outputs.logits.dtype.itemsize == 2 else outputs.logits
        with torch.no_grad():
            self.row_mask = self.task.rows(logits, self.batch)[1]
            self.count = self.task.count(self.row_mask)
        self.task_loss = outputs.loss
        self.target = logits
        return logits

    def task_term(self) -> Tensor:
        """L: the model's own loss, over the normalizer; and, if streamed, what the other passes owe its graph."""
        loss = self.target.new_zeros(()) if self.task_loss is None else self.normalized(self.task_loss)
        for x, leaf in self._clean:
            if leaf.grad is not None:
                loss = loss + _Inject.apply(x, leaf.grad)  # type: ignore[no-untyped-call]
        return loss

    def normalized(self, mean: Tensor) -> Tensor:
        """A mean over this batch as its share of the mean over the whole step."""
        if self.normalizer is None:
            return mean  # untouched, so that `plain` is the stock training step to the last bit
        return mean * self.count / self.denominator(sentences=False)

    def denominator(self, sentences: bool) -> float | Tensor:
        """N: of the task loss's own unit, or of sentences; this batch's unless it was given."""
        if isinstance(self.normalizer, tuple):
            return self.normalizer[1 if sentences else 0]
        if self.normalizer is not None:
            return self.normalizer
        return self.row_mask.shape[0] if sentences else self.count

    def row_index(self, rows: int, device: torch.device) -> Tensor:
        """The number within the step of each of `rows` embedded rows, (rows,) int64.

        Ranks that were given no numbers draw apart; a multiple-choice example has several rows.
        """
        if self.index is None:
            rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
            return torch.arange(rows, device=device) + (self.offset + (rank << 40))
        choices = rows // len(self.index) if len(self.index) else 0
        if choices * len(self.index) != rows:
            raise SettingError(f"index numbers {len(self.index)} examples, but the batch has {rows}")
        numbers = self.index.to(device)[:, None] * choices + torch.arange(choices, device=device)
        return numbers.flatten()

    def pass_(self, deltas: Deltas, masks: Masks, labelled: bool) -> Outputs:
        """A pass over x + δ."""
        with self.conditions.perturbed(masks), self.injection(deltas, self.base):
            return self.task.play(self.core, self.batch, labelled)

    def answer(self, deltas: Deltas, masks: Masks) -> Tensor:
        """f(x + δ, θ): the logits."""
        return self.pass_(deltas, masks, labelled=False).logits

    def compare(self, name: str, detach_target: bool, clean: Tensor, reply: Tensor) -> Tensor:
        """The named divergence between two passes' logits, summed over each sentence's real positions: (B,)."""
        target, _ = self.task.rows(clean.detach() if detach_target else clean, self.batch)
        answer, mask = self.task.rows(reply, self.batch)
        return per_sentence(name, target, answer, mask)

    def movement(self, clean: Tensor, reply: Tensor) -> Tensor:
        """How far each sentence's output moved, in units of its rounding: (B,)."""
        target, mask = self.task.rows(clean, self.batch)
        answer, _ = self.task.rows(reply, self.batch)
        rounding = unit_rounding(self.conditions.precision, self.conditions.precise_head)
        return movement(target, answer, mask, rounding, self.task.kind != "regression")

    def divergence(self, name: str, detach_target: bool) -> DivergencePayoff:
        """ℓ_v, under dropout masks drawn now."""
        masks = self.conditions.draw()
        return DivergencePayoff(
            lambda deltas: self.answer(deltas, masks),
            partial(self.compare, name, detach_target),
            self.movement,
            per_sentence=len(next(iter(self.embedded.values()))) == len(self.row_mask),  # not a choice's rows
        )

    def label_loss(self) -> LabelPayoff:
        """ℓ = the task loss at x + δ, under dropout masks drawn now."""
        masks = self.conditions.draw()
        return LabelPayoff(lambda deltas: self.mean_label_loss(deltas, masks) * self.count)

    def mean_label_loss(self, deltas: Deltas, masks: Masks | None = None) -> Tensor:
        """The task loss at x + δ, with the model's own reduction."""
        loss = self.pass_(deltas, masks or self.conditions.draw(), labelled=True).loss
        assert loss is not None
        return loss

    def need_labels(self, what: str) -> None:
        """Refuse a batch without labels, saying what they are needed for."""
        if not self.task.labelled(self.batch):
            raise ModelError(f"the batch has no labels, and {what}; add them")

    def parameters(self) -> list[nn.Parameter]:
        """θ: the parameters that are trained."""
        trained = [p for p in self.core.parameters() if p.requires_grad]
        if not getattr(self.model, "find_unused_parameters", False):
            return trained
        # DDP has already counted those that its forward pass did not use, and must not see them again.
        outputs = [x for x in (self.logits, self.task_loss) if x is not None]
        used = {id(getattr(node, "variable", None)) for output in outputs for node in nodes(output)}
        return [p for p in trained if id(p) in used]

    def _recomputed(self, play: Callable[[], Outputs]) -> Outputs:
        if isinstance(self.model, nn.parallel.DistributedDataParallel):
            raise SettingError("recompute=True would run DDP's forward twice in a step; use gradient checkpointing")
        outputs: Outputs = checkpoint(play, use_reentrant=False, context_fn=self.conditions.recomputation)
        return outputs

    def _seen_by_others(self, x: Tensor) -> Tensor:
        if not self.streamed or not x.requires_grad:
            return x
        leaf = x.detach().requires_grad_()
        self._clean.append((x, leaf))
        return leaf


class _Inject(torch.autograd.Function):
    """A zero whose backward hands `cotangent` to `x` as it is: it was scaled when it was collected."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cotangent: Tensor) -> Tensor:
        ctx.cotangent = cotangent
        return torch.zeros((), dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        return ctx.cotangent, None


def unwrap(model: nn.Module, second_derivative: bool) -> nn.Module:
    """The module inside DDP and, where a second derivative is needed, inside `torch.compile`."""
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"the game's first argument is the model, but it is a {type(model).__name__}; call game(model, batch)"
        )
    if isinstance(model, nn.DataParallel):
        raise ModelError("nn.DataParallel has no complete second derivative; use DistributedDataParallel")
    if type(model).__name__ == "DeepSpeedEngine" or any(hasattr(p, "ds_id") for p in model.parameters()):
        raise ModelError("DeepSpeed ZeRO cannot run several backward passes over one model; use DDP or FSDP2")
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise ModelError(
            "FullyShardedDataParallel (FSDP1) has no second derivative; use FSDP2, torch.distributed.fsdp.fully_shard"
        )
    core, distributed, compiled = model, False, False
    while True:
        if isinstance(core, nn.parallel.DistributedDataParallel):
            if core.static_graph:
                raise ModelError("DDP with static_graph=True loses the game's gradients; set static_graph=False")
            core, distributed = core.module, True
        elif hasattr(core, "_orig_mod") and (second_derivative or hasattr(core._orig_mod, "module")):
            core, compiled = core._orig_mod, True  # type: ignore[assignment]
        else:
            break
    if distributed and compiled:
        raise ModelError("torch.compile and DDP together hide the game's gradients from the reducer; use one of them")
    return core


def _describe(core: nn.Module, batch: Batch) -> Task:
    inner = getattr(core, "_orig_mod", core)
    if describes_itself(inner):
        return HuggingFaceTask.of(inner, batch)
    raise ModelError(
        f"{type(core).__name__} is not a Hugging Face model, so its logits and loss are not known; give the game "
        "task=Task(kind, logits=(model, batch) → logits, loss=(logits, batch) → loss)"
    )


def refuse_bad_counts(normalizer: object, index: object) -> None:
    """Refuse a normalizer that is not a positive number (or a pair of them), and an index that is not a vector."""
    counts = normalizer if isinstance(normalizer, tuple) else (normalizer,)
    if normalizer is not None and (len(counts) != (2 if isinstance(normalizer, tuple) else 1)):
        raise SettingError(f"normalizer={normalizer!r} should be N, or a pair (tokens, sentences)")
    for count in counts if normalizer is not None else ():
        if not isinstance(count, Tensor) and not (isinstance(count, int | float) and count > 0):
            raise SettingError(f"normalizer={normalizer!r} should be a number above 0, or a pair (tokens, sentences)")
    if index is not None and not (isinstance(index, Tensor) and index.dim() == 1 and not index.is_floating_point()):
        raise SettingError("index should be a whole-number tensor with one entry for each example")
