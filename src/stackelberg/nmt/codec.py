"""Between sentences and the ids that a model reads and writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stackelberg.errors import DataError, first_line, needs
from stackelberg.nmt.text import TextForm

TARGET_FOLDER = "target_tokenizer"  # inside the model's, where the two languages share no vocabulary


class Codec:
    """A tokenizer for each side, often the same, and what is done to texts around them.

    Args:
        tokenizer: of the source, and of the target if it has no other.
        form: how texts are prepared.
        target: the target's own tokenizer.
    """

    def __init__(self, tokenizer: Any, form: TextForm, target: Any = None) -> None:
        """See the class."""
        self.tokenizer = tokenizer
        self.target = tokenizer if target is None else target
        self.form = form
        if form.source_code is not None or form.target_code is not None:
            _set_languages(tokenizer, form)

    @classmethod
    def load(cls, folder: Path | str, form: TextForm | None = None) -> Codec:
        """From a model's folder, or a name on the hub."""
        with needs("transformers", extra="hf"):
            from transformers import AutoTokenizer

        home = Path(folder)
        try:
            own = AutoTokenizer.from_pretrained(str(folder))
            beside = home / TARGET_FOLDER
            other = AutoTokenizer.from_pretrained(str(beside)) if beside.is_dir() else None
        except Exception as error:  # of any kind: the file's, the configuration's
            raise DataError(f"{folder} has no tokenizer that loads: {first_line(error)}") from error
        return cls(own, TextForm.load(home) if form is None else form, other)

    def save(self, folder: Path) -> None:
        """Into a model's folder."""
        self.tokenizer.save_pretrained(str(folder))
        if self.target is not self.tokenizer:
            self.target.save_pretrained(str(folder / TARGET_FOLDER))
        self.form.save(folder)

    def sources(self, prepared: Sequence[str]) -> list[list[int]]:
        """Ids of prepared source sentences."""
        return _ids(self.tokenizer, [self.form.prefix + line for line in prepared])

    def targets(self, prepared: Sequence[str]) -> list[list[int]]:
        """Ids of prepared target sentences, with what ends them."""
        if self.target is not self.tokenizer:
            return _ids(self.target, prepared)
        with _writing_targets(self.tokenizer):
            return _ids(self.tokenizer, prepared)

    def texts(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """What a model wrote, still tokenised if it was trained so; `form.restored` puts it together."""
        return [
            text.strip()
            for text in self.target.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        ]

    @property
    def first_target(self) -> int | None:
        """The token that generation is made to begin with, where a tokenizer has one for each language."""
        if self.form.target_code is None:
            return None
        codes = getattr(self.tokenizer, "lang_code_to_id", None)
        if codes is not None and self.form.target_code in codes:
            return int(codes[self.form.target_code])
        if hasattr(self.tokenizer, "get_lang_id"):
            return int(self.tokenizer.get_lang_id(self.form.target_code))
        return int(self.tokenizer.convert_tokens_to_ids(self.form.target_code))


def _ids(tokenizer: Any, lines: Sequence[str]) -> list[list[int]]:
    if not lines:
        return []
    found: list[list[int]] = tokenizer(
        list(lines), return_attention_mask=False, return_token_type_ids=False, verbose=False
    )["input_ids"]
    return found


def _set_languages(tokenizer: Any, form: TextForm) -> None:
    if not hasattr(tokenizer, "src_lang"):
        raise DataError(
            f"source_code={form.source_code!r}, target_code={form.target_code!r}: {type(tokenizer).__name__} knows no "
            "languages; leave both out"
        )
    try:
        if form.source_code is not None:
            tokenizer.src_lang = form.source_code
        if form.target_code is not None:
            tokenizer.tgt_lang = form.target_code
    except KeyError as error:
        raise DataError(f"{type(tokenizer).__name__} has no language {error.args[0]!r}") from error


@contextmanager
def _writing_targets(tokenizer: Any) -> Iterator[None]:
    """Inside, a tokenizer with another way for targets (Marian's own, M2M100) goes it."""
    if not hasattr(tokenizer, "_switch_to_target_mode"):
        yield
        return
    tokenizer._switch_to_target_mode()
    try:
        yield
    finally:
        tokenizer._switch_to_input_mode()
