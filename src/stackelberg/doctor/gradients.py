"""Which attention runs, and which ways to the interaction term a model allows: each is tried."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

from ..game.conditions import TWICE_DIFFERENTIABLE
from ..game.hand import Parts, size
from ..game.product import PRODUCTS, ProductName
from ..game.round import Round
from ..methods import SALT
from .finding import Finding, sentence
from .patient import Patient

ROWS = 2  # enough to tell whether a way works
AGREES = 0.99

SPOKEN = {
    "double_backward": "double backward",
    "forward_over_reverse": "forward over reverse",
    "differences": "central differences",
}


def attention(patient: Patient) -> Iterator[Finding]:
    """The implementation that the model was loaded with, and what a game makes of it."""
    name = getattr(patient.model.config, "_attn_implementation", None) or "the model's own"
    facts = {"implementation": name}
    if name == "eager":
        yield Finding("ok", "attention", "attention is eager: plain operations, which have a second derivative", facts)
    elif name == "sdpa":
        says = "attention is sdpa; passes that are differentiated twice run its math kernel, all others a fused one"
        yield Finding("ok", "attention", says, facts)
    elif name in TWICE_DIFFERENTIABLE:
        yield Finding("ok", "attention", f"attention is {name}", facts)
    else:
        says = f"attention is {name}, which has no second derivative; a game plays with sdpa instead, and gives it back"
        yield Finding("note", "attention", says, facts)


def products(patient: Patient, steps: int) -> Iterator[Finding]:
    """The sweep's three products and the exact route, on two sentences, compared with the first that works."""
    reference: Parts | None = None
    for name in PRODUCTS:
        if name == "auto":
            continue
        begun = time.perf_counter()
        try:
            parts = interaction(patient, name, steps)
        except Exception as error:  # of any kind: a kernel's, a model's
            says = f"{SPOKEN[name]}: does not work here ({sentence(error)})"
            yield Finding("note", f"product.{name}", says, {"works": False})
            continue
        facts = {"works": True, "seconds": time.perf_counter() - begun, "norm": float(size(parts))}
        patient.products.append(name)
        if reference is None:
            reference = parts
        yield _compared(name, parts, patient.products[0], reference, facts)
    if not patient.products:
        says = "no way to the interaction term works, so SALT cannot play; its game without it is the method 'vat'"
        yield Finding("failure", "product", says)
    yield from _exact(patient, steps)


def interaction(patient: Patient, product: ProductName, steps: int) -> Parts:
    """The interaction term on two sentences by one product, without dropout and without the task loss."""
    game = SALT(product=product, steps=steps, mode="eager")
    patient.model.eval()
    try:
        with patient.autocast():
            round = Round(
                patient.model, patient.rows(0, ROWS), None, dropout="shared", second_derivative=game.second_derivative
            )
            round.clean()
            hand = game.hand(round)
            return hand.interaction(hand.contest.climb(hand.start, round.target))
    finally:
        patient.model.train()


def cosine(a: Parts, b: Parts) -> float:
    """Between two gradients over the same parameters."""
    pairs = [(x.double(), y.double()) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    dot = torch.stack([(x * y).sum() for x, y in pairs]).sum() if pairs else torch.zeros(())
    return float(dot / (size(a) * size(b)))


def _compared(name: str, parts: Parts, first: str, reference: Parts, facts: dict[str, Any]) -> Finding:
    """One that works, beside the first that did."""
    topic, spoken = f"product.{name}", SPOKEN[name]
    if float(size(reference)) == 0 or facts["norm"] == 0:
        says = f"{spoken}: works; no sentence's term is above rounding here, so its value was not compared"
        return Finding("ok", topic, says, facts)
    if name == first:
        return Finding("ok", topic, f"{spoken}: works", facts)
    agreement = facts["agreement"] = cosine(parts, reference)
    if agreement >= AGREES:
        return Finding("ok", topic, f"{spoken}: works, and agrees (cosine {agreement:.4f})", facts)
    says = f"{spoken}: works, but disagrees with {SPOKEN[first]} (cosine {agreement:.4f})"
    coarse = name == "differences"  # which is known of them
    return Finding(
        "note" if coarse else "warning", topic, says + "; it is for models that allow nothing else" * coarse, facts
    )


def _exact(patient: Patient, steps: int) -> Iterator[Finding]:
    try:
        with patient.autocast():
            SALT(gradient="exact", steps=steps, mode="eager").backward(patient.model, patient.rows(0, ROWS))
    except Exception as error:  # of any kind
        says = f"gradient='exact': does not work here ({sentence(error)})"
        yield Finding("note", "route.exact", says, {"works": False})
    else:
        says = "gradient='exact': works (autograd through all steps; its memory grows with K)"
        yield Finding("ok", "route.exact", says, {"works": True})
    finally:
        patient.model.zero_grad(set_to_none=True)
