"""Without transformers' bars, where models are loaded and saved in the middle of something else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stackelberg.errors import needs


@contextmanager
def hushed() -> Iterator[None]:
    """No bars inside; afterwards as before."""
    with needs("transformers", extra="hf"):
        from transformers.utils import logging as logging_of_transformers

    logging: Any = logging_of_transformers
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if bars:
            logging.enable_progress_bar()
