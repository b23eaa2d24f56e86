"""Tiny random Hugging Face models and padded batches for every task kind, built offline from configs.

Weights are drawn large (std 0.3, biases and norms too), so that no divergence or interaction is negligible;
activations are smooth, so that finite differences mean something. Rows are right-padded with the pad id of
their architecture. Content ids lie in [4, 47), which no special id, mask or padding does.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple, cast

import torch
import transformers
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

Batch = dict[str, Tensor]

VOCABULARY, MASK = 48, 3
LONGEST, SHORTEST = 9, 5  # tokens in a row
CHOICES, PROMPT = 3, 2

# --------------------------------------------------------------------------------------------------
# Architectures: our name → the config's model type and arguments

ENCODER = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
}
SEQ2SEQ = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 32,
    "activation_function": "gelu",
    "encoder_layerdrop": 0.0,  # drops whole layers: not one of the dropout rates
    "decoder_layerdrop": 0.0,
}
DEBERTA_V3 = {
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_buckets": 4,
    "max_relative_positions": 8,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "position_biased_input": False,
}
DISTILBERT = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "max_position_embeddings": 32}
MODERNBERT = {"bos_token_id": 1, "cls_token_id": 1, "eos_token_id": 2, "sep_token_id": 2}
MARIAN = {"pad_token_id": 47, "decoder_start_token_id": 47, "scale_embedding": True}
T5 = {
    "decoder_start_token_id": 0,
    "d_model": 16,
    "num_layers": 2,
    "num_heads": 2,
    "d_kv": 8,
    "d_ff": 32,
    "feed_forward_proj": "gated-gelu",
}
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "bos_token_id": 1, "eos_token_id": 1}

ARCHS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", ENCODER),
    "roberta": ("roberta", ENCODER | {"pad_token_id": 1, "type_vocab_size": 1}),
    "mpnet": ("mpnet", ENCODER | {"pad_token_id": 1}),
    "deberta_v2": ("deberta-v2", ENCODER | DEBERTA_V3),
    "modernbert": ("modernbert", ENCODER | MODERNBERT),
    "distilbert": ("distilbert", DISTILBERT),
    "electra": ("electra", ENCODER | {"embedding_size": 12}),
    "albert": ("albert", ENCODER | {"embedding_size": 12}),
    "gpt2": ("gpt2", GPT2),
    "llama": ("llama", ENCODER | {"num_key_value_heads": 1}),
    "t5": ("t5", T5),
    "bart": ("bart", SEQ2SEQ | {"pad_token_id": 1}),
    "marian": ("marian", SEQ2SEQ | MARIAN),
    "m2m100": ("m2m_100", SEQ2SEQ | {"scale_embedding": True, "pad_token_id": 1}),
}
STD = {"t5": 0.15}  # else 0.3; T5 does not scale its attention scores down
PARTLY_SINGLE = (
    "deberta_v2",
    "modernbert",
    "gpt2",
    "llama",
    "t5",
)  # compute norms, softmax or losses in float32

# --------------------------------------------------------------------------------------------------
# Batches. A labeller makes a batch of `count` rows for a config; floating labels have the model's dtype.


def rows(config: Any, count: int, longest: int, shortest: int) -> tuple[Tensor, Tensor]:
    """Random ids and their mask, (count, longest); only row 0 is full. Encoder-decoder rows end with eos."""
    lengths = torch.randint(shortest, longest, (count,))
    lengths[0] = longest
    mask = torch.arange(longest) < lengths.unsqueeze(-1)
    ids = torch.randint(4, VOCABULARY - 1, (count, longest)).masked_fill(~mask, config.pad_token_id)
    if config.is_encoder_decoder:  # BART's and T5's classifiers read the state at eos
        ids[torch.arange(count), lengths - 1] = config.eos_token_id
    return ids, mask


def inputs(config: Any, count: int) -> Batch:
    """input_ids, attention_mask and, for models with two segments, token_type_ids: (count, L) each."""
    ids, mask = rows(config, count, LONGEST, SHORTEST)
    batch = {"input_ids": ids, "attention_mask": mask.long()}
    if getattr(config, "type_vocab_size", 0) > 1:
        batch["token_type_ids"] = (torch.arange(LONGEST) >= 3).long() * mask
    return batch


def classification(config: Any, count: int, dtype: torch.dtype) -> Batch:
    return inputs(config, count) | {"labels": torch.randint(config.num_labels, (count,))}


def regression(config: Any, count: int, dtype: torch.dtype) -> Batch:
    return inputs(config, count) | {"labels": torch.randn(count).to(dtype)}


def multilabel(config: Any, count: int, dtype: torch.dtype) -> Batch:
    return inputs(config, count) | {"labels": torch.randint(2, (count, config.num_labels)).to(dtype)}


def token(config: Any, count: int, dtype: torch.dtype) -> Batch:
    """Labels (B, L), -100 at padding and at every third token, as at the later pieces of a word."""
    batch = inputs(config, count)
    counted = batch["attention_mask"].bool() & (torch.arange(LONGEST) % 3 > 0)
    return batch | {"labels": torch.randint(config.num_labels, counted.shape).masked_fill(~counted, -100)}


def span(config: Any, count: int, dtype: torch.dtype) -> Batch:
    """Start and end positions (B,), start ≤ end, both on real tokens."""
    ends = torch.randint(SHORTEST, (2, count)).sort(dim=0).values
    return inputs(config, count) | {"start_positions": ends[0], "end_positions": ends[1]}


def multiple_choice(config: Any, count: int, dtype: torch.dtype) -> Batch:
    """Inputs (B, choices, L), labels (B,)."""
    fields = {name: x.view(count, CHOICES, -1) for name, x in inputs(config, count * CHOICES).items()}
    return fields | {"labels": torch.randint(CHOICES, (count,))}


def masked_lm(config: Any, count: int, dtype: torch.dtype) -> Batch:
    """Every third token is hidden from the model and is a label, (B, L)."""
    batch = inputs(config, count)
    ids, hidden = batch["input_ids"], batch["attention_mask"].bool() & (torch.arange(LONGEST) % 3 == 0)
    return batch | {"input_ids": ids.masked_fill(hidden, MASK), "labels": ids.masked_fill(~hidden, -100)}


def causal(config: Any, count: int, dtype: torch.dtype) -> Batch:
    """Labels (B, L) are the ids themselves, unshifted, but -100 at padding and at the prompt."""
    batch = inputs(config, count)
    answer = batch["attention_mask"].bool() & (torch.arange(LONGEST) >= PROMPT)
    return batch | {"labels": batch["input_ids"].masked_fill(~answer, -100)}


def seq2seq(config: Any, count: int, dtype: torch.dtype) -> Batch:
    """Labels (B, T) end with eos and are padded with -100; the model makes its decoder's inputs of them."""
    labels, real = rows(config, count, LONGEST - 1, SHORTEST - 1)
    return inputs(config, count) | {"labels": labels.masked_fill(~real, -100)}


class Task(NamedTuple):
    """A task kind: its labeller, its architectures, its head and the head's arguments."""

    labeller: Callable[[Any, int, torch.dtype], Batch]
    archs: tuple[str, ...]
    head: Any
    arguments: dict[str, Any]


CLASSIFIERS = tuple(arch for arch in ARCHS if arch not in ("marian", "m2m100"))
MULTILABEL = {"num_labels": 3, "problem_type": "multi_label_classification"}
TASKS = {
    "classification": Task(
        classification, CLASSIFIERS, transformers.AutoModelForSequenceClassification, {"num_labels": 3}
    ),
    "regression": Task(
        regression, ("bert", "roberta"), transformers.AutoModelForSequenceClassification, {"num_labels": 1}
    ),
    "multilabel": Task(multilabel, ("bert",), transformers.AutoModelForSequenceClassification, MULTILABEL),
    "token": Task(token, ("bert", "t5"), transformers.AutoModelForTokenClassification, {"num_labels": 4}),
    "span": Task(span, ("bert",), transformers.AutoModelForQuestionAnswering, {}),
    "multiple_choice": Task(multiple_choice, ("bert",), transformers.AutoModelForMultipleChoice, {}),
    "masked_lm": Task(masked_lm, ("bert",), transformers.AutoModelForMaskedLM, {}),
    "causal": Task(causal, ("gpt2", "llama"), transformers.AutoModelForCausalLM, {}),
    "seq2seq": Task(seq2seq, ("t5", "bart", "marian", "m2m100"), transformers.AutoModelForSeq2SeqLM, {}),
}
KINDS: dict[str, tuple[str, ...]] = {kind: task.archs for kind, task in TASKS.items()}

# --------------------------------------------------------------------------------------------------
# Models


def build(
    kind: str,
    arch: str,
    *,
    dropout: float = 0.0,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    batch: int = 4,
    attn: str = "eager",
) -> tuple[Any, Batch]:
    """A model in training mode and a batch of `batch` rows; the global random state is left as it was.

    Every `dtype` gets the same weights, up to its rounding. `dropout` is given to every dropout rate of the
    config. MPNet and DeBERTa have no `attn="sdpa"`.
    """
    task, (model_type, arguments) = TASKS[kind], ARCHS[arch]
    general = {"vocab_size": VOCABULARY, "pad_token_id": 0, "use_cache": False}
    config = transformers.AutoConfig.for_model(model_type, **general | arguments | task.arguments)
    for name in config.to_dict():
        if "dropout" in name or "pdrop" in name:
            setattr(config, name, dropout)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = task.head.from_config(config, attn_implementation=attn)
        for parameter in model.parameters():
            if parameter.requires_grad:  # sinusoidal positions do not
                noise = STD.get(arch, 0.3) * torch.randn_like(parameter)
                parameter.copy_(noise if parameter.dim() > 1 else parameter + noise)
        if dtype == torch.float64 and arch in PARTLY_SINGLE:
            keep_double(model)
        return model.to(dtype).train(), task.labeller(config, batch, dtype)


class Double(TorchFunctionMode):
    """Reads every request for float32 as one for float64."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def wider(x: Any) -> Any:
            return torch.float64 if x is torch.float32 else x

        if function is Tensor.float:
            function = Tensor.double
        return function(*map(wider, args), **{name: wider(x) for name, x in (kwargs or {}).items()})


def keep_double(model: nn.Module) -> None:
    """Make `model.forward` compute in float64 throughout, so that two exact routes agree to 1e-12, not 1e-7.

    The class is replaced by a subclass of the same name, which copies of the model share. What is run again
    outside `forward`, as gradient checkpointing does, falls back to float32.
    """
    original = type(model)

    @wraps(original.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with Double():
            return original.forward(self, *args, **kwargs)

    model.__class__ = type(original.__name__, (original,), {"forward": forward, "__module__": original.__module__})


def pad_further(batch: Batch, extra: int, model: Any) -> Batch:
    """The same batch with `extra` more columns of padding on the right of every field that has tokens."""
    pad = model.config.pad_token_id
    fill = {"labels": -100, "input_ids": pad, "decoder_input_ids": pad}

    def padded(name: str, field: Tensor) -> Tensor:
        if field.dim() < 2 or field.is_floating_point():  # a label of the whole row
            return field
        return nn.functional.pad(field, (0, extra), value=fill.get(name, 0))

    return {name: padded(name, field) for name, field in batch.items()}


def split(batch: Batch, parts: int) -> list[Batch]:
    """Micro-batches along the first dimension, as equal as they can be."""
    pieces = {name: field.tensor_split(parts) for name, field in batch.items()}
    return [{name: piece[i] for name, piece in pieces.items()} for i in range(parts)]


# --------------------------------------------------------------------------------------------------
# What a game needs to know of a model, found out independently of the library


class Players(NamedTuple):
    """The arguments of `naive.stackelberg_objective` for a model and its batch.

    `modules` are the word embeddings that fire in a forward, in order, and `logits` adds δ to their outputs;
    `masks` say where δ may live, (B, L_side); `counted` is the payoff's token mask, (B, T), or None.
    """

    logits: Callable[[list[Tensor]], Tensor]
    task_loss: Callable[[Tensor], Tensor]
    counted: Tensor | None
    modules: list[nn.Module]
    masks: list[Tensor]
    shapes: list[torch.Size]

    def starts(self, std: float, seed: int = 0) -> list[Tensor]:
        """δ⁰ ~ N(0, std² I) for each side, in float64, not masked."""
        generator = torch.Generator().manual_seed(seed)
        return [std * torch.randn(shape, generator=generator, dtype=torch.float64) for shape in self.shapes]


def players(kind: str, model: nn.Module, batch: Batch, seed: int = 0) -> Players:
    """Find the players; every pass replays the random state of `seed`, so that all see the same dropout.

    The task loss is the model's own, in a clean pass of its own. A span's logits are (B, 2, L), for its start
    and its end, with padding at -1e4, where the probability is 0.
    """
    real = batch["attention_mask"].flatten(0, -2).bool()  # choices are rows to the embedding
    counted = None
    if kind in ("token", "masked_lm", "seq2seq"):
        counted = batch["labels"] != -100
    elif kind == "causal":  # position t predicts token t + 1
        counted = nn.functional.pad(batch["labels"][:, 1:] != -100, (0, 1))

    def run(hooks: dict[nn.Module, Callable[..., Any]]) -> Any:
        handles = [module.register_forward_hook(hook) for module, hook in hooks.items()]
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                return model(**batch)
        finally:
            for handle in handles:
                handle.remove()

    fired: list[tuple[nn.Module, torch.Size]] = []

    def watch(module: nn.Module, _: Any, output: Tensor) -> None:
        fired.append((module, output.shape))

    words = [m for m in model.modules() if isinstance(m, nn.Embedding) and m.num_embeddings == VOCABULARY]
    with torch.no_grad():
        run(dict.fromkeys(words, watch))
    modules = [module for module, _ in fired]

    def adding(delta: Tensor) -> Callable[..., Tensor]:
        return lambda module, arguments, output: output + delta.to(output.dtype)

    def logits(deltas: list[Tensor]) -> Tensor:
        output = run({module: adding(delta) for module, delta in zip(modules, deltas, strict=bool(deltas))})
        if kind != "span":
            return cast(Tensor, output.logits)
        ends = torch.stack([output.start_logits, output.end_logits], dim=1)
        return ends.masked_fill(~real.unsqueeze(1), -1e4)

    # a decoder's inputs are its labels, or for a classifier its source, moved one to the right
    decoder = counted if kind == "seq2seq" and counted is not None else real
    masks = [real, decoder][: len(modules)]
    return Players(logits, lambda clean: run({}).loss, counted, modules, masks, [shape for _, shape in fired])


def checkpointed(model: nn.Module) -> nn.Module:
    """With gradient checkpointing, by the name that it has in this version of transformers."""
    enable = getattr(model, "activation_checkpointing_enable", None) or cast(Any, model).gradient_checkpointing_enable
    enable()
    return model
