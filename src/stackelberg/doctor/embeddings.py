"""Where a model embeds its words, and whether a perturbation added there reaches its output."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ..errors import ModelError
from ..game.ball import length
from ..game.huggingface import HuggingFaceTask
from ..game.injection import Injection
from .finding import Finding
from .patient import Patient


def embeddings(patient: Patient) -> Iterator[Finding]:
    """The module of each side, its hook's output, and how far the logits move with it."""
    model, batch = patient.model, patient.batch
    task = HuggingFaceTask.of(model, batch)
    injection = Injection(task.sides(model))
    model.eval()
    try:
        with torch.no_grad(), injection() as put_out:
            clean = task.play(model, batch, labelled=False).logits
        for side, x in put_out.items():
            shown = x * _real(task.input_mask(side, batch), x, side)
            patient.sizes[side] = float(length(shown.float(), "l2", "sentence").mean())
            patient.width = x.shape[-1]
            path = next(path for path, m in model.named_modules() if m is injection.sides[side])
            with torch.no_grad(), injection({side: 0.1 * torch.randn_like(x)}):
                moved = float((task.play(model, batch, labelled=False).logits - clean).abs().max())
            facts = {"path": path, "shape": list(x.shape), "norm": patient.sizes[side], "moved": moved}
            if moved == 0:
                says = f"{side}: δ added at {path} does not reach the logits, so no method can play there"
                yield Finding("failure", f"embeddings.{side}", says, facts)
            else:
                says = (
                    f"{side}: the words are embedded by {path}; the hook fires once a pass, on "
                    f"{' × '.join(map(str, x.shape))} numbers, and moves the logits; ‖x‖ of a sentence is "
                    f"{patient.sizes[side]:.3g}"
                )
                yield Finding("ok", f"embeddings.{side}", says, facts)
    finally:
        model.train()
    patient.scaled = bool(getattr(model.config, "scale_embedding", False)) and any(
        type(module) is nn.Embedding for module in injection.sides.values()
    )
    if patient.scaled:
        root = patient.width**0.5
        says = f"the model multiplies what is embedded by √d = {root:.1f} after δ is added, so its layers see ε × that"
        yield Finding("note", "embeddings.scale", says, {"factor": root})


def _real(mask: Tensor | None, x: Tensor, side: str) -> Tensor:
    """Where there are real words, (B, L, 1)."""
    if mask is None:
        return torch.ones_like(x[:, :, :1])
    if len(mask) == len(x) and mask.shape[1] < x.shape[1]:  # a model that pads its embeddings further
        mask = nn.functional.pad(mask, (0, x.shape[1] - mask.shape[1]))
    if mask.shape != x.shape[:2]:
        raise ModelError(
            f"the words of side {side!r} are {tuple(mask.shape)}, what is embedded is {tuple(x.shape)}: no method can "
            "play where embeddings are not (batch, length, width)"
        )
    return mask[:, :, None].to(x.dtype)
