"""A translation run's folder: one recipe, trained.

recipe.yaml       what was asked for            result.json       figures; written last: the run is finished
versions.json     what it was made with         model/            the model, an ordinary Hugging Face folder
metrics.jsonl     figures by step               translations/     of dev and test, and their scores with signatures
tensorboard/      the same, to look at          checkpoints/      while it is not finished
"""

from __future__ import annotations

import json
import math
import shlex
import shutil
from collections.abc import Iterable
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from stackelberg.decoding import listing
from stackelberg.errors import RunError, SettingError, StackelbergError, needs
from stackelberg.nmt.recipe import TranslationRecipe
from stackelberg.runs.records import finite, read_records
from stackelberg.storage import sweep_unfinished, whole_folder, write_whole

if TYPE_CHECKING:
    from stackelberg.nmt.evaluation import Sentences
    from stackelberg.nmt.processes import Processes
    from stackelberg.nmt.scores import Score
    from stackelberg.nmt.search import Search, Translator
    from stackelberg.nmt.training import Trained
    from stackelberg.runs.progress import Display

RECIPE, RESULT, VERSIONS, SCORES = "recipe.yaml", "result.json", "versions.json", "scores.json"
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
            if joined.agree(_is_finished(folder, recipe) if joined.first else None):
                return cls.open(folder)
            _check_machine(recipe)
            shows = display(quiet=quiet or not joined.first)
            with warnings_to(shows):
                return cls._train(recipe, folder, joined, shows, tensorboard, keep_checkpoints)

    @classmethod
    def open(cls, folder: Path | str) -> TranslationRun:
        """A finished run."""
        folder = Path(folder)
        if not (folder / RECIPE).is_file():
            raise RunError(f"{folder} is no run: it has no {RECIPE}; {listing(folder)}")
        if not (folder / RESULT).is_file():
            raise RunError(f"{folder} is not finished: it has no {RESULT}; finish it with: {resuming(folder)}")
        said: dict[str, float | None] = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        figures = {name: math.nan if value is None else value for name, value in said.items()}
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

    def scores(self, split: str) -> dict[str, Score]:
        """Figures with their signatures."""
        from stackelberg.nmt.scores import Score

        said = json.loads((self.folder / "translations" / SCORES).read_text(encoding="utf-8"))
        if split not in said:
            raise RunError(f"{self.folder} has no scores of {split!r}; it has {', '.join(said)}")
        return {name: Score(**score) for name, score in said[split].items()}

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
            folder.mkdir(parents=True, exist_ok=True)
            sweep_unfinished(folder)
            if recipe.synthetic is not None:
                invent(recipe, folder)
            corpora(recipe, folder)  # all of them are there, before anything long
            write_whole(folder / RECIPE, recipe.to_yaml())
            write_whole(folder / VERSIONS, json.dumps(_versions(provenance()), indent=2) + "\n")
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
        import torch

        from stackelberg.adapters.card import described, mark
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
        logged = [record for record in read_records(folder) if "seconds" in record]
        result: dict[str, float] = {
            f"{split}/{name}": each.value for split, found in scores.items() for name, each in found.items()
        }
        result |= {
            "dev/loss": sentences["dev"].loss(model, max_tokens=recipe.max_tokens, precision=recipe.precision),
            "steps": trained.steps,
            "best_step": trained.best_step,
            "averaged": trained.averaged,
            "seconds": trained.seconds,
            "seconds_per_step": median(record["seconds_per_step"] for record in logged),
            "tokens_per_second": median(record["tokens_per_second"] for record in logged),
        }
        if torch.cuda.is_available():
            result["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        game = make_game(recipe, model)
        last = {name.removeprefix("game/"): value for name, value in logged[-1].items() if name.startswith("game/")}
        write_whole(folder / "model" / "README.md", card(recipe, scores, result))
        mark(folder / "model" / "README.md", game, last)
        write_whole(folder / "model" / "stackelberg.json", described(game))
        write_whole(folder / RESULT, json.dumps(finite(result), indent=2) + "\n")


def resuming(folder: Path) -> str:
    """The command that goes on with a run."""
    return shlex.join(["stackelberg", "train", str(folder / RECIPE), "--out", str(folder)])


def _is_finished(folder: Path, recipe: TranslationRecipe) -> bool:
    """Whether there is nothing left to do; refuses a folder that is not this run's."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file where a run's folder is needed; give another --out")
    if not folder.exists() or not any(folder.iterdir()):
        return False
    if not (folder / RECIPE).is_file():
        if {path.name for path in folder.iterdir()} <= {"corpus"} and recipe.synthetic is not None:
            return False  # killed before it began
        raise RunError(f"{folder} is not empty and holds no run; give another --out ({listing(folder)})")
    try:
        there = TranslationRecipe.load(folder / RECIPE)
    except StackelbergError as error:
        raise RunError(f"{folder} holds a run whose recipe cannot be read: {error}") from error
    if there.key() != recipe.key():
        raise RunError(
            f"{folder} holds a run of another recipe ({recipe.difference(there)}); give another --out, or remove it"
        )
    return (folder / RESULT).is_file()


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


def _versions(found: dict[str, Any]) -> dict[str, Any]:
    from importlib.metadata import PackageNotFoundError, version

    for package in ("sacrebleu", "sacremoses", "ctranslate2"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    write_whole(path, "".join(line + "\n" for line in lines))
