"""The model of a run: one of ours, untrained, or a pretrained encoder–decoder to go on from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stackelberg.errors import DataError, first_line, needs
from stackelberg.game.huggingface import HuggingFaceTask
from stackelberg.nmt.architectures import ARCHITECTURES, silence_pad, untrained
from stackelberg.nmt.codec import Codec
from stackelberg.nmt.hush import hushed

SPACES = ("lookup", "input")
LENGTHS = ("epsilon", "init_std", "step_size")  # settings that are lengths in the space that is perturbed


def load_model(name: str, codec: Codec, *, dropout: float | None = None) -> Any:
    """An architecture of ours by name, or a folder or name on the hub; its parameters in float32."""
    if name in ARCHITECTURES:
        return untrained(ARCHITECTURES[name], codec, dropout=dropout)
    with needs("transformers", extra="hf"):
        from transformers import AutoModelForSeq2SeqLM

    changed = {} if dropout is None else {"dropout_rate" if _is_t5(name) else "dropout": dropout}
    try:
        with hushed():
            model = AutoModelForSeq2SeqLM.from_pretrained(name, dtype=torch.float32, **changed)
    except Exception as error:  # of any kind: the hub's, the file's, the configuration's
        raise DataError(
            f"model={name!r} is neither {', '.join(ARCHITECTURES)} nor an encoder–decoder that loads: "
            f"{first_line(error)}"
        ) from error
    silence_pad(model)
    first = codec.first_target
    if first is not None:
        model.generation_config.forced_bos_token_id = first
    return model


def positions(model: Any) -> int | None:
    """How many tokens a sentence may have on either side; None where positions are relative."""
    config = model.config
    for name in ("max_position_embeddings", "n_positions"):
        found = getattr(config, name, None)
        if found is not None and config.model_type not in ("t5", "mt5", "umt5"):
            return int(found)
    return None


def scale(model: Any) -> tuple[float, bool]:
    """What embeddings are multiplied by between the lookup and the input of the layers, and whether δ comes after.

    δ is added to what the embedding module puts out. Marian and Pegasus multiply that by √d later on, so that δ is
    stretched with it; BART, mBART and M2M100 multiply inside the module, so that δ is not; T5 does not multiply.
    """
    config = model.config
    if not getattr(config, "scale_embedding", False):
        return 1.0, True
    factor = math.sqrt(config.d_model)
    module: nn.Module = HuggingFaceTask.of(model, {}).sides(model)["source"]
    return factor, getattr(module, "embed_scale", 1.0) != 1.0


def in_space(settings: Mapping[str, Any], space: str, model: Any, radius: float | None) -> dict[str, Any]:
    """A method's settings as the game wants them, whose lengths are said in a space of the user's choice.

    Args:
        settings: of the method.
        space: that ε, σ and η are lengths in: of what is looked up (`lookup`), or of what the layers get (`input`).
        model: that is played with.
        radius: the method's ε, where `settings` leave it to its default.
    """
    factor, after = scale(model)
    found = dict(settings)
    if factor == 1.0 or after == (space == "input"):
        return found
    stretch = 1 / factor if space == "input" else factor
    if settings.get("relative"):
        return found  # multiples of the embeddings' own size, which is stretched alike
    if radius is not None:
        found.setdefault("epsilon", radius)
    for name in LENGTHS:
        if found.get(name) is not None:
            # a gradient shrinks where lengths grow, so a step along one goes as the square
            power = 2 if name == "step_size" and settings.get("ascent") == "sgd" else 1
            found[name] *= stretch**power
    return found


def _is_t5(name: str) -> bool:
    from transformers import AutoConfig

    try:
        kind = AutoConfig.from_pretrained(name).model_type if Path(name).is_dir() else ""
    except (OSError, ValueError):
        return False
    return kind in ("t5", "mt5", "umt5")
