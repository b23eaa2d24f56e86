"""A translation recipe: everything that decides a training run, checked before anything long begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

from stackelberg.errors import SettingError, one_of
from stackelberg.game.settings.checks import flag, number, whole
from stackelberg.nmt.recipe_file import find
from stackelberg.nmt.text import SEGMENTATIONS, Segmentation
from stackelberg.runs.recipe import BaseRecipe

PRECISIONS = ("float32", "bfloat16", "float16")
SPACES = ("lookup", "input")
CHOICES = ("bleu", "loss")
SCORES = ("tokenized", "sacrebleu")

TEXTS = ("source", "target", "data", "train", "dev", "test", "hub", "hub_config", "prefix", "source_code",
         "target_code", "model", "method", "form", "cache")  # fmt: skip
WHOLE = ("merges", "max_words", "max_length", "batch_tokens", "max_tokens", "shapes", "length_step", "max_steps",
         "warmup", "evaluate_every", "dev_beam", "beam")  # fmt: skip
OPTIONAL_WHOLE = ("patience", "save_every", "synthetic")
FLAGS = ("moses", "lowercase", "joint")


@dataclass(frozen=True, kw_only=True)
class TranslationRecipe(BaseRecipe):
    """What is translated, with what model, trained how.

    Args:
        source: the language translated from, as files' names end.
        target: the language translated to.
        data: the folder with the files.
        train: of the training files' names, what comes before the language: `train` for `train.en`, `train.de`.
        dev: of those that choose the model.
        test: of those that judge it; None where there are none.
        hub: a data set on the hub instead of `data`, whose splits are then `train`, `dev` and `test`.
        hub_config: its configuration.
        synthetic: pairs of a made-up language instead of files, for trying things out.
        moses: tokenise as Moses does, by sacremoses.
        lowercase: lower-case both sides.
        segmentation: `words`: the text is tokenised, and pieces stay within its words; `text`: running text;
            `pieces`: the text is cut into pieces already, marked by `@@`.
        merges: of byte-pair encoding.
        joint: one vocabulary, and one table of embeddings, for both languages.
        max_words: training pairs with more words on a side are left out.
        max_ratio: and those with so many times more words on one side than on the other.
        max_length: and those with more pieces on a side.
        prefix: what every source begins with, for models that need it (T5).
        source_code: what a many-language model's tokenizer calls the source.
        target_code: what it calls the target.
        model: `base`, `iwslt`, `big` or `tiny`, untrained; or a folder or name on the hub to go on from.
        dropout: the model's own when None.
        method: of `stackelberg.METHODS`.
        settings: of the method, by name.
        space: that the method's ε, σ and η are lengths in: `lookup`, of the embeddings as they are looked up, or
            `input`, after they are multiplied by √d, where the model does that.
        seed: of the first weights, the order of the sentences, dropout and the method's noise.
        batch_tokens: real target tokens of an optimizer step.
        max_tokens: that the model sees at once, padding included, on the longer side; steps are gathered from these.
        shapes: how many shapes of batches there may be; each is one captured graph on a GPU.
        length_step: lengths are padded to multiples of this.
        max_steps: optimizer steps.
        learning_rate: Adam's, at its highest.
        warmup: steps in which the learning rate grows to its highest; then it falls with the root of the steps.
        betas: Adam's.
        weight_decay: Adam's, decoupled; none on biases and norms.
        clip: the norm that gradients are clipped to; 0 does not clip.
        label_smoothing: ε of the smoothed cross-entropy.
        precision: of the computation; `bfloat16` and `float16` are autocast.
        evaluate_every: steps between evaluations.
        patience: evaluations without a better score after which training stops; never when None.
        choose: the model by dev `bleu` or dev `loss`.
        average: the last so many evaluated weights are averaged at the end, and kept if that is better; 1 does not.
        dev_beam: of the search in evaluations during training.
        beam: of the search at the end.
        length_penalty: of the search at the end.
        score: the BLEU that is meant where one is: `tokenized`, as multi-bleu.perl, or `sacrebleu`.
        cache: the folder of binarised corpora; STACKELBERG_CACHE or the user's own when None.
        save_every: steps between checkpoints; every few minutes when None.
        form: `tuned`, ours, or `paper`: which of a recipe's two forms this is.
        grid: values that the recipe's source tried, by field.
        gaps: what the recipe's source does not say, a sentence each.
        methods: what the recipe's file sets of each method, for `replace(method=...)`.
    """

    NOUN: ClassVar[str] = "translation recipe"
    ABOUT: ClassVar[tuple[str, ...]] = ("form", "grid", "gaps", "methods", "cache", "save_every")

    source: str
    target: str
    data: str | None = None
    train: str = "train"
    dev: str = "dev"
    test: str | None = "test"
    hub: str | None = None
    hub_config: str | None = None
    synthetic: int | None = None
    moses: bool = False
    lowercase: bool = False
    segmentation: Segmentation = "text"
    merges: int = 10_000
    joint: bool = True
    max_words: int = 175
    max_ratio: float = 1.5
    max_length: int = 250
    prefix: str = ""
    source_code: str | None = None
    target_code: str | None = None
    model: str = "iwslt"
    dropout: float | None = None
    method: str = "salt"
    settings: Mapping[str, Any] = field(default_factory=dict)
    space: Literal["lookup", "input"] = "lookup"
    seed: int = 0
    batch_tokens: int = 16_000
    max_tokens: int = 16_384
    shapes: int = 20
    length_step: int = 1
    max_steps: int = 10_000
    learning_rate: float = 1e-3
    warmup: int = 4000
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 1e-4
    clip: float = 0.0
    label_smoothing: float = 0.1
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    evaluate_every: int = 1000
    patience: int | None = None
    choose: Literal["bleu", "loss"] = "bleu"
    average: int = 5
    dev_beam: int = 1
    beam: int = 5
    length_penalty: float = 1.0
    score: Literal["tokenized", "sacrebleu"] = "sacrebleu"
    cache: str | None = None
    save_every: int | None = None
    form: str = "tuned"
    grid: Mapping[str, Any] = field(default_factory=dict)
    gaps: tuple[str, ...] = ()
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check every field; what is written in several ways becomes one."""
        self._check_texts()
        self._check_numbers()
        self._check_corpus()
        self._check_method()

    @classmethod
    def load(
        cls, recipe: str | Path | None = None, overrides: Sequence[str] = (), /, **fields: Any
    ) -> TranslationRecipe:
        """A recipe from a file or a shipped one, changed.

        Args:
            recipe: `nmt/multi30k-en-de`, or a YAML file; None for the fields alone.
            overrides: `key=value` as in YAML, `settings.epsilon=0.5` for the method's own.
            fields: of the recipe, stronger than the file and weaker than `overrides`. One that is None was not given.
        """
        found = find(recipe)
        values = cls._changed(found, overrides, fields)
        for name in ("source", "target"):
            if name not in values:
                raise SettingError(
                    f"{found[0]} does not say its {name} language; give source and target, such as en and de"
                )
        return cls(**values)

    def deciding(self) -> dict[str, Any]:
        """Every field that decides the result; folders by where they really are."""
        found = super().deciding()
        for name in ("data", "model", "hub"):
            if found[name] is not None and Path(found[name]).is_dir() and not _is_ours(found[name]):
                found[name] = str(Path(found[name]).resolve())
        return found

    @property
    def pretrained(self) -> bool:
        """Whether the model is there already, and brings its own vocabulary."""
        return not _is_ours(self.model)

    def _check_texts(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name not in TEXTS or (value is None and "None" in str(f.type)):
                continue
            if isinstance(value, Path):
                object.__setattr__(self, f.name, value := str(value))
            if not isinstance(value, str) or not (value.strip() or f.name == "prefix"):
                hint = "; YAML reads no as false: put quotes around it" if isinstance(value, bool) else ""
                raise SettingError(f"{f.name}={value!r} should be a text{hint}")
        self._check_mappings()
        gaps: Any = self.gaps
        if isinstance(gaps, str) or not isinstance(gaps, Sequence) or not all(isinstance(gap, str) for gap in gaps):
            raise SettingError(f"gaps={gaps!r} should be a list of sentences")
        object.__setattr__(self, "gaps", tuple(gaps))
        for name, known in (
            ("precision", PRECISIONS),
            ("segmentation", SEGMENTATIONS),
            ("space", SPACES),
            ("choose", CHOICES),
            ("score", SCORES),
        ):
            one_of(name, getattr(self, name), known)

    def _check_numbers(self) -> None:
        self._check_seed_and_betas()
        whole("average", self.average, 1)
        for name in WHOLE:
            whole(name, getattr(self, name), 1)
        for name in OPTIONAL_WHOLE:
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), 1)
        for name in FLAGS:
            flag(name, getattr(self, name))
        number("learning_rate", self.learning_rate, above=0)
        number("weight_decay", self.weight_decay, least=0)
        number("clip", self.clip, least=0)
        number("label_smoothing", self.label_smoothing, least=0, most=0.9)
        number("max_ratio", self.max_ratio, least=1)
        number("length_penalty", self.length_penalty)
        if self.dropout is not None:
            number("dropout", self.dropout, least=0, most=0.9)
        self._make_floats()
        if self.max_length > self.max_tokens:
            raise SettingError(
                f"max_length={self.max_length} is more than max_tokens={self.max_tokens}, and a sentence must fit into "
                "a batch; raise max_tokens"
            )

    def _check_corpus(self) -> None:
        if self.source == self.target:
            raise SettingError(f"source={self.source!r} and target={self.target!r} are one language; give two")
        given = [name for name in ("data", "hub", "synthetic") if getattr(self, name) is not None]
        if len(given) > 1:
            raise SettingError(f"{' and '.join(given)} are both given; the corpus comes from one of them")
        if self.moses and self.segmentation == "text":
            raise SettingError("moses=True makes words of the text; give segmentation='words' with it")
        if self.pretrained and self.segmentation == "pieces":
            raise SettingError(
                f"segmentation='pieces' is for a model trained from scratch; {self.model} cuts texts in its own way"
            )
        if self.hub_config is not None and self.hub is None:
            raise SettingError(f"hub_config={self.hub_config!r} goes with hub, which is not given")


def _is_ours(model: str) -> bool:
    from stackelberg.nmt.architectures import ARCHITECTURES

    return model in ARCHITECTURES
