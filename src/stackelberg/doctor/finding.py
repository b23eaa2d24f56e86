"""What a check found: a level, a sentence in plain words, and the figures behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from ..errors import StackelbergError

# `note` is neither good nor bad: an extra that is not installed, a figure to read.
Level = Literal["ok", "note", "warning", "failure"]


@dataclass(frozen=True)
class Finding:
    """One line of a checkup."""

    level: Level
    topic: str  # a short name that programs can rely on
    says: str
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Section:
    """A title, and the findings under it as they are made."""

    title: str
    findings: Iterator[Finding]


Check = Callable[[], Iterable[Finding]]


def careful(topic: str, check: Check) -> Iterator[Finding]:
    """The check's findings; whatever it raises is one more, a failure in one sentence."""
    try:
        yield from check()
    except Exception as error:  # of any kind: a model's own code ran
        yield Finding("failure", topic, sentence(error))


def sentence(error: Exception) -> str:
    """The first sentence of an error, with its kind where it is not one of ours."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    if isinstance(error, StackelbergError) or "pip install" in first:
        return first
    if "out of memory" in first.lower() or "can't allocate memory" in first.lower():
        return "there is not enough memory for this shape; try fewer --rows or --tokens"
    return f"{type(error).__name__}: {first[:240]}" if first else type(error).__name__


def exit_code(findings: Iterable[Finding], strict: bool) -> int:
    """2 where something cannot work, 1 for warnings if `strict`, otherwise 0."""
    levels = {finding.level for finding in findings}
    if "failure" in levels:
        return 2
    return 1 if strict and "warning" in levels else 0
