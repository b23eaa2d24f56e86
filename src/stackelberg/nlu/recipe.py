"""A recipe: everything that decides a training run, checked before anything long begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

from stackelberg.errors import SettingError, one_of
from stackelberg.game.settings.checks import number, whole
from stackelberg.nlu.catalogue import find_task
from stackelberg.nlu.recipe_file import find
from stackelberg.nlu.task import Kind
from stackelberg.runs.recipe import BaseRecipe

BERT = "google-bert/bert-base-uncased"  # the paper's
KINDS = ("classes", "score")
PRECISIONS = ("float32", "bfloat16", "float16")
WEIGHTS = ("float32", "bfloat16")
SCHEDULES = ("linear", "cosine", "constant")
LARGEST_COUNT = 10**9

TEXTS = ("task", "data", "train", "dev", "test", "text", "pair", "label", "model", "method", "form")
PATHS = ("data", "train", "dev", "test")
NAMES = ("labels", "metrics", "gaps")


@dataclass(frozen=True, kw_only=True)
class Recipe(BaseRecipe):
    """What is trained, on what, how.

    Args:
        task: a name in the catalogue; None for files of your own.
        data: the folder the task is in; the Hugging Face hub when None.
        train: a CSV, TSV or JSON Lines file to train on, instead of the task's.
        dev: the file that chooses the best model; without one, rows of `train` are held out for it.
        test: a file to predict on.
        text: the files' column of the first text; `text` when None, or the task's.
        pair: that of the second.
        label: that of the class or score; `label` when None, or the task's.
        kind: of a task of your own: `classes`, or one real `score`.
        labels: the classes of a task of your own, in order; those found in `train` when None.
        metrics: of a task of your own; the first one's usual when None.
        hold_out: share of `train` held out where there is no dev split.
        model: a name on the hub, or a folder.
        method: of `stackelberg.METHODS`.
        settings: of the method, by name.
        seed: of the head's first weights, the order of the rows, dropout and the method's noise.
        epochs: passes over the training rows, for every method: one that replays batches makes fewer, longer ones.
        max_steps: optimizer steps, instead of epochs.
        batch_size: rows that the model sees at once.
        accumulate: batches to an optimizer step.
        learning_rate: AdamW's, at its highest.
        betas: AdamW's.
        weight_decay: AdamW's; none on biases and norms. With 0 it is Adam.
        warmup: share of the steps in which the learning rate grows to its highest.
        schedule: what it does then: falls to 0 (`linear`, `cosine`), or stays (`constant`).
        clip: the norm that gradients are clipped to; 0 does not clip.
        precision: of the computation; `bfloat16` and `float16` are autocast.
        weights: of the parameters themselves.
        max_length: tokens that rows are cut to.
        head_dropout: of the layers on top of the encoder; the model's own when None.
        patience: evaluations without a better score after which training stops; never when None.
        evaluate_every: steps between evaluations on the dev split; an epoch when None.
        form: `tuned`, ours, or `paper`: which of a recipe's two forms this is.
        grid: values that the recipe's source tried, by field.
        gaps: what the recipe's source does not say, a sentence each.
        methods: what the recipe's file sets of each method, for `replace(method=...)`.
    """

    NOUN: ClassVar[str] = "recipe"
    ABOUT: ClassVar[tuple[str, ...]] = ("form", "grid", "gaps", "methods")

    task: str | None = None
    data: str | None = None
    train: str | None = None
    dev: str | None = None
    test: str | None = None
    text: str | None = None
    pair: str | None = None
    label: str | None = None
    kind: Kind = "classes"
    labels: tuple[str, ...] | None = None
    metrics: tuple[str, ...] | None = None
    hold_out: float = 0.1
    model: str = BERT
    method: str = "salt"
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    epochs: float = 3.0
    max_steps: int | None = None
    batch_size: int = 32
    accumulate: int = 1
    learning_rate: float = 3e-5
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.01
    warmup: float = 0.1
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    clip: float = 1.0
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    weights: Literal["float32", "bfloat16"] = "float32"
    max_length: int = 128
    head_dropout: float | None = None
    patience: int | None = None
    evaluate_every: int | None = None
    form: str = "tuned"
    grid: Mapping[str, Any] = field(default_factory=dict)
    gaps: tuple[str, ...] = ()
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check every field; what is written in several ways becomes one."""
        self._check_texts()
        self._check_numbers()
        self._check_task()
        self._check_method()

    @classmethod
    def load(cls, source: str | Path | None = None, overrides: Sequence[str] = (), **fields: Any) -> Recipe:
        """A recipe from a file or a shipped one, changed.

        Args:
            source: `glue/rte` or `rte`, a task without a recipe, or a YAML file; None for the fields alone.
            overrides: `key=value` as in YAML, `settings.epsilon=0.5` for the method's own.
            fields: of the recipe, stronger than the file and weaker than `overrides`. One that is None was not given.
        """
        return cls(**cls._changed(find(source), overrides, fields))

    def deciding(self) -> dict[str, Any]:
        """Every field that decides the result; files and folders by where they really are."""
        found = super().deciding()
        for name in PATHS:
            found[name] = None if found[name] is None else str(Path(found[name]).resolve())
        if Path(self.model).is_dir():
            found["model"] = str(Path(self.model).resolve())
        return found

    def _check_texts(self) -> None:
        for name in TEXTS:
            value = getattr(self, name)
            if isinstance(value, Path):
                object.__setattr__(self, name, value := str(value))
            optional = next(f.default for f in fields(self) if f.name == name) is None
            if not (isinstance(value, str) and value.strip()) and not (optional and value is None):
                raise SettingError(f"{name}={value!r} should be a text{_or_none(optional)}")
        for name in NAMES:
            value = getattr(self, name)
            if value is not None:
                if isinstance(value, str) or not isinstance(value, Sequence):
                    raise SettingError(f"{name}={value!r} should be a list of names, such as [a, b]")
                if not all(isinstance(each, str | int | float) and not isinstance(each, bool) for each in value):
                    raise SettingError(
                        f"{name}={value!r} should be names; YAML reads yes, no, on and off as no texts: "
                        "put quotes around them"
                    )
                object.__setattr__(self, name, tuple(map(str, value)))
        self._check_mappings()
        for name, known in (
            ("kind", KINDS),
            ("precision", PRECISIONS),
            ("weights", WEIGHTS),
            ("schedule", SCHEDULES),
        ):
            one_of(name, getattr(self, name), known)

    def _check_numbers(self) -> None:
        self._check_seed_and_betas()
        for name in ("batch_size", "accumulate", "max_length", "max_steps", "patience", "evaluate_every"):
            value = getattr(self, name)
            if value is not None or name in ("batch_size", "accumulate", "max_length"):
                whole(name, value, 1)
                number(name, value, most=LARGEST_COUNT)
        number("epochs", self.epochs, above=0)
        number("learning_rate", self.learning_rate, above=0)
        number("weight_decay", self.weight_decay, least=0)
        number("clip", self.clip, least=0)
        number("warmup", self.warmup, least=0, most=1)
        number("hold_out", self.hold_out, above=0, most=0.9)
        if self.head_dropout is not None:
            number("head_dropout", self.head_dropout, least=0, most=0.9)
        self._make_floats()

    def _check_task(self) -> None:
        if self.task is None and self.train is None:
            raise SettingError("there is nothing to train on: give a task, such as rte, or a train file of your own")
        if self.task is not None:
            object.__setattr__(self, "task", find_task(self.task).name)
            for name in ("labels", "metrics"):
                if getattr(self, name) is not None:
                    raise SettingError(f"{name} are of a task of your own, and {self.task} has its own; leave them out")
        if self.metrics is not None:
            from stackelberg.nlu.metrics import METRICS

            for metric in self.metrics:
                one_of("metrics", metric, METRICS)
            if not self.metrics:
                raise SettingError(f"metrics={list(self.metrics)} should name at least one of {', '.join(METRICS)}")
        for name in ("text", "pair", "label"):
            if self.train is self.dev is self.test is None and getattr(self, name) is not None:
                raise SettingError(
                    f"{name}={getattr(self, name)!r} is a column of files of your own; give train, dev or test too"
                )
        if self.task is None and self.data is not None:
            raise SettingError(f"data={self.data!r} is a folder of named tasks; with files of your own leave it out")


def _or_none(optional: bool) -> str:
    return ", or be left out" if optional else ""
