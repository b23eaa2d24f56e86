"""A game's whole gradient as a captured graph, and how autograd meets it.

`loss = game(model, batch)` replays the graph, which leaves every parameter's gradient beside the objective;
`loss.backward()` then only hands them out, scaled by what arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from .capture import Input, Static, capturing
from .report import Report
from .speed import Pending, Speed

Play = Callable[[Static], tuple[Tensor, Report, int]]  # inputs → (objective, report, embedded rows)


@dataclass
class Notes:
    """What a recording's tensors mean."""

    names: list[str]  # of the report's figures
    present: list[bool]  # which parameters have a gradient
    rows: int


@dataclass
class Replayed:
    """One step's results."""

    objective: Tensor  # with a graph of one node
    gradients: list[Tensor | None]  # in the recording's memory; none where it has moved the parameters itself
    report: Report
    rows: int


def replay(
    speed: Speed,
    core: nn.Module,
    key: Hashable,
    inputs: Mapping[str, Input],
    play: Play,
    parameters: Sequence[nn.Parameter],
    update: Callable[[], Tensor] | None = None,
) -> Replayed | None:
    """Play the step from its recording; None where there is none.

    `update` belongs into the recording too: with the gradients in `.grad`, it moves the parameters.
    """
    kept = speed.of(core)
    waiting = kept.pending() if kept.pending else None
    if waiting is not None:
        waiting.keep()
    device = parameters[0].device
    half, enabled = torch.get_autocast_dtype(device.type), torch.is_autocast_enabled(device.type)

    def gradient(static: Static) -> Tensor:
        # An autocast of its own: weights that the caller's has cast already would be constants in the graph.
        with torch.autocast(device.type, half, enabled, cache_enabled=False):
            objective, report, rows = play(static)
        with torch.autocast(device.type, enabled=False):
            found = torch.autograd.grad(objective, list(parameters), allow_unused=True)
        if update is None:
            for p, g in zip(parameters, found, strict=True):
                if g is not None and p not in kept.gradients:
                    kept.gradients[p] = torch.empty_like(p)
            pairs = [(kept.gradients[p], g) for p, g in zip(parameters, found, strict=True) if g is not None]
            torch._foreach_copy_([a for a, _ in pairs], [b for _, b in pairs])
        elif capturing():  # not in the runs before
            for p, own in zip(parameters, _apart(parameters, found), strict=True):
                p.grad = own
            report.skipped = update()
            for p in parameters:
                p.grad = None
        figures = {f.name: getattr(report, f.name) for f in fields(report) if getattr(report, f.name) is not None}
        kept.notes[key] = Notes(list(figures), [g is not None for g in found], rows)
        return torch.stack([objective.detach().float(), *(x.float() for x in figures.values())])

    recording = speed.recording(kept, key, gradient, inputs, device)
    if recording is None:
        return None
    values = recording.replay(inputs).clone()
    notes: Notes = kept.notes[key]
    report = Report(**dict(zip(notes.names, values[1:].unbind(), strict=True)))
    if update is not None:
        return Replayed(values[0], [], report, notes.rows)
    gradients = [kept.gradients[p] if has else None for p, has in zip(parameters, notes.present, strict=True)]
    pending = Pending(gradients)
    kept.pending = ref(pending)
    objective = _HandOut.apply(pending, values[0], *parameters)  # type: ignore[no-untyped-call]
    return Replayed(objective, gradients, report, notes.rows)


def _apart(parameters: Sequence[nn.Parameter], found: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Gradients that can be changed in place: laid out as their parameters are, no two of them one tensor."""
    apart: list[Tensor | None] = []
    taken: set[int] = set()
    for p, g in zip(parameters, found, strict=True):
        if g is not None and (g.stride() != p.stride() or g.untyped_storage().data_ptr() in taken):
            g = torch.empty_like(p).copy_(g)
        if g is not None:
            taken.add(g.untyped_storage().data_ptr())
        apart.append(g)
    return apart


class _HandOut(torch.autograd.Function):
    """(F, θ) ↦ F, whose gradient on θ is known already."""

    @staticmethod
    def forward(ctx: Any, pending: Pending, value: Tensor, *parameters: Tensor) -> Tensor:
        ctx.pending = pending
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        given: list[Tensor | None] = ctx.pending.gradients
        there = [g for g in given if g is not None]
        scaled = iter(torch._foreach_mul(there, cotangents[0].to(there[0].dtype)) if there else ())
        return None, None, *(None if g is None else next(scaled) for g in given)
