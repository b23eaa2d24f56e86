"""The errors that stackelberg raises: one sentence each, naming the thing, its value and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class StackelbergError(Exception):
    """Base of every error raised on purpose by this library."""


class SettingError(StackelbergError, ValueError):
    """A setting is unknown, out of range, or does not go with another one."""


class ModelError(StackelbergError, TypeError):
    """The model, or the batch given to it, cannot be played with as it is."""


class NonFiniteLossError(StackelbergError, ArithmeticError):
    """The objective was NaN or infinite; raised before the optimizer can step on it."""


class MissingPackageError(StackelbergError, ImportError):
    """An optional package is not installed; says which command installs it."""


class DataError(StackelbergError, ValueError):
    """A file, a row or a label cannot be what the task needs; names the file, the line and the fix."""


class RunError(StackelbergError, ValueError):
    """A run folder is not what it is asked to be: not finished, another recipe's, or no run at all."""


class SubmissionError(StackelbergError, ValueError):
    """Predictions, or a zip, that the GLUE server would not take."""


def one_of(name: str, value: object, allowed: Iterable[str]) -> None:
    """Refuse a `value` that is not one of the `allowed` names, suggesting the nearest."""
    names = list(allowed)
    if value not in names:
        raise SettingError(f"{name}={value!r} is not known; choose one of {', '.join(names)}{nearest(value, names)}")


def nearest(value: object, names: Iterable[str]) -> str:
    """The end of an error sentence: a guess at the name that was meant, or nothing."""
    close = difflib.get_close_matches(str(value), list(names), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def first_line(error: Exception) -> str:
    """What another library's error says, as much as fits into a sentence."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextmanager
def needs(package: str, *, extra: str) -> Iterator[None]:
    """Around the import of an optional dependency: if it is missing, say which command installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise MissingPackageError(
            f"this part of stackelberg needs {package}, which is not installed: pip install 'stackelberg[{extra}]'"
        ) from error
