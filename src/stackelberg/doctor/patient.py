"""A model as it will be fine-tuned: found by its name, with a head on it, in float32 and in training mode."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..errors import ModelError, needs
from .memory import GIB, available

Head = Literal["sequence-classification", "causal", "seq2seq", "token"]
Precision = Literal["float32", "bfloat16", "float16"]

CLASSES: dict[Head, str] = {
    "sequence-classification": "AutoModelForSequenceClassification",
    "causal": "AutoModelForCausalLM",
    "seq2seq": "AutoModelForSeq2SeqLM",
    "token": "AutoModelForTokenClassification",
}


@dataclass
class Patient:
    """A loaded model, and what the checks have found out of it so far."""

    name: str
    head: Head
    model: Any
    new: list[str]  # parameters that the checkpoint does not have: the head's, most often
    precision: Precision = "float32"
    batch: Mapping[str, Tensor] = field(default_factory=dict)
    sizes: dict[str, float] = field(default_factory=dict)  # side → ‖x‖₂ of a sentence's embeddings, mean
    width: int = 0  # of the embeddings, d
    scaled: bool = False  # whether the model multiplies its embeddings by √d after δ is added
    products: list[str] = field(default_factory=list)  # those that work

    @property
    def device(self) -> torch.device:
        """Where it is."""
        device: torch.device = next(p.device for p in self.model.parameters())
        return device

    def autocast(self) -> AbstractContextManager[Any]:
        """The context of the chosen precision."""
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, getattr(torch, self.precision))

    def rows(self, first: int, last: int) -> dict[str, Tensor]:
        """Some sentences of the batch."""
        return {name: x[first:last] for name, x in self.batch.items()}


def load(name: str, head: Head | None) -> Patient:
    """The model of that name on the hub, or in that folder, on the GPU if there is one."""
    with needs("transformers", extra="hf"):
        import transformers
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = _config(transformers, name)
    head = head or guess_head(config)
    maker = getattr(transformers, CLASSES[head])
    _refuse_too_large(maker, config, name, head, device)
    try:
        model, found = maker.from_pretrained(
            name, dtype=torch.float32, output_loading_info=True, trust_remote_code=False
        )
    except Exception as error:  # of any kind: the hub's, the file's, the model's own
        raise ModelError(f"the weights of {name} cannot be loaded: {_line(error)}") from error
    model.to(device).train()
    return Patient(name, head, model, sorted(found["missing_keys"]))


def guess_head(config: Any) -> Head:
    """From the architecture that the configuration names; for one without a head, what it is mostly used for."""
    from transformers.models.auto import modeling_auto

    named = " ".join(config.architectures or ())
    if "SequenceClassification" in named:
        return "sequence-classification"
    if "TokenClassification" in named:
        return "token"
    if config.is_encoder_decoder:
        return "seq2seq"
    if "CausalLM" in named or "LMHead" in named:
        return "causal"
    masked = config.model_type in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    causal = config.model_type in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return "causal" if causal and not masked else "sequence-classification"


def _config(transformers: Any, name: str) -> Any:
    if not name.strip():
        raise ModelError("MODEL is empty; give a folder, or a name on the Hugging Face hub")
    path = Path(name).expanduser()
    if path.is_dir():
        if (path / "adapter_config.json").exists():
            raise ModelError(f"{name} holds an adapter of peft; give the folder of the model that it belongs to")
        if not (path / "config.json").exists():
            raise ModelError(f"the folder {name} has no config.json, so it is not a Hugging Face model")
    elif path.exists():
        raise ModelError(f"{name} is a file; give the folder that the model is in")
    elif name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ModelError(f"there is no folder {name}")
    try:
        return transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # of any kind: the hub's, the file's
        if path.is_dir():
            raise ModelError(f"the config.json of {name} describes no model that is known: {_line(error)}") from error
        raise ModelError(
            f"{name} is no folder here, and the Hugging Face hub did not give it either; check the name and the "
            f"connection ({_line(error)})"
        ) from error


def _refuse_too_large(maker: Any, config: Any, name: str, head: Head, device: torch.device) -> None:
    """Before anything is loaded: is there room for weights and gradients?"""
    try:
        with torch.device("meta"):
            empty: nn.Module = maker.from_config(config, trust_remote_code=False)
    except ValueError as error:
        raise ModelError(f"{type(config).__name__} has no {head} head; choose another --head") from error
    need = 8 * sum(p.numel() for p in empty.parameters())
    room = available(device)
    if need > room:
        raise ModelError(
            f"{name} needs {need / GIB:.1f} GiB for float32 weights and gradients alone, and {room / GIB:.1f} GiB are "
            "free here; examine it on a larger machine"
        )


def _line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:240]


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' progress bars, loading reports and hints: what matters of them is told here."""
    if find_spec("transformers") is None:
        yield
        return
    import transformers

    told: Any = transformers.utils.logging
    level, bars = told.get_verbosity(), told.is_progress_bar_enabled()
    hub = logging.getLogger("huggingface_hub")  # which tells of every attempt to reach it
    hub_level = hub.level
    told.set_verbosity(told.CRITICAL)
    told.disable_progress_bar()
    hub.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        hub.setLevel(hub_level)
        told.set_verbosity(level)
        if bars:
            told.enable_progress_bar()
