"""Whether the passes of a step really share their dropout masks."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..methods import VAT
from .finding import Finding
from .patient import Patient


def dropout(patient: Patient) -> Iterator[Finding]:
    """Without a perturbation the divergence must be 0 to the last bit, and two draws must differ."""
    model, batch = patient.model, patient.rows(0, 2)
    with torch.no_grad(), patient.autocast():
        logits = [model(**batch).logits.float() for _ in range(2)]
    noise = float((logits[0] - logits[1]).abs().max())
    with patient.autocast():
        report = VAT(steps=0, start_noise="zero", mode="eager").backward(model, batch)
    model.zero_grad(set_to_none=True)
    assert report.divergence is not None
    left = float(report.divergence)
    facts = {"noise": noise, "divergence": left}
    if left != 0:
        says = (
            f"at δ = 0 the divergence is {left:.2g} instead of 0: something random in the model does not replay; use "
            "dropout='off'"
        )
        yield Finding("warning", "dropout", says, facts)
    elif noise == 0:
        says = "the model has no dropout: two passes give the same bits, and R-Drop has nothing to compare"
        yield Finding("note", "dropout", says, facts)
    else:
        says = (
            f"two passes differ by {noise:.2g} in their logits (dropout); with its masks replayed the divergence at "
            "δ = 0 is exactly 0"
        )
        yield Finding("ok", "dropout", says, facts)
