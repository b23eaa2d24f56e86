"""Where to start with this model: settings, and for each the reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..methods import SALT
from .faithfulness import Faithfulness
from .finding import Finding
from .patient import Patient

LARGE, SMALL = 0.3, 0.002  # of ‖x‖: what a ball of radius ε = 1 should lie between


def advice(patient: Patient, steps: int, measured: Faithfulness | None) -> Iterator[Finding]:
    """One line a setting, and the call at the end."""
    game = SALT(steps=steps)
    settings: dict[str, Any] = {"epsilon": game.radius, "steps": steps}
    share = game.radius / min(patient.sizes.values())
    if SMALL <= share <= LARGE:
        reason = f"ε = {game.radius:g}: {share:.1%} of what a sentence's embeddings measure"
    else:
        settings |= {"epsilon": 0.05, "relative": True}
        much = "much" if share > LARGE else "little"
        reason = (
            f"ε = 0.05, relative: a ball of radius {game.radius:g} would be {share:.2%} of what a sentence's "
            f"embeddings measure, which is {much}; this makes it 5 % for every sentence"
        )
    yield _line("epsilon", reason)
    radius = game.init_radius if measured is None else measured.radius
    settings["init_radius"] = radius
    epsilon = settings["epsilon"] * (min(patient.sizes.values()) if settings.get("relative") else 1)
    coordinates = int(patient.batch["attention_mask"][0].sum()) * patient.width
    sigma = radius * epsilon / coordinates**0.5
    yield _line(
        "start",
        f"‖δ⁰‖ = {radius:g} ε: for the first sentence here σ is {sigma:.2g}; a share of ε suits every length, a fixed "
        "σ does not",
    )
    yield _line("step_size", "step size left out: one normalised step then crosses the ball, η = ε")
    yield _line("product", _product(patient, settings))
    mode = "auto" if patient.device.type == "cuda" else "eager"
    settings["mode"] = mode
    where = "compiled layers and captured graphs pay on a GPU" if mode == "auto" else "there is no GPU to capture on"
    yield _line("mode", f"mode='{mode}': {where}")
    if measured is not None and measured.doubtful and patient.precision != "float32":
        yield Finding(
            "warning",
            "advice.precision",
            f"train in float32, or compare runs of both: in {patient.precision} the interaction is not what it should "
            "be with these weights (a new head's outputs hardly move; look again after some training)",
        )
    call = "SALT" if patient.products else "VAT"
    if not patient.products:
        settings.pop("product", None)
    written = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    yield Finding("note", "advice", f"{call}({written})", {"method": call.lower(), "settings": settings})


def _product(patient: Patient, settings: dict[str, Any]) -> str:
    if "double_backward" in patient.products:
        settings["product"] = "auto"
        return "product='auto': double backward, which works here and is the most faithful"
    if not patient.products:
        return "no product works, so the interaction is left out"
    settings["product"] = patient.products[0]
    doubt = ""
    if patient.products[0] == "differences" and patient.precision != "float32":
        doubt = f", but it is not faithful in {patient.precision}"
    return f"product='{patient.products[0]}': double backward does not work here, this does{doubt}"


def _line(setting: str, says: str) -> Finding:
    return Finding("note", f"advice.{setting}", says)
