"""Lightning, playing a game: one changed line in `training_step`, and a callback."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from itertools import chain, islice, repeat
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader

from ..errors import ModelError, SettingError, needs
from ..game.game import Game
from .diagnostics import Diagnostics

with needs("lightning", extra="lightning"):
    from lightning.fabric.utilities import move_data_to_device
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.utilities import CombinedLoader


class GameCallback(Callback):
    """What a game needs to know of a Lightning run, and what the run needs to keep of a game.

    A `LightningModule` plays a game by three lines: `self.game = SALT()` in its `__init__`,
    `return self.game(self.model, batch)` instead of `self.model(**batch).loss` in its `training_step`, and
    `callbacks=[GameCallback(module.game)]` in its `Trainer`. In validation and test the same call is the plain loss.

    The callback tells the game the length of the training, keeps the game's state in Lightning's checkpoints, starts
    it anew for a new `fit`, logs its figures as `game/divergence` and so on (means over `log_every_n_steps` steps and
    over ranks), puts its settings among the hyper-parameters of each logger, and refuses what cannot work before the
    training begins. The Trainer and module of `pytorch_lightning` are as welcome as those of `lightning`.

    **Accumulation.** With `accumulate_grad_batches=k` Lightning divides each micro-batch's loss by k. The gradient is
    then that of one big batch if the micro-batches are equally large (in sentences, or in real tokens where the loss
    is a mean over tokens). Where they are not, every call needs the same denominator,
    `self.game(self.model, batch, normalizer=N)` with N the whole step's count divided by k and by the number of
    ranks; or, since Lightning hands micro-batches out one at a time, a usual micro-batch's count, which weighs every
    example of the training alike. Lightning divides by k at the end of an epoch too, when fewer than k are left.

    **Manual optimization** works, and is what `self.game.backward(self.model, batch)` needs: automatic optimization
    clears gradients after `training_step`. Each batch's figures are logged as they are then, whatever is accumulated.

    Args:
        game: the one that `training_step` plays.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from stackelberg.adapters.lightning import GameCallback
        >>> trainer = Trainer(callbacks=[GameCallback(module.game)])  # doctest: +SKIP
    """

    def __init__(self, game: Game) -> None:
        """See the class."""
        if not isinstance(game, Game):
            raise SettingError(f"GameCallback was given {game!r}; give it the module's game, such as SALT()")
        self.game = game
        self.diagnostics = Diagnostics()
        self._step = 0  # the optimizer step whose examples are numbered
        self._dealt, self._dealing = 0, 0  # examples of that step: in earlier micro-batches, and in this one

    # ---- a run -------------------------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse what cannot work; begin anew, unless this `fit` goes on from the last."""
        if stage != "fit":
            return
        _refuse(trainer)
        self.diagnostics, self.game.report, self._dealt = Diagnostics(), None, 0
        if trainer.global_step == 0:
            self.game.reset()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record method and settings. Some loggers keep only what they are told first, so all is said at once."""
        owners: list[Any] = [pl_module, getattr(trainer, "datamodule", None)]
        known: dict[str, Any] = {}
        for owner in owners:
            known |= owner.hparams_initial if getattr(owner, "_log_hyperparams", False) else {}
        for logger in trainer.loggers:
            logger.log_hyperparams({**known, "game": {"method": self.game.name, **self.game.settings}})

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell the game how long the training will be, where that is known."""
        _refuse_loader(self.game, trainer)
        total = trainer.estimated_stepping_batches
        if math.isfinite(total) and total > 0:
            self.game.plan(int(total))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Note the figures; log them when Lightning logs."""
        if self.game.report is None:
            raise ModelError(
                f"{type(pl_module).__name__}.training_step did not play the game: it should return "
                "self.game(self.model, batch), with self.model in training mode (from_pretrained leaves a model in "
                "evaluation mode; call self.model.train() in __init__)"
            )
        self._dealt += self._dealing
        self._dealing = 0
        self.diagnostics.note(self.game.report, first=True)  # a mean over micro-batches, as Lightning's gradient is
        if _logs_now(trainer):
            figures = {f"game/{name}": value for name, value in self.diagnostics.drain().items()}
            pl_module.log_dict(figures, on_step=True, on_epoch=False, sync_dist=True)

    # ---- checkpoints -------------------------------------------------------------------------------------------

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """With the game's state: of each rank, where it is each rank's own."""
        state = self.game.state_dict()  # every rank asks
        states = [state]
        if self.game.state_is_each_ranks_own and trainer.world_size > 1:
            states = [{} for _ in range(trainer.world_size)]
            dist.all_gather_object(states, move_data_to_device(state, torch.device("cpu")))
        checkpoint["callbacks"][self.state_key] = {"method": self.game.name, "states": states}

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Go on from it; from another game's, or none, only the step is taken over."""
        if trainer.state.fn != "fit":
            return
        saved, step = checkpoint["callbacks"].get(self.state_key), checkpoint["global_step"]
        ranks = trainer.world_size if self.game.state_is_each_ranks_own else 1
        if saved is None:
            why = "holds no state of a game"
        elif saved["method"] != self.game.name:
            why = f"was written by method {saved['method']!r}"
        elif len(saved["states"]) != ranks:
            why = (
                f"was written by {len(saved['states'])} processes, each with a state of its own, and these are {ranks}"
            )
        else:
            self.game.load_state_dict(saved["states"][trainer.global_rank if ranks > 1 else 0])
            return
        warnings.warn(f"the checkpoint {why}; {self.game.name!r} begins at step {step}", stacklevel=2)
        self.game.reset(step)

    # ---- several processes -------------------------------------------------------------------------------------

    def number(self, trainer: Trainer, count: int) -> Tensor:
        """See `example_numbers`."""
        if trainer.global_step != self._step:
            self._step, self._dealt = trainer.global_step, 0
        self._dealing = count
        own = torch.arange(self._dealt, self._dealt + count, device=trainer.strategy.root_device)
        return own * trainer.world_size + trainer.global_rank


def example_numbers(module: LightningModule, count: int) -> Tensor:
    """The numbers within the optimizer step of the `count` examples of this batch, (count,), for the game's `index=`.

    With them, start noise does not depend on how many processes share a step, nor on how it is cut into
    micro-batches: `self.game(self.model, batch, index=example_numbers(self, len(batch["labels"])))`. Examples are
    taken to be dealt out in turn, as Lightning's `DistributedSampler` does.
    """
    for callback in module.trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, GameCallback):
            return callback.number(module.trainer, count)
    raise SettingError("example_numbers needs the Trainer to have a GameCallback; add one to its callbacks")


class ReplayedLoader(DataLoader[Any]):
    """A DataLoader whose batches come `replays` times each, for methods that replay them, FreeAT among them.

    Every replay is an optimizer step of its own, so that a run of equal length has `max_epochs / replays` epochs.
    Lightning's own changes to a loader, such as a sampler for several processes, keep the replays.

    Args:
        replays: how often; pass `game.replays_per_batch`, which is 1 for other methods.
        accumulate: the Trainer's `accumulate_grad_batches`. A step's micro-batches are replayed together; what is
            left at the end of an epoch, too little for a step, is played once.
        *args: as of DataLoader.
        **kwargs: as of DataLoader.
    """

    def __init__(self, *args: Any, replays: int, accumulate: int = 1, **kwargs: Any) -> None:
        """See the class."""
        super().__init__(*args, **kwargs)
        self.replays = replays
        self.accumulate = accumulate

    def __len__(self) -> int:
        """Batches in an epoch, replays included."""
        steps, rest = divmod(super().__len__(), self.accumulate)
        return steps * self.accumulate * self.replays + rest

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """One epoch."""
        batches = super().__iter__()
        while step := list(islice(batches, self.accumulate)):
            yield from chain.from_iterable(repeat(step, self.replays if len(step) == self.accumulate else 1))


def _refuse(trainer: Trainer) -> None:
    """What cannot work, by name. Names, since `lightning` and `pytorch_lightning` have a class each."""
    kinds = {kind.__name__ for kind in type(trainer.strategy).__mro__}
    if "DeepSpeedStrategy" in kinds:
        raise SettingError("DeepSpeedStrategy cannot run several backward passes over one model; use strategy='ddp'")
    if "FSDPStrategy" in kinds:
        raise SettingError("FSDPStrategy (FSDP1) has no second derivative; use ModelParallelStrategy (FSDP2), or 'ddp'")
    if "DDPStrategy" in kinds and getattr(trainer.strategy, "_ddp_kwargs", {}).get("static_graph"):
        raise SettingError("DDPStrategy(static_graph=True) loses the game's gradients; set static_graph=False")


def _refuse_loader(game: Game, trainer: Trainer) -> None:
    """A loader that does not replay its batches as the game's method does."""
    k = trainer.accumulate_grad_batches
    for loader in CombinedLoader(trainer.train_dataloader).flattened:
        replays, accumulate = getattr(loader, "replays", 1), getattr(loader, "accumulate", k)
        if replays != game.replays_per_batch or (replays > 1 and accumulate != k):
            raise SettingError(
                f"method {game.name!r} plays each batch {game.replays_per_batch} times, the micro-batches of a step "
                f"together, but the training's {type(loader).__name__} does not; make it ReplayedLoader(..., "
                f"replays=game.replays_per_batch, accumulate={k}) of stackelberg.adapters.lightning, and divide "
                "max_epochs by the replays"
            )


def _logs_now(trainer: Trainer) -> bool:
    """Whether Lightning logs what is known after this batch, as its own callbacks find out."""
    return trainer._logger_connector.should_update_logs and not trainer.fit_loop._should_accumulate()
