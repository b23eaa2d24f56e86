"""Hugging Face's Trainer, playing a game: `AdversarialTrainer(model, args, game=SALT(), train_dataset=...)`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset, Sampler

from ..errors import ModelError, SettingError, needs
from ..game.game import Game
from ..game.huggingface import HuggingFaceTask, describes_itself
from ..game.round import Normalizer, unwrap
from ..game.task import Batch, Task
from ..storage import write_whole
from . import checkpoints
from .card import described, mark
from .diagnostics import Diagnostics
from .replays import ReplayedSampler

with needs("accelerate", extra="hf"):
    from accelerate.utils import DynamoBackend, find_batch_size
with needs("transformers", extra="hf"):
    from transformers import Seq2SeqTrainer, Trainer
    from transformers.trainer_utils import rotate_checkpoints

GAME = "game.pt"  # the game's own state, in a checkpoint


@dataclass(frozen=True)
class TrainerTask(HuggingFaceTask):
    """A model as its Trainer reads it: the loss is what the Trainer's own `compute_loss` makes of a batch."""

    loss_of: Callable[[nn.Module, Batch, Tensor | None], tuple[Tensor, Any]] | None = None

    @property
    def key(self) -> Any:
        """The loss is the Trainer's."""
        return self.kind, self.loss_of

    def with_loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Any]:
        """The mean over this batch, and the model's outputs."""
        assert self.loss_of is not None
        return self.loss_of(model, batch, self.tokens(batch))


if TYPE_CHECKING:
    _Base = Trainer
else:
    _Base = object


class AdversarialMixin(_Base):
    """Any Trainer plays a game: `class Mine(AdversarialMixin, SFTTrainer): ...`, then `Mine(..., game=SALT())`.

    What the Trainer would do with its own loss, it does with the game's: accumulation, clipping, precision, logging,
    checkpoints. The loss itself is still what its `compute_loss` makes of a batch (label smoothing,
    `compute_loss_func`, a subclass's own), and evaluation and prediction are the stock ones.

    Accumulated micro-batches and several processes give the gradient of the one big batch, whatever their sizes. The
    stock Trainer averages the micro-batches' means instead for models that do not take `num_items_in_batch`, BERT
    among them. With one micro-batch and one process the method `plain` is the stock Trainer to the last bit.

    Args:
        game: the method. Its own state goes into the checkpoints, its settings and figures into logs and model card.
    """

    def __init__(self, *args: Any, game: Game, **kwargs: Any) -> None:
        """As the Trainer's own, and `game`."""
        if not isinstance(game, Game):
            raise SettingError(f"game={game!r} should be a method of stackelberg, such as SALT()")
        self.game = game
        self.diagnostics = Diagnostics()
        self._counts: Normalizer | None = None  # N of the coming step, on one rank's share
        self._micro = 0  # micro-batches of the step that were played
        self._outputs: Any = None  # of the last clean pass
        self._makes_logits: bool | None = None  # whether the mixed-in class's loss does, once that is known
        super().__init__(*args, **kwargs)
        self._refuse()
        if self.args.torch_compile:  # the game compiles its own passes; a compiled model has no second derivative
            self.accelerator.state.dynamo_plugin.backend = DynamoBackend.NO
            game.speed.compile(self.args.device)

    # ---- the loss ----------------------------------------------------------------------------------------------

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The game's objective in training, the stock loss elsewhere."""
        if not (model.training and torch.is_grad_enabled()):
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if self._makes_logits is None:
            self._makes_logits = self._looked_for_logits(model, inputs)
        with self.accelerator.autocast():  # it puts autocast into the model's forward, where the game would not see it
            loss = self.game(
                model,
                inputs,
                task=self._read(model, inputs, num_items_in_batch is not None),
                normalizer=self._counts,
                index=self._numbers(inputs),
            )
        assert self.game.report is not None
        self.diagnostics.note(self.game.report, first=self._micro == 0)
        self._micro += 1
        outputs, self._outputs = self._outputs, None
        return (loss, outputs) if return_outputs else loss

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """The stock step on a loss that is a share of the whole step's, so that nothing is left to divide."""
        accumulated, self.current_gradient_accumulation_steps = self.current_gradient_accumulation_steps, 1
        try:
            return super().training_step(model, inputs, num_items_in_batch)
        finally:
            self.current_gradient_accumulation_steps = accumulated

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """The micro-batches of the coming step; counts what they hold, over all ranks."""
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        self._micro = 0
        ranks = self.accelerator.num_processes
        if self.args.gradient_accumulation_steps == 1 and ranks == 1:
            return batches, items  # a batch's own mean is the step's
        sentences = torch.tensor(sum(find_batch_size(batch) or 0 for batch in batches), device=device)
        core = unwrap(self.model_wrapped, second_derivative=True)
        tokens = [self._read(core, batch, False).tokens(batch) for batch in batches]
        known = [count.to(device) for count in tokens if count is not None]
        local = torch.stack([sum(known, start=torch.zeros_like(sentences)) if known else sentences, sentences])
        units, sentences = self.accelerator.reduce(local.float(), reduction="sum") / ranks
        self._counts = (units, sentences)
        return batches, items

    def _read(self, model: nn.Module, inputs: dict[str, Any], counts_items: bool) -> Task:
        """How the game reads this batch: as its owner said, or with the Trainer's own loss."""
        core = unwrap(model, second_derivative=True)
        if self.game.task is not None or not describes_itself(core):
            if self.game.task is None:
                raise SettingError(
                    f"{type(core).__name__} is not a Hugging Face model, so where its logits are is not known; give "
                    "the game task=Task(kind, logits=(model, batch) → logits, loss=(logits, batch) → loss)"
                )
            return self.game.task
        return TrainerTask.of(core, inputs, loss_of=self._loss_by_items if counts_items else self._loss_by_mean)

    def _loss_by_mean(self, model: nn.Module, batch: Batch, tokens: Tensor | None) -> tuple[Tensor, Any]:
        return self._stock_loss(model, batch, None)

    def _loss_by_items(self, model: nn.Module, batch: Batch, tokens: Tensor | None) -> tuple[Tensor, Any]:
        # The batch's own count, which makes it a mean over the batch.
        items = tokens if tokens is not None else batch["labels"].ne(-100).sum()
        loss, outputs = self._stock_loss(model, batch, items)
        if self.args.average_tokens_across_devices:  # the stock loss undoes an average over ranks that we do not make
            loss = loss / self.accelerator.num_processes
        return loss, outputs

    def _stock_loss(self, model: nn.Module, batch: Batch, items: Tensor | None) -> tuple[Tensor, Any]:
        outputs: list[Any] = []
        core = unwrap(model, second_derivative=True)
        handle = core.register_forward_hook(lambda module, args, output: outputs.append(output))
        loss_of = super().compute_loss if self._makes_logits is not False else partial(Trainer.compute_loss, self)
        try:  # under the autocast of where it is usually called: none, since the model enters its own
            with torch.autocast(self.args.device.type, enabled=False):
                loss: Any = loss_of(model, dict(batch), False, items)
        finally:
            handle.remove()
        if not outputs:
            raise ModelError(f"{type(self).__name__}.compute_loss never calls the model: there is nothing to perturb")
        self._outputs = outputs[-1]
        return loss, self._outputs

    @torch.no_grad()
    def _looked_for_logits(self, model: nn.Module, inputs: dict[str, Any]) -> bool:
        """Whether a loss that is not the stock Trainer's makes logits on its way; TRL's fused head makes none.

        Without, the loss is the stock Trainer's, that is the model's own.
        """
        if super().compute_loss.__func__ is Trainer.compute_loss:  # type: ignore[attr-defined]
            return True
        with torch.random.fork_rng([self.args.device] if self.args.device.type == "cuda" else []):
            _, outputs = self._stock_loss(unwrap(model, second_derivative=True), inputs, None)
        if (outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)) is not None:
            return True
        warnings.warn(
            f"{type(self).__name__}'s own loss makes no logits, which the game compares; it plays with the model's "
            "own loss instead, and what the other would have logged beside it is left out",
            stacklevel=2,
        )
        return False

    def _numbers(self, inputs: dict[str, Any]) -> Tensor | None:
        """Each example's number within the step: batches are dealt to the ranks in turn."""
        rows: int | None = find_batch_size(inputs)
        if rows is None:
            return None
        turn = self._micro * self.accelerator.num_processes + self.accelerator.process_index
        start = turn * self._train_batch_size
        return torch.arange(start, start + rows)

    # ---- the run -----------------------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As the Trainer's own. A checkpoint that was not written to its end is not resumed from."""
        if resume_from_checkpoint is True:
            resume_from_checkpoint = checkpoints.last_whole(self._folder)
        elif resume_from_checkpoint:
            checkpoints.refuse_torn(Path(resume_from_checkpoint))
        if self.game.replays_per_batch > 1 and isinstance(self.train_dataset, IterableDataset):
            raise SettingError(
                f"method {self.game.name!r} replays each batch {self.game.replays_per_batch} times, which needs a "
                "training set that has a length; give one that is not an IterableDataset"
            )
        self.game.reset()
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def create_scheduler(self, num_training_steps: int, *args: Any, **kwargs: Any) -> Any:
        """The stock one; the game is told how long the run will be."""
        self.game.plan(num_training_steps)
        return super().create_scheduler(num_training_steps, *args, **kwargs)

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int] | None:
        sampler = super()._get_train_sampler(train_dataset)
        times = self.game.replays_per_batch
        if sampler is None or times == 1:
            return sampler
        block = self._train_batch_size * self.args.gradient_accumulation_steps * self.accelerator.num_processes
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        return ReplayedSampler(sampler, block, times, seed)

    def set_initial_training_values(self, args: Any, *rest: Any, **kwargs: Any) -> Any:
        """Where each batch is replayed m times, an epoch is m times as long, and a run has as many fewer of them."""
        epochs = args.num_train_epochs
        args.num_train_epochs = epochs / self.game.replays_per_batch
        try:
            return super().set_initial_training_values(args, *rest, **kwargs)
        finally:
            args.num_train_epochs = epochs

    def _refuse(self) -> None:
        """What cannot work, before anything long begins."""
        args = self.args
        why = {
            f"{args.n_gpu} GPUs in one process are nn.DataParallel, which has no second derivative; start one process "
            "for each GPU with torchrun, or show this one a single GPU": args.n_gpu > 1,
            "DeepSpeed ZeRO cannot run several backward passes over one model; use DDP or FSDP2": bool(args.deepspeed),
            "ddp_static_graph=True loses the game's gradients; set it to False": bool(args.ddp_static_graph),
            "fsdp_config version=1 has no second derivative; set version=2": bool(args.fsdp)
            and isinstance(args.fsdp_config, dict)
            and int(args.fsdp_config.get("version", 2)) == 1,
        }
        for sentence, there in why.items():
            if there:
                raise SettingError(sentence)

    # ---- what is written down ----------------------------------------------------------------------------------

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """The stock logs; those of training steps with the game's figures, averaged since the last."""
        if "loss" in logs:
            logs = {**logs, **{f"game/{name}": value for name, value in self.diagnostics.drain().items()}}
        super().log(logs, *args, **kwargs)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        run = Path(self._get_output_dir(trial=trial))
        folder = run / f"checkpoint-{self.state.global_step}"
        if self.args.should_save:
            checkpoints.unseal(folder)
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self.args.save_total_limit = limit
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            checkpoints.seal(folder)  # and only then may older ones go
            rotate_checkpoints(str(run), limit, self.state.best_model_checkpoint, use_mtime=True)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        state = {"method": self.game.name, "state": self.game.state_dict()}  # every rank asks
        if self.game.state_is_each_ranks_own or self.args.should_save:
            Path(output_dir).mkdir(parents=True, exist_ok=True)
            torch.save(state, Path(output_dir) / self._own(GAME))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        checkpoints.restore(Path(checkpoint) / self._own(GAME), self.game, self.state.global_step)

    @property
    def _folder(self) -> Path:
        return Path(self.args.output_dir or "trainer_output")

    def _own(self, name: str) -> str:
        """The file's name, with this rank's number where each rank has its own."""
        if not self.game.state_is_each_ranks_own or self.args.world_size == 1:
            return name
        return f"{self.args.process_index}.{name}"

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        super()._save(output_dir, state_dict)
        if self.args.should_save:
            write_whole(Path(output_dir or self._folder) / "stackelberg.json", described(self.game))

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """The stock card, with the method, its settings and its last figures."""
        super().create_model_card(*args, **kwargs)
        if self.is_world_process_zero():
            mark(self._folder / "README.md", self.game, self.diagnostics.last)


class AdversarialTrainer(AdversarialMixin, Trainer):
    """`transformers.Trainer` with a game; see `AdversarialMixin`.

    Example:
        >>> from stackelberg import SALT, AdversarialTrainer
        >>> trainer = AdversarialTrainer(model, args, game=SALT(), train_dataset=data)  # doctest: +SKIP
        >>> trainer.train()  # doctest: +SKIP
    """


class AdversarialSeq2SeqTrainer(AdversarialMixin, Seq2SeqTrainer):
    """`transformers.Seq2SeqTrainer` with a game; see `AdversarialMixin`."""
