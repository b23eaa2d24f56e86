"""`stackelberg doctor [MODEL]`: does it all work here, what does a model allow, and where to start."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from .app import app

if TYPE_CHECKING:
    from ..doctor.finding import Finding, Section

MARKS = {"ok": ("✓", "green"), "note": ("·", "dim"), "warning": ("!", "yellow"), "failure": ("✗", "red")}


class Head(StrEnum):
    """What stands on the model."""

    SEQUENCE_CLASSIFICATION = "sequence-classification"
    CAUSAL = "causal"
    SEQ2SEQ = "seq2seq"
    TOKEN = "token"


class Precision(StrEnum):
    """What the passes compute in; weights are float32."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


@app.command(
    epilog="For example: stackelberg doctor ./my-model --head causal --precision bfloat16 --tokens 128",
)
def doctor(
    model: Annotated[str | None, typer.Argument(help="A folder, or a name on the Hugging Face hub.")] = None,
    head: Annotated[Head | None, typer.Option(help="Its task; left out, guessed from its configuration.")] = None,
    precision: Annotated[Precision, typer.Option(help="Of the passes: float32, or autocast.")] = Precision.FLOAT32,
    tokens: Annotated[int | None, typer.Option(min=2, help="Of each sentence; left out, 64 or as many as fit.")] = None,
    rows: Annotated[int, typer.Option(min=1, help="Sentences in a batch.")] = 8,
    steps: Annotated[int, typer.Option(min=1, help="K, the adversary's steps.")] = 1,
    text: Annotated[Path | None, typer.Option(help="A file with a sentence a line, instead of random words.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings give exit code 1.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of lines to read.")] = False,
) -> None:
    """Check the installation and, with MODEL, what SALT and its baselines can do with it on this machine.

    Exit code 2: something cannot work (✗). 1: a warning (!), with --strict. 0: all else.
    """
    from ..doctor.checkup import Shape, examination, installation
    from ..doctor.finding import exit_code

    shape = Shape(cast(Any, precision.value), tokens, rows, steps, text)
    found = list(_told(installation(), silent=as_json))
    if model is not None:
        found += _told(examination(model, cast(Any, head.value if head else None), shape), silent=as_json)
    code = exit_code([finding for _, finding in found], strict)
    if as_json:
        typer.echo(json.dumps(_document(model, found, code), ensure_ascii=False, indent=1))
    raise typer.Exit(code)


def _told(sections: Iterable[Section], silent: bool) -> Iterable[tuple[str, Finding]]:
    """Each finding with its section's title, printed as it is made."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(quiet=silent, highlight=False)
    for section in sections:
        console.print(Text(f"\n{section.title}", style="bold"))
        with console.status("looking …") if console.is_terminal else _nothing():
            for finding in section.findings:
                mark, colour = MARKS[finding.level]
                if console.is_terminal:
                    line = Table.grid(padding=(0, 1))
                    line.add_row(Text(f"  {mark}", style=colour), Text(finding.says))
                    console.print(line)
                elif not silent:
                    typer.echo(f"  {mark} {finding.says}")
                yield section.title, finding


def _nothing() -> Any:
    from contextlib import nullcontext

    return nullcontext()


def _document(model: str | None, found: list[tuple[str, Finding]], code: int) -> dict[str, Any]:
    from importlib.metadata import version

    findings = [
        {"section": title, "topic": one.topic, "level": one.level, "says": one.says, "facts": _plain(one.facts)}
        for title, one in found
    ]
    advised = next((one.facts for _, one in found if one.topic == "advice"), None)
    return {
        "stackelberg": version("stackelberg"),
        "model": model,
        "exit_code": code,
        "recommended": advised,
        "findings": findings,
    }


def _plain(facts: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(facts, dict):
        return {name: _plain(value) for name, value in facts.items()}
    return None if isinstance(facts, float) and not math.isfinite(facts) else facts
