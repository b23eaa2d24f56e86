"""The training of a translation model, from its first step or a checkpoint to its best weights on disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from stackelberg.adapters import checkpoints
from stackelberg.adapters.diagnostics import Diagnostics
from stackelberg.errors import RunError
from stackelberg.game.game import Game
from stackelberg.methods import METHODS, create
from stackelberg.nmt.batches import ahead, on, tensors
from stackelberg.nmt.cache import SIDES
from stackelberg.nmt.evaluation import Judged, Sentences
from stackelberg.nmt.model import in_space
from stackelberg.nmt.plan import MicroBatch, Plan, Position
from stackelberg.nmt.prepare import Prepared
from stackelberg.nmt.processes import Processes
from stackelberg.nmt.recipe import TranslationRecipe
from stackelberg.nmt.schedule import adam, inverse_root, set_rate
from stackelberg.nmt.state import Progress
from stackelberg.nmt.stepping import Batch, Stepping
from stackelberg.nmt.task import TranslationTask
from stackelberg.nmt.weights import averaged, load_weights, save_weights, set_weights
from stackelberg.runs.interruption import Interrupted, Interruption
from stackelberg.runs.progress import Display
from stackelberg.runs.records import Records
from stackelberg.runs.stopwatch import Stopwatch
from stackelberg.storage import write_whole

SAVE_EVERY = 300.0  # seconds between checkpoints: what a run that is killed loses at most
LOG_EVERY = 10  # steps
WEIGHTS, STATE = "model.safetensors", "state.json"


@dataclass(frozen=True)
class Trained:
    """What a training leaves behind; the model it was given has the chosen weights.

    Args:
        best_step: of the best evaluated weights.
        steps: that were made.
        averaged: how many weights the chosen ones are the mean of; 1 where the best were better.
        seconds: of all steps.
    """

    best_step: int
    steps: int
    averaged: int
    seconds: float


@dataclass(frozen=True)
class Step:
    """One process's part of a step, on its device."""

    batches: list[Batch]
    first_rows: list[int]
    sentences: int  # of the whole step, as are the next
    target_tokens: int
    tokens: int
    after: Position


def make_game(recipe: TranslationRecipe, model: Any, **changes: Any) -> Game:
    """The recipe's method, its lengths in the space that is perturbed; its noise has the recipe's seed."""
    radius = getattr(create(recipe.method, **recipe.settings), "radius", None)
    settings = in_space(recipe.settings, recipe.space, model, radius)
    known = METHODS[recipe.method].__dataclass_fields__
    changed = {name: value for name, value in changes.items() if name in known}
    task = TranslationTask.reading(model, recipe.label_smoothing)
    return create(recipe.method, **{"seed": recipe.seed, **settings, **changed}, task=task)


def rehearse(recipe: TranslationRecipe, model: Any, prepared: Prepared) -> None:
    """Play the game on two pairs before the long work, so that settings that do not go with the model show."""
    cache = prepared.cache
    rows = torch.arange(min(2, len(cache))).numpy()
    longest = [int(cache.lengths(side)[rows].max()) for side in SIDES]
    batch = tensors(cache, rows, longest[0], longest[1], prepared.codec.tokenizer.pad_token_id)
    with torch.random.fork_rng(devices=[]):
        model.train()
        make_game(recipe, model, mode="eager", start_step=0)(model, batch)


class Training:
    """One training run.

    Args:
        recipe: what to do.
        model: whose parameters are trained, on its device.
        prepared: the corpus.
        dev: sentences that weights are chosen by.
        folder: the run's.
        processes: that train together.
        records: that figures are written to; None in all processes but the first.
        shows: what a user sees.
        interruption: whether somebody asked it to stop.
    """

    def __init__(
        self,
        recipe: TranslationRecipe,
        model: Any,
        prepared: Prepared,
        dev: Sentences,
        folder: Path,
        *,
        processes: Processes,
        shows: Display,
        interruption: Interruption,
        tensorboard: bool,
    ) -> None:
        """Build what a step needs, and go to the last checkpoint if there is one."""
        self.recipe, self.model, self.prepared, self.dev = recipe, model, prepared, dev
        self.home = folder / "checkpoints"
        self.processes, self.shows, self.interruption = processes, shows, interruption
        self.plan = Plan(
            prepared.cache,
            seed=recipe.seed,
            batch_tokens=recipe.batch_tokens,
            max_tokens=recipe.max_tokens,
            least=processes.count,
            most=recipe.shapes,
            step=recipe.length_step,
        )
        self.game = make_game(recipe, model)
        self.game.plan(recipe.max_steps)
        self.optimizer = adam(recipe, model)
        torch.manual_seed(recipe.seed + processes.rank)
        self.stepping = Stepping(
            self.game,
            model,
            self.optimizer,
            clip=recipe.clip,
            precision=recipe.precision,
            processes=processes,
        )
        self.progress = Progress()
        self.figures = Diagnostics()
        self.stopwatch = Stopwatch()
        self._kept: set[int] = set()  # weights that the last checkpoint needs
        self._resume()
        self.records = Records(folder, self.progress.step, tensorboard=tensorboard) if processes.first else None
        self.seconds = self.records.seconds if self.records else 0.0

    def run(self) -> Trained:
        """Train to the end, and give the model the best weights."""
        recipe, progress = self.recipe, self.progress
        self.model.train()
        self.shows.begin(progress.step, recipe.max_steps)
        self.stopwatch.start(progress.step)
        saved, loss, tokens, games = monotonic(), torch.zeros((), device=self.processes.device), 0, 0
        over = progress.step >= recipe.max_steps or self._out_of_patience()
        steps = ahead(self._replayed(), self._made)
        while not over:
            step = next(steps)
            rate = inverse_root(progress.step, recipe.learning_rate, recipe.warmup)
            set_rate(self.optimizer, rate)
            report = self.stepping(step.batches, step.first_rows, step.target_tokens, step.sentences)
            self._count(step)
            loss, tokens, games = (
                loss + (report.loss if report.loss is not None else 0.0),
                tokens + step.tokens,
                games + 1,
            )
            self.figures.note(report, first=True)
            self.shows.step(progress.step)
            last = progress.step >= recipe.max_steps
            judged = progress.step % recipe.evaluate_every == 0 or last
            if progress.step % LOG_EVERY == 0 or judged:
                self._log(loss, tokens, games, rate)
                loss, tokens, games = torch.zeros_like(loss), 0, 0
            if judged:
                self._judge()
                over = last or self._out_of_patience()
            if not over and self._should_save(saved):
                self._save()
                saved = monotonic()
                if self.interruption.requested:
                    raise Interrupted
        steps.close()
        return self._choose()

    def close(self) -> None:
        """No more steps."""
        self.shows.close()
        if self.records is not None:
            self.records.close()

    def _replayed(self) -> Iterator[tuple[list[MicroBatch], Position]]:
        """The plan's steps, each as often as the method wants it."""
        times = self.game.replays_per_batch
        before, skipped = self.progress.position, self.progress.replayed
        for micro, after in self.plan.steps(before):
            for time in range(skipped, times):
                yield micro, after if time == times - 1 else before
            before, skipped = after, 0

    def _made(self, planned: tuple[list[MicroBatch], Position]) -> Step:
        micro, after = planned
        pad = self.prepared.codec.tokenizer.pad_token_id
        first, total = [], 0
        for batch in micro:
            first.append(total)
            total += len(batch.rows)
        own = self.stepping.share(micro)
        made = [
            on(self.processes.device, tensors(self.prepared.cache, b.rows, b.shape.source, b.shape.target, pad))
            for _, b in own
        ]
        return Step(
            made,
            [first[number] for number, _ in own],
            total,
            sum(map(self.plan.target_tokens, micro)),
            sum(map(self.plan.tokens, micro)),
            after,
        )

    def _count(self, step: Step) -> None:
        progress = self.progress
        progress.step += 1
        progress.replayed = (progress.replayed + 1) % self.game.replays_per_batch
        progress.position = step.after

    def _log(self, loss: Any, tokens: int, steps: int, rate: float) -> None:
        if self.records is None:
            return
        total = float(loss)  # waits for the device
        seconds, made = self.stopwatch.lap(self.progress.step)
        self.seconds += seconds
        found = {
            "loss": total / steps,  # of several processes, the first one's estimate
            "learning_rate": rate,
            "tokens_per_second": tokens / max(seconds, 1e-9),
            "seconds": self.seconds,
            "seconds_per_step": seconds / max(made, 1),
            **{f"game/{name}": value for name, value in self.figures.drain().items()},
        }
        self.shows.show(found)
        self.records.add(self.progress.step, found)

    def _judge(self) -> None:
        """Evaluate, in the first process, and keep the weights."""
        progress, recipe = self.progress, self.recipe
        found: Any = None
        if self.processes.first:
            with self.stopwatch.paused():
                judged = self._judged()
                save_weights(self.model, self._weights(progress.step))
            found = judged.loss, judged.bleu
        loss, bleu = self.processes.agree(found)
        progress.history.append((progress.step, loss, bleu))
        if self.records is None:
            return
        self.records.add(progress.step, {"dev/loss": loss, "dev/bleu": bleu})
        best_step, best = progress.best(recipe.choose)
        self.shows.judged(progress.scores(recipe.choose)[-1][1], best, best_step)
        self._forget(self._kept | self._needed())

    def _judged(self) -> Judged:
        recipe = self.recipe
        return self.dev.judge(
            self.model,
            score=recipe.score,
            beam=recipe.dev_beam,
            max_tokens=recipe.max_tokens,
            precision=recipe.precision,
        )

    def _out_of_patience(self) -> bool:
        patience, history = self.recipe.patience, self.progress.history
        if patience is None or not history:
            return False
        best_step, _ = self.progress.best(self.recipe.choose)
        since = len(history) - 1 - [step for step, _, _ in history].index(best_step)
        if since >= patience:
            self.shows.say(f"stopped early: {since} evaluations without a better score")
        return since >= patience

    def _choose(self) -> Trained:
        """The best weights, or the mean of the last ones where that is better."""
        recipe, progress = self.recipe, self.progress
        best_step, best = progress.best(recipe.choose)
        last = [step for step, _, _ in progress.history][-recipe.average :]
        kept = 1
        if self.processes.first:
            if len(last) > 1:
                set_weights(self.model, averaged([self._weights(step) for step in last]))
                judged = self._judged()
                mean = judged.score(recipe.choose)
                self.shows.say(
                    f"the mean of the last {len(last)} weights: dev {mean * 100:.2f}, the best {best * 100:.2f}"
                )
                best_loss = next(loss for step, loss, _ in progress.history if step == best_step)
                kept = len(last) if (mean, -judged.loss) >= (best, -best_loss) else 1
                assert self.records is not None
                self.records.add(progress.step, {"averaged/loss": judged.loss, "averaged/bleu": judged.bleu})
            if kept == 1:
                set_weights(self.model, load_weights(self._weights(best_step)))
        return Trained(best_step, progress.step, kept, self.seconds)

    def _should_save(self, saved: float) -> bool:
        """At the same steps in all processes: those that look at a clock ask the first one, and not too often."""
        every = self.recipe.save_every
        if every is not None and self.progress.step % every == 0:
            return True
        if self.processes.count == 1:
            return self.interruption.requested or (every is None and monotonic() - saved > SAVE_EVERY)
        if self.progress.step % LOG_EVERY:
            return False
        wanted, self.interruption.requested = self.processes.agree(
            (self.interruption.requested or (every is None and monotonic() - saved > SAVE_EVERY),
             self.interruption.requested)
        )  # fmt: skip
        return bool(wanted)

    def _save(self) -> None:
        """A checkpoint: each process's own state, then the rest, then the seal."""
        folder = self.home / f"checkpoint-{self.progress.step}"
        with self.stopwatch.paused():
            if self.processes.first:
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
            self.processes.wait()
            gpu = self.processes.device.type == "cuda"
            torch.save(
                {
                    "game": self.game.state_dict(),
                    "random": torch.get_rng_state(),
                    "random_gpu": torch.cuda.get_rng_state(self.processes.device) if gpu else None,
                },
                folder / f"process-{self.processes.rank}.pt",
            )
            self.processes.wait()
            if self.processes.first:
                save_weights(self.model, folder / WEIGHTS)
                torch.save(
                    {"optimizer": self.optimizer.state_dict(), "scaler": self.stepping.step.scaler.state_dict()},
                    folder / "optimizer.pt",
                )
                write_whole(folder / STATE, self.progress.written())
                checkpoints.seal(folder)
                self._kept = self._needed()
                self._forget(self._kept)
                for other in self.home.glob("checkpoint-*"):
                    if other != folder:
                        shutil.rmtree(other, ignore_errors=True)
            self.processes.wait()

    def _resume(self) -> None:
        """Go on from the newest checkpoint that is whole."""
        begun = next(self.home.glob("checkpoint-*"), None) is not None
        found = checkpoints.last_whole(self.home) if begun else None
        if found is None:
            return
        folder = Path(found)
        own = folder / f"process-{self.processes.rank}.pt"
        there = len(list(folder.glob("process-*.pt")))
        if there != self.processes.count:
            raise RunError(
                f"{folder} was written by {there} processes and {self.processes.count} would go on with it; start as "
                f"many, or remove {self.home} to begin anew"
            )
        self.progress = Progress.read((folder / STATE).read_text(encoding="utf-8"))
        set_weights(self.model, load_weights(folder / WEIGHTS))
        saved = torch.load(folder / "optimizer.pt", map_location=self.processes.device, weights_only=True)
        self.optimizer.load_state_dict(saved["optimizer"])
        self.stepping.step.scaler.load_state_dict(saved["scaler"])
        state: Mapping[str, Any] = torch.load(own, map_location="cpu", weights_only=True)
        self.game.load_state_dict(state["game"])
        torch.set_rng_state(state["random"])
        if state["random_gpu"] is not None and self.processes.device.type == "cuda":
            torch.cuda.set_rng_state(state["random_gpu"], self.processes.device)
        self._kept = self._needed()
        self.shows.say(f"going on from step {self.progress.step:,}")

    def _weights(self, step: int) -> Path:
        return self.home / f"weights-{step}.safetensors"

    def _needed(self) -> set[int]:
        """Steps whose weights the end may need."""
        evaluated = [step for step, _, _ in self.progress.history]
        return {*evaluated[-self.recipe.average :], self.progress.best(self.recipe.choose)[0]} if evaluated else set()

    def _forget(self, needed: set[int]) -> None:
        for path in self.home.glob("weights-*.safetensors"):
            if path not in {self._weights(step) for step in needed}:
                path.unlink(missing_ok=True)
