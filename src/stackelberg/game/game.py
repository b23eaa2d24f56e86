"""The engine that every method runs on: from a model and a batch to an objective, a gradient and a report."""

from __future__ import annotations

import inspect
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, ClassVar, NamedTuple
from weakref import ref

import torch
from torch import Tensor, nn

from ..errors import ModelError, SettingError, one_of
from .call import Call, Given, Start
from .capture import Static, capturing
from .clock import Clock
from .conditions import Dropout
from .finite import FiniteFlag
from .injection import Deltas
from .layers import CompiledLayers
from .masks import UnsharedError
from .obstacles import Obstacle, model_obstacles
from .precision import InnerScale
from .replay import Replayed, replay
from .report import Report
from .round import Normalizer, Round, unwrap
from .shards import Shards
from .speed import MODES, Mode, Speed
from .task import Batch, Task


class Term(NamedTuple):
    """A part of the objective. A method that needs its gradient on some δ asks for it with `wrt`."""

    value: Tensor
    wrt: Deltas | None = None


# A method yields the terms of its objective, the task's own last, and is sent the gradients it asked for.
Play = Generator[Term, Deltas | None, None]


@dataclass(kw_only=True, eq=False)
class Game(ABC):
    """A method of adversarial regularization, ready to play with any model.

    `loss = game(model, batch)` is a scalar whose `.backward()` gives the method's gradient.
    `game.backward(model, batch)` accumulates the same gradient, each term freed before the next, and returns
    a report. In evaluation mode or under `torch.no_grad()` a game is the plain task loss.

    Args:
        seed: of the start noise, which is a function of (seed, step, example, side) alone.
        task: how to read a model that is not from Hugging Face; see `stackelberg.Task`.
        mode: `"eager"`; `"compiled"`: a model's repeated layers run as compiled kernels; `"graph"`: the whole
            gradient is captured as a CUDA graph besides, one for each shape of a batch; `"auto"`: the last where
            it can be, for a shape that has come a hundred times.
    """

    name: ClassVar[str]
    registry: ClassVar[dict[str, type[Game]]] = {}  # every method that has a name, by that name

    seed: int = 0
    task: Task | None = None
    mode: Mode = "auto"
    _core: ref[nn.Module] | None = field(default=None, init=False, repr=False)  # the model last played with
    clock: Clock = field(default_factory=Clock, init=False, repr=False)
    report: Report | None = field(default=None, init=False, repr=False)  # of the last call
    speed: Speed = field(init=False, repr=False)

    def __init_subclass__(cls) -> None:
        """A class that names itself is a method."""
        super().__init_subclass__()
        if "name" in cls.__dict__:
            Game.registry[cls.name] = cls
            cls.__doc__ = _with_every_setting(cls)

    def __post_init__(self) -> None:
        """Check the settings; every group of settings adds its own checks."""
        if not isinstance(self.seed, int):
            raise SettingError(f"seed={self.seed!r} should be a whole number")
        if self.task is not None and not isinstance(self.task, Task):
            raise SettingError(f"task={self.task!r} should be a stackelberg.Task")
        one_of("mode", self.mode, MODES)
        self.speed = Speed(self.mode)

    @abstractmethod
    def play(self, round: Round) -> Play:
        """Yield the terms of the objective on one batch, the task's own last."""

    def check(self, round: Round) -> None:
        """Refuse, before any pass, a batch that the method cannot be played on."""
        return

    @property
    def replays_per_batch(self) -> int:
        """How many optimizer steps in a row each batch is meant for; see `stackelberg.replayed`."""
        return 1

    @property
    def state_is_each_ranks_own(self) -> bool:
        """Whether `state_dict()` differs from process to process, so that each must save its own."""
        return False

    @property
    def second_derivative(self) -> bool:
        """Whether passes must have a second derivative."""
        return False

    @property
    def compares(self) -> bool:
        """Whether logits of different passes are compared, which calls for a precise head."""
        return False

    @property
    def dropout_policy(self) -> Dropout:
        """What the passes of a step have in common; see `conditions.py`."""
        return "shared"

    @property
    def recomputes(self) -> bool | None:
        """Whether the clean pass is run again in the backward pass instead of being kept; None where it pays."""
        return False

    @property
    def differentiates_gradients(self) -> bool:
        """Whether this step's gradient goes through another gradient, however that is computed."""
        return False

    def is_on(self) -> bool:
        """Whether the method has begun; before, it is the plain loss."""
        return True

    def __call__(
        self,
        model: nn.Module,
        batch: Batch,
        *,
        start: Start | None = None,
        normalizer: Normalizer | None = None,
        index: Tensor | None = None,
        task: Task | None = None,
    ) -> Tensor:
        """The objective F on this batch.

        Args:
            model: in training mode; DDP and PEFT wrappers are welcome.
            batch: what the model is called with, a mapping for Hugging Face models.
            start: δ⁰ instead of drawn noise: a tensor (B, L, d), or a mapping from side to tensor.
            normalizer: N, the denominator of the task loss and of the regularizer. Left out, this batch's
                own count of sentences (or real tokens); when accumulating, give the whole step's. A pair
                (tokens, sentences) where a token task's regularizer is averaged over sentences.
            index: each example's number within the step, (B,), which keys its noise.
            task: how to read the model on this call, instead of the game's own `task`.
        """
        return self._objective(model, batch, Given(start, normalizer, index, task))

    def _objective(self, model: nn.Module, batch: Batch, given: Given) -> Tensor:
        if not (model.training and torch.is_grad_enabled()):
            return self._evaluate(self._deal(model, batch, given))
        core = self._begin(model)
        mode = self._mode(model, core, batch, given)
        try:
            if mode == "graph":
                replayed = self._replayed(core, batch, given)
                if replayed is not None:
                    return FiniteFlag(model, "").guard(replayed.objective)
            layers = None if mode == "eager" else self.speed.of(core).layers
            round = self._deal(model, batch, given, layers=layers)
            objective = self.objective(round)
        except UnsharedError as error:
            self.speed.give_up("eager", str(error))
            return self._objective(model, batch, given)
        self._file(round, objective)
        return FiniteFlag(model, round.conditions.precision).guard(objective)

    def objective(self, round: Round) -> Tensor:
        """F on a round, in autograd's graph."""
        parts: list[Tensor] = []
        scale = InnerScale.at(round.conditions.precision, round.conditions.device).value

        def collect(term: Term) -> Deltas | None:
            parts.append(term.value)
            if term.wrt is None:
                return None
            found = torch.autograd.grad(term.value * scale, list(term.wrt.values()), retain_graph=True)
            return {side: g / scale for side, g in zip(term.wrt, found, strict=True)}

        whole = self.is_on() and self.differentiates_gradients
        with round.shards.whole(whole):
            self._drive(round, collect)
        objective = parts[0] if len(parts) == 1 else torch.stack(parts).sum()
        return round.shards.whole_in_backward(objective) if whole else objective

    def backward(
        self,
        model: nn.Module,
        batch: Batch,
        *,
        start: Start | None = None,
        normalizer: Normalizer | None = None,
        index: Tensor | None = None,
        task: Task | None = None,
        scaler: torch.amp.GradScaler | None = None,
        interaction: bool = False,
    ) -> Report:
        """Add the gradient of `game(model, batch)` to `.grad`, each term's graph freed before the next.

        The arguments are those of `__call__`; `scaler` is the GradScaler that will unscale the gradients.
        `interaction` asks for the norm of the leader–follower term too, which costs another sweep.
        """
        if not (model.training and torch.is_grad_enabled()):
            raise ModelError("game.backward needs the model in training mode and gradients enabled; call model.train()")
        given = Given(start, normalizer, index, task)
        if isinstance(model, nn.parallel.DistributedDataParallel):  # whose reducer expects a single backward
            objective = self._objective(model, batch, given)
            (objective if scaler is None else scaler.scale(objective)).backward()
            assert self.report is not None
            return self.report
        core = self._begin(model)
        mode = "eager" if interaction else self._mode(model, core, batch, given)
        if mode == "graph":
            replayed = self._replayed(core, batch, given)
            if replayed is not None:
                objective = FiniteFlag(model, "").guard(replayed.objective)
                (objective if scaler is None else scaler.scale(objective)).backward()
                return replayed.report
        layers = None if mode == "eager" else self.speed.of(core).layers
        round = self._deal(model, batch, given, streamed=True, interaction=interaction, layers=layers)
        flag = FiniteFlag(
            model, round.conditions.precision if scaler else ""
        )  # without a scaler nothing skips the step
        scale = torch.ones((), device=round.conditions.device)
        scale = scale if scaler is None else scaler.scale(scale)
        parts: list[Tensor] = []

        def differentiate(term: Term) -> Deltas | None:
            if not parts and round.task_loss is not None:
                flag.show(round.task_loss)
            flag.show(term.value)
            if term.value.device.type != "cuda":
                flag.raise_now()  # before the gradients of earlier micro-batches are spoilt
            parts.append(term.value.detach())
            if term.value.requires_grad:
                (term.value * scale).backward()
            if term.wrt is None:
                return None
            return {side: delta.grad / scale for side, delta in term.wrt.items() if delta.grad is not None}

        with round.shards.whole(self.is_on() and self.differentiates_gradients):
            self._drive(round, differentiate)
        flag.raise_now()
        return self._file(round, torch.stack(parts).sum())

    def step(
        self,
        model: nn.Module,
        batch: Batch,
        update: Callable[[], Tensor],
        *,
        normalizer: Normalizer | None = None,
    ) -> Report | None:
        """One step as one captured graph, `update` moving the parameters by what it finds in `.grad`.

        None where there is no graph (yet); `TrainingStep` is what calls it.
        """
        core, given = self._begin(model), Given(normalizer=normalizer)
        if self._mode(model, core, batch, given, counts=False) != "graph":
            return None
        replayed = self._replayed(core, batch, given, update)
        if replayed is None:
            return None
        self.after_step()
        return replayed.report

    def after_step(self) -> None:
        """Tell the game that the optimizer has stepped, where it cannot notice by itself."""
        self.clock.told = True
        self.clock.advance()
        self.on_step()

    def on_step(self) -> None:
        """What a method does after each optimizer step: nothing, unless it keeps something that moves."""
        return

    def plan(self, total_steps: int) -> None:
        """Tell the game how long the training will be, where its schedule depends on that."""
        return

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting by name, for logs and model cards."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.init and f.name != "task"}

    def reset(self, step: int = 0) -> None:
        """Forget all that was played; the next run begins at this step."""
        fresh = type(self)(**self.settings, task=self.task).state_dict()
        self.load_state_dict({**fresh, "clock": {"step": step}})

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold for a run to go on as if it had not been interrupted."""
        core = self._core() if self._core else None
        if core is not None:
            Shards(core).store()
            if self.clock.notice(core.parameters()):  # a step since the last call
                self.on_step()
        return {"clock": self.clock.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.clock.load_state_dict(state["clock"])

    def _deal(
        self,
        model: nn.Module,
        batch: Batch,
        given: Given,
        *,
        streamed: bool = False,
        interaction: bool = False,
        layers: CompiledLayers | None = None,
        dials: Static | None = None,
    ) -> Round:
        playing = model.training and torch.is_grad_enabled()
        recompute = self.recomputes
        round = Round(
            model,
            batch,
            given.task or self.task,
            dropout=self.dropout_policy,
            second_derivative=playing and self.is_on() and self.second_derivative,
            compares=playing and self.is_on() and self.compares,
            normalizer=given.normalizer,
            start=given.start,
            index=given.index,
            streamed=streamed,
            recompute=False if recompute is None and layers is not None else recompute,  # they keep little as it is
            measure_interaction=interaction,
            layers=layers,
            **(self._dials() if dials is None else dials),
        )
        if playing and not capturing():  # which cannot look at values, and comes after runs that did
            self.check(round)
        return round

    def _begin(self, model: nn.Module) -> nn.Module:
        """Before anything that depends on the step: has there been one since the last call? The bare model."""
        core = unwrap(model, second_derivative=False)
        Shards(core).store()
        if self.clock.notice(core.parameters()):
            self.on_step()
        self._core = ref(core)
        return core

    def _dials(self) -> dict[str, float]:
        """The numbers that change from step to step and from micro-batch to micro-batch."""
        return {"step": self.clock.step, "offset": self.clock.seen, "alpha": float(self.alpha())}

    def _obstacles(self, model: nn.Module, core: nn.Module, batch: Batch) -> list[Obstacle]:
        found = model_obstacles(model, core, batch)
        if self.recomputes is True:
            found.append(Obstacle("recompute=True runs a pass again later", "compiled"))
        return [*found, *self.obstacles]

    def _mode(self, model: nn.Module, core: nn.Module, batch: Batch, given: Given, counts: bool = True) -> Mode:
        mode = self.speed.choose(partial(self._obstacles, model, core, batch), _device(core))
        if mode == "eager" or not isinstance(batch, Mapping):
            return mode
        return mode if self.speed.is_worth(core, Call(batch, given, {}).form, counts) else "eager"

    def _replayed(
        self,
        core: nn.Module,
        batch: Mapping[str, Any],
        given: Given,
        update: Callable[[], Tensor] | None = None,
    ) -> Replayed | None:
        call, task = Call(batch, given, self._dials()), given.task or self.task
        parameters = [p for p in core.parameters() if p.requires_grad]
        half = torch.is_autocast_enabled(parameters[0].device.type)
        key = (
            call.form,
            repr((self.settings, self.variant)),
            None if task is None else task.key,
            tuple((p.data_ptr(), p.requires_grad) for p in core.parameters()),
            tuple(module.training for module in core.modules()),
            half,
            update is None,
        )

        def play(static: Static) -> tuple[Tensor, Report, int]:
            again, read, dials = call.read(static)
            round = self._deal(core, again, read, layers=self.speed.of(core).layers, dials=dials)
            objective = self.objective(round)
            return objective, self._described(round, objective), _rows(round)

        found = replay(self.speed, core, key, call.inputs, play, parameters, update)
        if found is not None:
            self.clock.seen += found.rows
            self.report = found.report
            self.observe(found.report, "bfloat16" if half else "float32", given.start is not None)
        return found

    @property
    def variant(self) -> object:
        """What besides the settings decides which computation a step is."""
        return self.is_on()

    @property
    def obstacles(self) -> list[Obstacle]:
        """What of the method speaks against playing fast."""
        return []

    def alpha(self) -> float:
        """α at this step, of a method that has one."""
        return 1.0

    def observe(self, report: Report, precision: str, start_given: bool) -> None:
        """Look at a step's report, to warn of something: nothing, unless a method does."""
        return

    def _drive(self, round: Round, handle: Callable[[Term], Deltas | None]) -> None:
        """Run `play`, answering each term with the gradient it asked for."""
        play = self.play(round) if self.is_on() else _plain(round)
        reply: Deltas | None = None
        with suppress(StopIteration):
            while True:
                reply = handle(play.send(reply))

    def _evaluate(self, round: Round) -> Tensor:
        if torch.is_grad_enabled():
            warnings.warn(
                "the model is in evaluation mode, so the game gives its plain loss; call model.train() to play",
                stacklevel=4,
            )
        round.need_labels("they make the plain loss")
        round.clean(needs_target=False)
        return round.task_term()

    def _file(self, round: Round, objective: Tensor) -> Report:
        self.clock.seen += _rows(round)
        self.report = self._described(round, objective)
        self.observe(self.report, round.conditions.precision, round.start is not None)
        return self.report

    def _described(self, round: Round, objective: Tensor) -> Report:
        report = round.report
        report.loss = objective.detach()
        report.task_loss = None if round.task_loss is None else round.task_loss.detach()
        return report


def _rows(round: Round) -> int:
    return max((len(x) for x in round.embedded.values()), default=0)


def _device(core: nn.Module) -> torch.device:
    return next((p.device for p in core.parameters()), torch.device("cpu"))


def _with_every_setting(cls: type) -> str:
    """A method's docstring with the settings that it inherits, so that `help(SALT)` is complete."""
    summary = inspect.cleandoc(cls.__doc__ or "").partition("\nArgs:\n")[0]
    entries: dict[str, str] = {}
    for base in cls.__mro__:  # what a method says of a setting comes before what its bases do
        described = inspect.cleandoc(base.__doc__ or "").partition("\nArgs:\n")[2]
        for entry in re.split(r"\n(?=    \w+: )", described.rstrip()):
            entries.setdefault(entry.partition(":")[0].strip(), entry)
    return summary.rstrip() + "\n\nArgs:\n" + "\n".join(entry for entry in entries.values() if entry)


def _plain(round: Round) -> Play:
    round.need_labels("they make the plain loss, which the method is until its start_step")
    round.clean(needs_target=False)
    yield Term(round.task_term())
