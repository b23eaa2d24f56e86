"""What a pass will be differentiated for, which decides what a compiled layer must keep."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

# `leader`: once, on everything. `ascent`: once, on δ alone, so weights are constants. `product`: on δ, and then the
# result on everything.
Purpose = Literal["leader", "ascent", "product"]

PURPOSE: ContextVar[Purpose] = ContextVar("purpose", default="leader")


@contextmanager
def meant_for(purpose: Purpose) -> Iterator[None]:
    """Passes inside are differentiated for that."""
    token = PURPOSE.set(purpose)
    try:
        yield
    finally:
        PURPOSE.reset(token)
