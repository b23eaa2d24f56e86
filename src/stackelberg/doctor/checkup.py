"""The whole examination, in the order in which it is read."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from .advice import advice
from .cost import cost
from .dropout import dropout
from .embeddings import embeddings
from .faithfulness import Faithfulness, faithfulness
from .finding import Check, Finding, Section, careful
from .gradients import attention, products
from .installation import compiler, devices, extras, versions
from .patient import Head, Patient, Precision, load, quiet
from .rehearsal import rehearse
from .sample import needs_padding_id, random_batch, text_batch


@dataclass(frozen=True)
class Shape:
    """What a model is to be examined at."""

    precision: Precision = "float32"
    tokens: int | None = None  # left out, 64 or as many as the model has positions for
    rows: int = 8
    steps: int = 1  # K
    text: Path | None = None


def installation() -> Iterator[Section]:
    """What needs no model."""
    yield Section("Installation", _each({"versions": versions, "extras": extras}))
    yield Section("This machine", _each({"devices": devices, "compiler": compiler}))
    yield Section("Methods", _each({"methods": rehearse}))


def examination(name: str, head: Head | None, shape: Shape) -> Iterator[Section]:
    """What a model allows, costs and computes. Ends early where nothing further can be tried."""
    with quiet(), warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")  # what they warn of is found and told here
        torch.manual_seed(0)
        patients: list[Patient] = []
        yield Section(name, careful("model", lambda: _admitted(name, head, shape, patients)))
        if not patients:
            return
        patient, measured = patients[0], list[Faithfulness]()
        gradients = {
            "attention": partial(attention, patient),
            "product": partial(products, patient, shape.steps),
            "dropout": partial(dropout, patient),
        }
        yield Section("Gradients", _each(gradients))
        yield Section("Cost", careful("cost", partial(cost, patient, shape.steps)))
        if patient.products:
            faith = partial(faithfulness, patient, shape.steps, measured)
            yield Section("Fidelity", careful("fidelity", faith))
        last = measured[-1] if measured else None
        yield Section("Where to start", careful("advice", partial(advice, patient, shape.steps, last)))


def _admitted(name: str, head: Head | None, shape: Shape, patients: list[Patient]) -> Iterator[Finding]:
    patient = load(name, head)
    patient.precision = shape.precision
    count = sum(p.numel() for p in patient.model.parameters())
    guessed = "" if head else ", as its configuration suggests (--head says otherwise)"
    says = f"{type(patient.model).__name__}, {count / 1e6:.1f} M parameters, in {shape.precision}{guessed}"
    yield Finding("ok", "model", says, {"parameters": count, "head": patient.head, "new": patient.new})
    if patient.new:
        says = f"{len(patient.new)} of its tensors are new and random, {patient.new[0]} first: a head to be trained"
        yield Finding("note", "model.new", says)
    if needs_padding_id(patient, patient.head):
        says = "the configuration names no padding token; set model.config.pad_token_id, as is done here"
        yield Finding("warning", "model.padding", says)
    if shape.text is None:
        patient.batch = random_batch(patient, shape.rows, shape.tokens)
    else:
        patient.batch = text_batch(patient, shape.text, shape.rows, shape.tokens)
    yield from embeddings(patient)
    patients.append(patient)


def _each(checks: Mapping[str, Check]) -> Iterator[Finding]:
    for topic, check in checks.items():
        yield from careful(topic, check)
