"""Hidden states of a model that is not trained any further, kept on the disk once they are computed."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from stackelberg.analysis.errors import AnalysisError
from stackelberg.errors import one_of
from stackelberg.nlu.catalogue import find_task
from stackelberg.nlu.examples import Examples
from stackelberg.storage import write_whole

if TYPE_CHECKING:
    from stackelberg.nlu.classifier import Classifier

Pooling = Literal["first", "mean"]
Features = NDArray[np.float32]  # rows × width

POOLINGS: tuple[Pooling, ...] = ("first", "mean")
BATCH = 32
HASHED = (".safetensors", ".bin", ".json", ".txt", ".model")  # what decides a model folder's outputs


class FrozenEncoder:
    """An encoder without its head, in evaluation mode.

    Args:
        folder: of a model and its tokenizer, as Hugging Face saves them; a head on it is left off.
        pooling: which hidden state of the last layer stands for a row: that of the `first` token, which the heads of
            BERT's family read ([CLS], <s>), or the `mean` over its tokens, special ones included, padding not.
        max_length: tokens that rows are cut to.
        device: of torch; a GPU where there is one, when None.
    """

    def __init__(
        self, folder: Path, *, pooling: Pooling = "first", max_length: int = 128, device: str | None = None
    ) -> None:
        one_of("pooling", pooling, POOLINGS)
        if not (folder / "config.json").is_file():
            raise AnalysisError(f"{folder} has no config.json: give a run's folder, or one that a model was saved in")
        self.folder, self.pooling, self.max_length, self.device = folder, pooling, max_length, device
        self._loaded: Classifier | None = None
        self._digest: str | None = None

    def features(self, examples: Examples, cache: Path | None = None) -> Features:
        """One vector a row.

        Args:
            examples: labels are not read.
            cache: folder to keep the features in and to find them in again. They are found by a hash of the model's
                and the tokenizer's files, the settings and the texts, so another model never gets them.
        """
        path = None if cache is None else cache / f"{self._key(examples)}.npy"
        kept = None if path is None else _kept(path, len(examples))
        if kept is not None:
            return kept
        made = self._computed(examples)
        if path is not None:
            buffer = io.BytesIO()
            np.save(buffer, made, allow_pickle=False)
            write_whole(path, buffer.getvalue())
        return made

    def _computed(self, examples: Examples) -> Features:
        import torch

        from stackelberg.nlu.batches import Padding

        loaded = self._load()
        encoder = loaded.model.base_model
        if loaded.model.config.is_encoder_decoder:
            encoder = encoder.get_encoder()
        rows, pad = loaded.encode(Examples(examples.texts, examples.pairs)), Padding(loaded.tokenizer, encoder)
        order = sorted(range(len(rows)), key=lambda row: len(rows[row]["input_ids"]))  # alike in length: less padding
        pooled: list[tuple[int, Any]] = []
        with torch.inference_mode():
            for start in range(0, len(order), BATCH):
                some = order[start : start + BATCH]
                batch = {name: x.to(loaded.model.device) for name, x in pad([rows[row] for row in some]).items()}
                hidden = encoder(**batch).last_hidden_state.float()  # rows × tokens × width
                if self.pooling == "first":
                    vectors = hidden[:, 0]
                else:
                    mask = batch["attention_mask"][:, :, None]
                    vectors = (hidden * mask).sum(dim=1) / mask.sum(dim=1)
                pooled += zip(some, vectors.cpu().numpy(), strict=True)
        pooled.sort(key=lambda pair: pair[0])
        made = np.stack([vector for _, vector in pooled]).astype(np.float32)
        if not np.isfinite(made).all():
            raise AnalysisError(f"hidden states of {self.folder} are not all finite: the model diverged in training")
        return made

    def _load(self) -> Classifier:
        if self._loaded is None:
            import torch

            from stackelberg.nlu.classifier import Classifier

            # some head must be on it to be loaded, and is never called
            loaded = Classifier.load(str(self.folder), find_task("sst-2"), max_length=self.max_length)
            loaded.tokenizer.padding_side = "right"  # the first token stays the first
            loaded.model.eval().to(self.device or ("cuda" if torch.cuda.is_available() else "cpu"))
            self._loaded = loaded
        return self._loaded

    def _key(self, examples: Examples) -> str:
        if self._digest is None:
            self._digest = _folder_digest(self.folder)
        texts = hashlib.sha256(repr((examples.texts, examples.pairs)).encode()).hexdigest()
        said = f"{self._digest} {self.pooling} {self.max_length} {texts}"
        return hashlib.sha256(said.encode()).hexdigest()[:24]


def _folder_digest(folder: Path) -> str:
    """Of what is in the files, since their dates do not tell two models apart."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.iterdir() if path.suffix in HASHED and path.is_file()):
        digest.update(path.name.encode() + b"\0")
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _kept(path: Path, rows: int) -> Features | None:
    """Features that were computed before, unless the file is not what was written."""
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    there = isinstance(found, np.ndarray) and found.dtype == np.float32 and found.ndim == 2 and len(found) == rows
    return found if there else None
