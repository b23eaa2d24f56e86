"""A model for one task: encoder and head, tokenizer, and which of its outputs is which class."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from stackelberg.decoding import listing
from stackelberg.errors import ModelError, SettingError, nearest
from stackelberg.extras import need
from stackelberg.nlu.batches import Padding
from stackelberg.nlu.encoding import Encoded, encode
from stackelberg.nlu.examples import Examples
from stackelberg.nlu.labels import LabelOrder, label2id, label_order, named_outputs
from stackelberg.nlu.task import NluTask

Outputs = NDArray[np.float64]
AUTOCAST = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Classifier:
    """What a run trains, and what it leaves behind.

    Args:
        model: for sequence classification.
        tokenizer: its own.
        order: the model's output for each of the task's classes.
        max_length: that rows are cut to.
        source: where the model came from, for messages.
    """

    model: Any
    tokenizer: Any
    order: LabelOrder
    max_length: int
    source: str

    @classmethod
    def load(
        cls,
        source: str,
        task: NluTask,
        *,
        max_length: int,
        weights: str = "float32",
        head_dropout: float | None = None,
        trained: bool = False,
    ) -> Classifier:
        """From a folder or the hub.

        Args:
            source: a folder or a name on the hub.
            task: what it is for. A head that does not fit it is made anew.
            max_length: that rows will be cut to.
            weights: their type; `float32` whatever the checkpoint has.
            head_dropout: of the head, if not the model's own.
            trained: the head is used as it is.
        """
        need("transformers")
        import transformers

        with _quiet():
            config = _pretrained(transformers.AutoConfig, source)
            tokenizer = _pretrained(transformers.AutoTokenizer, source)
            order = label_order(task, named_outputs(config), trained=trained)
            names = label2id(task, order) if task.kind == "classes" else {"score": 0}
            model = _pretrained(
                transformers.AutoModelForSequenceClassification,
                source,
                num_labels=task.outputs,
                label2id=names,
                id2label={output: name for name, output in names.items()},
                problem_type="single_label_classification" if task.kind == "classes" else "regression",
                dtype=getattr(torch, weights),
                ignore_mismatched_sizes=True,
            )
        _give_pad_token(model, tokenizer, source)
        _refuse_longer(model, max_length, source)
        if head_dropout is not None:
            _set_head_dropout(model, head_dropout, source)
        return cls(model, tokenizer, order, max_length, source)

    def encode(self, examples: Examples) -> Encoded:
        """Rows as the model reads them."""
        return encode(examples, self.tokenizer, max_length=self.max_length, order=self.order)

    @torch.no_grad()
    def outputs(self, rows: Encoded, *, batch_size: int = 64, precision: str = "float32") -> Outputs:
        """Logits in the task's order of classes, (rows, classes), or scores, (rows,)."""
        device = next(self.model.parameters()).device
        pad = Padding(self.tokenizer, self.model)
        by_length = sorted(range(len(rows)), key=rows.lengths.__getitem__)
        training = self.model.training
        self.model.eval()
        found: list[torch.Tensor] = []
        try:
            for start in range(0, len(by_length), batch_size):
                batch = pad([rows[row] for row in by_length[start : start + batch_size]])
                batch.pop("labels", None)
                with torch.autocast(device.type, AUTOCAST.get(precision), enabled=precision in AUTOCAST):
                    found.append(self.model(**{name: x.to(device) for name, x in batch.items()}).logits.float())
        finally:
            self.model.train(training)
        logits = torch.cat(found)
        values = torch.empty_like(logits)
        values[torch.tensor(by_length, device=device)] = logits  # back into the order given
        table = values.cpu().numpy().astype(np.float64)
        return table[:, 0] if table.shape[1] == 1 else table[:, list(self.order.ids)]

    def save(self, folder: Path) -> None:
        """An ordinary Hugging Face folder."""
        with _quiet():
            self.model.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)


def _pretrained(kind: Any, source: str, **arguments: Any) -> Any:
    """`from_pretrained`, from this disk if it is there, and otherwise from the hub; or one sentence."""
    if Path(source).is_dir():
        if not (Path(source) / "config.json").is_file():
            raise ModelError(
                f"model={source!r} has no config.json, so it is no Hugging Face folder; {listing(Path(source))}"
            )
    elif source.startswith((".", "/", "~")) or source.count("/") > 1 or source != source.strip():
        home = Path(source).parent
        names = [path.name for path in home.iterdir()] if home.is_dir() else []
        raise ModelError(f"model={source!r} is not a folder; {listing(home)}{nearest(Path(source).name, names)}")
    try:
        try:
            return kind.from_pretrained(source, local_files_only=True, **arguments)
        except OSError:  # not on this disk
            if Path(source).is_dir():
                raise
            _refuse_unreachable(source)
            return kind.from_pretrained(source, **arguments)
    except ModelError:
        raise
    except Exception as error:  # of any kind: the hub's, the file's, the configuration's
        said = " ".join(str(error).split())
        said = said if len(said) < 200 else said[:200] + "…"
        raise ModelError(
            f"model={source!r} could not be loaded as {kind.__name__} ({type(error).__name__}: {said}); give a folder "
            "or a name on the hub that holds an encoder or a classifier, with its tokenizer"
        ) from error


def _refuse_unreachable(source: str) -> None:
    """Before half a minute of attempts."""
    from huggingface_hub import constants

    host = urlsplit(constants.ENDPOINT).hostname or "huggingface.co"
    try:
        if constants.HF_HUB_OFFLINE:
            raise OSError("HF_HUB_OFFLINE is set")
        socket.getaddrinfo(host, 443)
    except OSError as error:
        raise ModelError(
            f"model={source!r} is no folder here and not in the hub's cache, and {host} cannot be reached "
            f"({error.strerror or error}); give a folder with a model in it"
        ) from error


def _give_pad_token(model: Any, tokenizer: Any, source: str) -> None:
    """A causal model's tokenizer often has none, and its head looks for the last token that is not padding."""
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise ModelError(f"model={source!r} has a tokenizer with neither a padding nor an end token; give it one")
        tokenizer.pad_token = tokenizer.eos_token
    if model.config.pad_token_id is None:
        model.config.pad_token_id = tokenizer.pad_token_id


def positions(model: Any) -> int | None:
    """How many tokens a row may have, where positions are learnt or the configuration says so."""
    most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            taken = 0 if module.padding_idx is None else module.padding_idx + 1  # RoBERTa counts from behind the pad
            return module.num_embeddings - taken
    return most if isinstance(most, int) and most > 0 else None


def _refuse_longer(model: Any, max_length: int, source: str) -> None:
    most = positions(model)
    if most is not None and max_length > most:
        raise SettingError(
            f"max_length={max_length} is more than the {most} positions of {source!r}; use {most} or less"
        )


def _set_head_dropout(model: Any, rate: float, source: str) -> None:
    base = model.base_model
    inside = {id(module) for module in base.modules()}
    head = [m for m in model.modules() if isinstance(m, nn.Dropout) and id(m) not in inside]
    if not head:
        raise SettingError(
            f"head_dropout={rate}: the head of {source!r} has no dropout to set; leave it out (head_dropout=null)"
        )
    for module in head:
        module.p = rate
    for name in ("classifier_dropout", "seq_classif_dropout", "classifier_dropout_prob", "cls_dropout"):
        if hasattr(model.config, name):  # so that the saved folder says so too
            setattr(model.config, name, rate)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' bars and its report of a head that is made anew, which is what training a head means."""
    logging = need("transformers.utils.logging")
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
