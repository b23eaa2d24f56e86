"""How Hugging Face models describe themselves. Reads their conventions; imports nothing of theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from ..errors import ModelError
from .labels import refuse_bad_labels
from .task import IGNORED, Batch, Kind, Outputs, Task

LABELS = ("labels", "start_positions", "end_positions")


def describes_itself(model: nn.Module) -> bool:
    """Whether a module follows Hugging Face's conventions."""
    return hasattr(model, "config") and hasattr(model, "get_input_embeddings")


def bare(model: Any) -> Any:
    """The Hugging Face model inside a PEFT wrapper, for its class and its modules."""
    return model.get_base_model() if hasattr(model, "peft_config") and hasattr(model, "get_base_model") else model


def _kind(model: Any, batch: Batch) -> Kind:
    """What a Hugging Face model puts out, by its class, its configuration and its labels."""
    name, config = type(model).__name__, model.config
    if "SequenceClassification" in name:
        labels = batch.get("labels")
        problem = config.problem_type
        if problem == "regression" or (problem is None and config.num_labels == 1):
            return "regression"
        if problem == "multi_label_classification" or (labels is not None and labels.is_floating_point()):
            return "multilabel"
        return "classification"
    by_name: dict[str, Kind] = {
        "MultipleChoice": "classification",
        "QuestionAnswering": "span",
        "TokenClassification": "tokens",
        "MaskedLM": "tokens",
        "CausalLM": "shifted_tokens",
        "LMHeadModel": "shifted_tokens",
    }
    if not config.is_encoder_decoder or "QuestionAnswering" in name:
        for part, kind in by_name.items():
            if part in name:
                return kind
    elif any(part in name for part in ("ForConditionalGeneration", "MTModel", "EncoderDecoderModel", "LMHead")):
        return "tokens"
    elif "TokenClassification" in name:
        return "tokens"
    raise ModelError(f"it is not known what {name} puts out; describe it with task=Task(kind, logits, loss)")


@dataclass(frozen=True)
class HuggingFaceTask(Task):
    """A `Task` read off a Hugging Face model."""

    classes: int | None = None  # of the labels, where they are classes
    shift: Callable[[Tensor], Tensor] | None = None  # labels → decoder_input_ids
    encoder_decoder: bool = False
    multiple_choice: bool = False

    @classmethod
    def of(cls, model: nn.Module, batch: Batch, **fields: Any) -> Self:
        """Describe `model`, refusing by name what cannot be played with. `fields` are a subclass's own."""
        if not isinstance(batch, Mapping):
            raise ModelError(f"a Hugging Face batch is a mapping of tensors, not {type(batch).__name__}")
        if batch.get("num_items_in_batch") is not None:
            raise ModelError("the batch holds num_items_in_batch; give it to the game instead, as normalizer=")
        if batch.get("labels") is not None and not isinstance(batch["labels"], Tensor):
            raise ModelError(f"labels are a {type(batch['labels']).__name__}; the model needs a tensor")
        core = bare(model)
        kind, name = _kind(core, batch), type(core).__name__
        classes = None
        if (kind == "classification" and "SequenceClassification" in name) or "TokenClassification" in name:
            classes = core.config.num_labels
        elif kind in ("tokens", "shifted_tokens"):
            classes = core.config.get_text_config().vocab_size
        return cls(
            kind,
            classes=classes,
            logits=_missing,
            loss=_missing,
            shift=partial(_decoder_input_ids, core) if core.config.is_encoder_decoder else None,
            encoder_decoder=bool(core.config.is_encoder_decoder),
            multiple_choice="MultipleChoice" in name,
            **fields,
        )

    def labelled(self, batch: Batch) -> bool:
        """Whether the batch holds labels."""
        return any(batch.get(name) is not None for name in LABELS)

    def play(self, model: nn.Module, batch: Batch, labelled: bool) -> Outputs:
        """One forward pass. Without labels the loss is not computed, only the logits."""
        if labelled and self.classes is not None and batch["labels"].device.type == "cpu":
            refuse_bad_labels(batch["labels"], self.classes)
        loss, outputs = self.with_loss(model, batch) if labelled else (None, model(**self._unlabelled(batch)))
        logits: Tensor | None
        if self.kind == "span":
            logits = self._span_logits(outputs, batch)
        else:
            logits = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
        if logits is None:
            raise ModelError(
                f"{type(bare(model)).__name__} returned no logits (a fused loss such as Liger's does that), and "
                "the divergence needs them; switch the fused linear cross-entropy off"
            )
        return Outputs(loss, logits)

    def with_loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Any]:
        """A pass with labels: the task's loss, and the model's outputs."""
        outputs = model(**batch)
        return outputs.loss, outputs

    def _unlabelled(self, batch: Batch) -> dict[str, Any]:
        """The batch without labels; an encoder–decoder's inputs that it would derive from them are kept."""
        inputs = {key: value for key, value in batch.items() if key not in LABELS}
        needs_decoder = self.encoder_decoder and self.kind == "tokens"
        if needs_decoder and "decoder_input_ids" not in inputs and batch.get("labels") is not None:
            assert self.shift is not None
            inputs["decoder_input_ids"] = self.shift(batch["labels"])
        return inputs

    def _span_logits(self, outputs: Any, batch: Batch) -> Tensor:
        logits = torch.stack([outputs.start_logits, outputs.end_logits], 1)  # (B, 2, L)
        mask = self.input_mask("source", batch)
        # A pad must not be a position that the answer could start at. A finite floor keeps derivatives finite.
        return logits if mask is None else logits.masked_fill(~mask[:, None], -1e4)

    def sides(self, model: nn.Module) -> dict[str, nn.Module]:
        """`source`, and `target` for an encoder–decoder: the modules that really run in each."""
        core: Any = bare(model)
        try:
            if not self.encoder_decoder:
                return {"source": _embedding(core)}
            encoder, decoder = core.get_encoder(), core.get_decoder()
            if encoder is core or decoder is core:  # the accessor found nothing and fell back to the whole
                encoder, decoder = core.model.encoder, core.model.decoder
            if "TokenClassification" in type(core).__name__ and decoder is None:
                return {"source": _embedding(encoder)}
            return {"source": _embedding(encoder), "target": _embedding(decoder)}
        except (AttributeError, NotImplementedError) as error:
            raise ModelError(
                f"no input embeddings were found in {type(core).__name__} ({error}); it may not be a model of "
                "text, otherwise say where they are with task=Task(..., embeddings={'source': 'path'})"
            ) from error

    def long_rows(self, model: nn.Module, batch: Batch) -> bool:
        """Longer than a third of the width: a layer keeps 34 d numbers a token, and 5 for each score of each head."""
        ids, width = batch.get("input_ids"), getattr(bare(model).config.get_text_config(), "hidden_size", None)
        return ids is not None and width is not None and 3 * ids.shape[-1] > width

    def head(self, model: nn.Module) -> list[nn.Module]:
        """What stands on the base model, and its pooler; not a language model's head, as wide as the vocabulary."""
        core: Any = bare(model)
        base = getattr(core, core.base_model_prefix, core)
        if base is core or core.get_output_embeddings() is not None:
            return []
        pooler = getattr(base, "pooler", None)
        return [child for child in (*core.children(), pooler) if isinstance(child, nn.Module) and child is not base]

    def input_mask(self, side: str, batch: Batch) -> Tensor | None:
        """From the attention masks; a decoder's from its labels, since its start token may be the pad."""
        if side == "target":
            mask = batch.get("decoder_attention_mask")
            if mask is None and self.kind == "tokens" and batch.get("labels") is not None:
                mask = batch["labels"] != IGNORED
            elif mask is None and batch.get("decoder_input_ids") is None:  # BART's classifier shifts its inputs
                mask = batch.get("attention_mask")
        else:
            mask = batch.get("attention_mask")
        if mask is None:
            return None
        if mask.dim() == 3 and self.multiple_choice:
            mask = mask.flatten(0, 1)
        if mask.dim() != 2:
            raise ModelError(
                f"attention_mask has shape {tuple(mask.shape)}; the game needs the (batch, length) mask of real "
                "tokens to know what it may perturb"
            )
        real: Tensor = mask.bool()
        return real

    def input_ids(self, side: str, batch: Batch) -> Tensor | None:
        """The ids a side embeds."""
        ids: Tensor | None = batch.get("input_ids" if side == "source" else "decoder_input_ids")
        if side == "target" and ids is None:  # the model embeds its targets, or its input again, one to the right
            words: Tensor | None = batch.get("labels" if self.kind == "tokens" else "input_ids")
            ids = None if words is None or self.shift is None else self.shift(words)
        if ids is not None and ids.dim() == 3:  # multiple choice
            ids = ids.flatten(0, 1)
        return ids

    def token_labels(self, batch: Batch) -> Tensor | None:
        """`labels`; without them a decoder's own mask stands in."""
        labels: Tensor | None = batch.get("labels")
        ids: Tensor | None = batch.get("decoder_input_ids")
        if labels is None and ids is not None and self.encoder_decoder and self.kind == "tokens":
            mask = batch.get("decoder_attention_mask")
            return ids if mask is None else ids.masked_fill(mask == 0, IGNORED)
        return labels


def _embedding(module: Any) -> nn.Module:
    """The input embedding that runs. T5 and BART also hold a `shared` one, tied to it, that never does."""
    found = module.get_input_embeddings()
    if not isinstance(found, nn.Module):
        raise AttributeError("get_input_embeddings() gave nothing")
    tied = [m for m in module.modules() if isinstance(m, nn.Embedding) and m.weight is found.weight and m is not found]
    return tied[0] if tied else found


def _decoder_input_ids(model: Any, labels: Tensor) -> Tensor:
    """What an encoder–decoder feeds its decoder for these labels: them, one to the right of its start token."""
    core = bare(model)
    if hasattr(core, "prepare_decoder_input_ids_from_labels"):
        ids: Tensor = core.prepare_decoder_input_ids_from_labels(labels=labels)
        return ids
    first = labels.new_full((len(labels), 1), core.config.decoder_start_token_id)
    shifted = torch.cat([first, labels[:, :-1]], 1)
    return shifted.masked_fill(shifted == IGNORED, core.config.pad_token_id)


def _missing(*args: object) -> Tensor:
    raise AssertionError("a Hugging Face model computes its own logits and loss")


def refuse_packed(batch: Batch, per: str) -> None:
    """Several sequences packed in one row share a ball and a divergence that are meant for one sentence."""
    if not isinstance(batch, Mapping) or per == "token":
        return
    keys = [key for key in ("cu_seq_lens_q", "cu_seq_lens_k", "seq_idx") if batch.get(key) is not None]
    position_ids = batch.get("position_ids")
    if not keys and position_ids is not None and position_ids.dim() == 2 and position_ids.shape[1] > 1:
        steps = position_ids[:, 1:] - position_ids[:, :-1]
        mask = batch.get("attention_mask")
        inside = steps if mask is None else steps[(mask[:, 1:] != 0) & (mask[:, :-1] != 0)]
        keys = ["position_ids"] if bool((inside < 0).any()) else []
    if keys:
        raise ModelError(
            f"the batch packs several sequences in one row ({keys[0]}), which a per-sentence ball cannot tell "
            'apart; use per="token", or a collator that pads instead of packing'
        )
