"""A translation run's folder: one recipe, trained.

recipe.yaml       what was asked for            result.json       figures; written last: the run is finished
versions.json     what it was made with         model/            the model, an ordinary Hugging Face folder
metrics.jsonl     figures by step               translations/     of dev and test, and their scores with signatures
tensorboard/      the same, to look at          checkpoints/      while it is not finished
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from stackelberg.decoding import listing
from stackelberg.errors import RunError, SettingError, needs
from stackelberg.nmt.recipe import TranslationRecipe
from stackelberg.runs.folder import RECIPE, begin, cost, figures_of, finish, is_finished, logged, read_json
from stackelberg.runs.lock import held
from stackelberg.storage import whole_folder, write_whole

if TYPE_CHECKING:
    from stackelberg.nmt.evaluation import Sentences
    from stackelberg.nmt.processes import Processes
    from stackelberg.nmt.scores import Score
    from stackelberg.nmt.search import Search, Translator
    from stackelberg.nmt.training import Trained
    from stackelberg.runs.progress import Display

SCORES = "scores.json"
MAIN = {"tokenized": "tokenized_bleu", "sacrebleu": "sacrebleu"}  # a recipe's `score`, as figures name it


class TranslationRun:
    """A finished run.

    Args:
        folder: the run's.
        recipe: that it was trained with.
        figures: times 100 by split and score, such as `test/sacrebleu`; `dev/loss`; and of the training `steps`,
            `best_step`, `averaged`, `seconds`, `seconds_per_step`, `tokens_per_second` (real ones of both sides; the
            median over what was logged), and `peak_gib` on a GPU.
    """

    def __init__(self, folder: Path, recipe: TranslationRecipe, figures: dict[str, float]) -> None:
        """Of a folder that is known to be whole; use `train` or `open`."""
        self.folder = folder
        self.recipe = recipe
        self.figures = figures

    @classmethod
    def train(
        cls,
        recipe: TranslationRecipe,
        folder: Path | str,
        *,
        quiet: bool = False,
        tensorboard: bool = True,
        keep_checkpoints: bool = False,
    ) -> TranslationRun:
        """Train, go on with a run that was interrupted, or return at once one that is finished.

        Under `torchrun` all processes train together.

        Args:
            recipe: what to train.
            folder: new, empty, or a run's with the same recipe; any other is refused.
            quiet: say nothing on standard error.
            tensorboard: write for TensorBoard too.
            keep_checkpoints: leave them where they are when the run is finished.
        """
        from stackelberg.nmt.processes import processes
        from stackelberg.runs.progress import display, warnings_to

        folder = Path(folder)
        with processes() as joined:
            before = () if recipe.synthetic is None else ("corpus",)  # of a run that was killed before it began
            if joined.agree(is_finished(folder, recipe, before=before) if joined.first else None):
                return cls.open(folder)
            _check_machine(recipe)
            shows = display(quiet=quiet or not joined.first)
            with warnings_to(shows), held(folder):
                if joined.agree(is_finished(folder, recipe, before=before) if joined.first else None):
                    return cls.open(folder)  # by a process that held it until now
                return cls._train(recipe, folder, joined, shows, tensorboard, keep_checkpoints)

    @classmethod
    def open(cls, folder: Path | str) -> TranslationRun:
        """A finished run."""
        folder = Path(folder)
        figures = figures_of(folder)
        return cls(folder, TranslationRecipe.load(folder / RECIPE), figures)

    @property
    def model_folder(self) -> Path:
        """The model and its tokenizer, for `from_pretrained`."""
        return self.folder / "model"

    @property
    def search(self) -> Search:
        """As the recipe wants it."""
        from stackelberg.nmt.search import Search

        return Search(beam=self.recipe.beam, length_penalty=self.recipe.length_penalty)

    @cached_property
    def translator(self) -> Translator:
        """The model, on the GPU if there is one."""
        from stackelberg.nmt.generating import load_translator

        return load_translator(self.model_folder)

    def translations(self, split: str, *, tokenized: bool = False) -> list[str]:
        """Of `dev` or `test`, as running text or as the model writes them."""
        path = self.folder / "translations" / f"{split}{'.tokenized' * tokenized}.txt"
        if not path.is_file():
            raise RunError(f"{self.folder} has no translations of {split!r}; {listing(path.parent)}")
        return path.read_text(encoding="utf-8").split("\n")[:-1]

    @property
    def judged_by(self) -> tuple[str, ...]:
        """The splits that there are scores of."""
        return tuple(self._scores)

    def scores(self, split: str) -> dict[str, Score]:
        """Figures with their signatures."""
        from stackelberg.nmt.scores import Score

        if split not in self._scores:
            raise RunError(f"{self.folder} has no scores of {split!r}; it has {', '.join(self._scores)}")
        return {name: Score(**score) for name, score in self._scores[split].items()}

    @cached_property
    def _scores(self) -> dict[str, Any]:
        return read_json(self.folder / "translations" / SCORES, dict)

    @classmethod
    def _train(
        cls,
        recipe: TranslationRecipe,
        folder: Path,
        joined: Processes,
        shows: Display,
        tensorboard: bool,
        keep: bool,
    ) -> TranslationRun:
        import torch

        from stackelberg.nmt.evaluation import Sentences
        from stackelberg.nmt.model import load_model
        from stackelberg.nmt.prepare import home, prepare
        from stackelberg.nmt.recipe_data import corpora, invent, preparation
        from stackelberg.nmt.training import Training, rehearse
        from stackelberg.runs.interruption import Interrupted, Interruption
        from stackelberg.runs.provenance import provenance

        if recipe.form == "paper" and recipe.gaps:
            shows.say(f"warning: the paper does not say {'; '.join(recipe.gaps)}")
        if joined.first:
            if recipe.synthetic is not None:
                invent(recipe, folder)
            corpora(recipe, folder)  # all of them are there, before anything long
            begin(folder, recipe, provenance("sacrebleu", "sacremoses", "ctranslate2"))
        caches = Path(recipe.cache) if recipe.cache is not None else home()
        if not joined.first:
            joined.wait()
        found = corpora(recipe, folder)
        prepared = prepare(found["train"], preparation(recipe), caches, shows.say)
        if joined.first:
            joined.wait()
        sentences = {name: Sentences.of(found[name], prepared.codec) for name in found if name != "train"}
        torch.manual_seed(recipe.seed)  # the first weights
        model = load_model(recipe.model, prepared.codec, dropout=recipe.dropout)
        _check_positions(recipe, model)
        rehearse(recipe, model, prepared)
        model.to(joined.device)
        interruption = Interruption(shows.say)
        with interruption.watched():
            training = Training(
                recipe,
                model,
                prepared,
                sentences["dev"],
                folder,
                processes=joined,
                shows=shows,
                interruption=interruption,
                tensorboard=tensorboard,
            )
            plan = training.plan
            shows.say(
                f"{recipe.method} on {recipe.model}, {sum(p.numel() for p in model.parameters()):,} parameters, "
                f"{len(plan.shapes)} shapes of batches with {plan.padding:.0%} of padding, into {folder}"
            )
            try:
                trained = training.run()
            finally:
                training.close()
        if joined.first:
            cls._finish(recipe, folder, prepared.codec, model, sentences, trained, shows)
            if not keep:
                shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        joined.wait()
        if interruption.requested:
            raise Interrupted
        return cls.open(folder)

    @classmethod
    def _finish(
        cls,
        recipe: TranslationRecipe,
        folder: Path,
        codec: Any,
        model: Any,
        sentences: dict[str, Sentences],
        trained: Trained,
        shows: Display,
    ) -> None:
        """From the trained model to the figures, each file whole, the result last."""
        from stackelberg.nmt.generating import Generating
        from stackelberg.nmt.hush import hushed
        from stackelberg.nmt.run_card import card
        from stackelberg.nmt.search import Search, Translator
        from stackelberg.nmt.training import make_game

        shutil.rmtree(folder / "model", ignore_errors=True)  # of a run that was killed here
        with whole_folder(folder / "model") as unfinished, hushed():
            model.save_pretrained(str(unfinished))
            codec.save(unfinished)
        how = Search(beam=recipe.beam, length_penalty=recipe.length_penalty)
        translator = Translator(Generating(model, codec, recipe.precision), codec, batch_tokens=recipe.max_tokens)
        scores: dict[str, dict[str, Score]] = {}
        for split, these in sentences.items():
            shows.say(f"translating {split}, {len(these):,} sentences with beam {recipe.beam}")
            found = translator.best(these.sources, how, prepared=True)
            _write_lines(folder / "translations" / f"{split}.txt", [one.text for one in found])
            _write_lines(folder / "translations" / f"{split}.tokenized.txt", [one.tokenized for one in found])
            scores[split] = these.figures(found)
        said = {split: {name: asdict(each) for name, each in found.items()} for split, found in scores.items()}
        write_whole(folder / "translations" / SCORES, json.dumps(said, indent=2) + "\n")
        result: dict[str, float] = {
            f"{split}/{name}": each.value for split, found in scores.items() for name, each in found.items()
        }
        result |= {
            "dev/loss": sentences["dev"].loss(model, max_tokens=recipe.max_tokens, precision=recipe.precision),
            "steps": trained.steps,
            "best_step": trained.best_step,
            "averaged": trained.averaged,
            "seconds": trained.seconds,
            **cost(folder),
            "tokens_per_second": median(record["tokens_per_second"] for record in logged(folder)),
        }
        finish(folder, make_game(recipe, model), card(recipe, scores, result), result)


def _check_machine(recipe: TranslationRecipe) -> None:
    """Refuse, before long work, what this machine cannot do."""
    import torch

    if recipe.precision == "float16" and not torch.cuda.is_available():
        raise SettingError("precision='float16' needs a GPU; use bfloat16 or float32")
    for package in ("tokenizers", "sacrebleu", "transformers", "safetensors", *(["sacremoses"] * recipe.moses)):
        with needs(package, extra="nmt"):
            __import__(package)


def _check_positions(recipe: TranslationRecipe, model: Any) -> None:
    from stackelberg.nmt.model import positions

    most = positions(model)
    if most is not None and recipe.max_length > most:
        raise SettingError(f"max_length={recipe.max_length}, but {recipe.model} has {most} positions; lower max_length")


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    write_whole(path, "".join(line + "\n" for line in lines))
