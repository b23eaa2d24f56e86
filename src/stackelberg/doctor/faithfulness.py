"""How well the chosen precision computes the interaction term of this model: each sentence against float64."""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from torch import nn

from ..game.huggingface import HuggingFaceTask
from ..game.product import ProductName
from ..methods import SALT
from .finding import Finding
from .memory import GIB, available
from .patient import Patient

SENTENCES = 4
FAITHFUL, HALF = 0.99, 0.5
RADII = (SALT.init_radius, 0.5)  # above 0.5 much of the perturbation is random


@dataclass
class Faithfulness:
    """Over the sentences that were played, one by one."""

    radius: float  # ‖δ⁰‖ / ε
    median: float  # cosine of the product, over the trusted; NaN if there are none
    worst: float
    guarded: float  # share of sentences and steps left out
    turned: int  # how many sentences have the wrong sign

    @property
    def doubtful(self) -> bool:
        """Whether most of the interaction is wrong or left out."""
        return not self.median >= FAITHFUL or self.guarded > HALF


def measure(patient: Patient, steps: int, product: ProductName, radius: float, reference: nn.Module) -> Faithfulness:
    """One start for each sentence."""
    found = []
    for row in range(min(SENTENCES, len(patient.batch["input_ids"]))):
        game = SALT(steps=steps, init_radius=radius, product=product, seed=row, mode="eager")
        with patient.autocast():
            found.append(game.fidelity(patient.model, patient.rows(row, row + 1), reference=reference))
    trusted = [one.product for one in found if not math.isnan(one.product)]
    return Faithfulness(
        radius,
        statistics.median(trusted) if trusted else math.nan,
        min(trusted, default=math.nan),
        statistics.fmean(one.guarded for one in found),
        sum(cosine < 0 for cosine in trusted),
    )


def faithfulness(patient: Patient, steps: int, kept: list[Faithfulness]) -> Iterator[Finding]:
    """At the default start, and at a larger one if too few sentences are trusted there. `kept` takes the last."""
    need = 40 * sum(p.numel() for p in patient.model.parameters())  # a float64 copy and four gradients
    room = available(patient.device)
    if need > room:
        says = f"left out: a float64 copy and its gradients need {need / GIB:.0f} GiB, {room / GIB:.0f} GiB are free"
        yield Finding("note", "fidelity", says, {"needed": need})
        return
    product: ProductName = "auto" if "double_backward" in patient.products else patient.products[0]  # type: ignore[assignment]
    words = set(HuggingFaceTask.of(patient.model, patient.batch).sides(patient.model).values())
    frozen = [p for module in words for p in module.parameters() if p.requires_grad]
    for p in frozen:  # half of a small model's weights, and a sparse gradient: everything else is compared
        p.requires_grad_(False)
    try:
        reference = copy.deepcopy(patient.model).double()
        for radius in RADII:
            found = measure(patient, steps, product, radius, reference)
            kept.append(found)
            yield judged(patient, found)
            if found.guarded <= HALF:
                break
    finally:
        for p in frozen:
            p.requires_grad_(True)


def judged(patient: Patient, found: Faithfulness) -> Finding:
    """What the figures mean."""
    start = f"in {patient.precision}, started at {found.radius:g} ε,"
    facts = asdict(found)
    if math.isnan(found.median):
        says = (
            f"{start} no sentence's output moves by more than its own rounding, so the interaction of all is left out "
            "and SALT is VAT here"
        )
        return Finding("warning", "fidelity", says, facts)
    says = (
        f"{start} the interaction's cosine with float64 is {found.median:.4f} (median) and {found.worst:.4f} (worst) "
        f"of those trusted; {found.guarded:.0%} is left out as rounding noise"
    )
    if found.turned and patient.precision != "float32":
        says += (
            f"; {found.turned} with the wrong sign, which half precision does to sentences that move little, "
            "in VAT and SMART too"
        )
    good = found.worst >= FAITHFUL and not found.doubtful
    return Finding("ok" if good else "warning", "fidelity", says, facts)
