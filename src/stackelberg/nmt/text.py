"""What is done to a sentence before it is cut into pieces, and undone after: Moses' tokenisation and lower case."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal

from stackelberg.errors import DataError, needs
from stackelberg.storage import write_whole

FILE = "translation.json"

Segmentation = Literal["words", "text", "pieces"]
SEGMENTATIONS: tuple[Segmentation, ...] = ("words", "text", "pieces")


@dataclass(frozen=True, kw_only=True)
class TextForm:
    """How a model wants its texts; lies beside it as `translation.json`.

    Args:
        source: the language translated from.
        target: the language translated to.
        moses: texts are tokenised as Moses does, and translations put together again.
        lowercase: texts are lower-cased.
        segmentation: `words`: pieces do not cross the spaces between tokens; `text`: of running text, which comes
            back as it was; `pieces`: the text is cut into pieces already, marked by `@@`.
        prefix: what every source begins with, such as T5's "translate English to German: ".
        source_code: what a many-language tokenizer calls the source.
        target_code: what it calls the target, whose token is the first that is generated.
    """

    source: str = ""
    target: str = ""
    moses: bool = False
    lowercase: bool = False
    segmentation: Segmentation = "text"
    prefix: str = ""
    source_code: str | None = None
    target_code: str | None = None

    def prepared_source(self, line: str) -> str:
        """A source sentence as the model reads it."""
        return self._prepared(line, self.source)

    def prepared_target(self, line: str) -> str:
        """A target sentence as the model writes it."""
        return self._prepared(line, self.target)

    def restored(self, line: str) -> str:
        """A translation as people read it."""
        return str(_detokenizer(self.target).detokenize(line.split(" "))) if self.moses and line else line

    def save(self, folder: Path) -> None:
        """Write it beside a model."""
        write_whole(folder / FILE, json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, folder: Path) -> TextForm:
        """That of a model's folder; of a model that came without, the plainest."""
        path = folder / FILE
        if not path.is_file():
            return cls()
        said: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        unknown = set(said) - {f.name for f in fields(cls)}
        if unknown:
            raise DataError(f"{path} says {', '.join(sorted(unknown))}, which this version does not know; update it")
        return cls(**said)

    def _prepared(self, line: str, language: str) -> str:
        if self.moses:
            line = _tokenizer(language).tokenize(line, return_str=True)
        return " ".join((line.lower() if self.lowercase else line).split())


@cache
def _tokenizer(language: str) -> Any:
    with needs("sacremoses", extra="nmt"):
        from sacremoses import MosesTokenizer

    return MosesTokenizer(lang=language)


@cache
def _detokenizer(language: str) -> Any:
    with needs("sacremoses", extra="nmt"):
        from sacremoses import MosesDetokenizer

    return MosesDetokenizer(lang=language)
