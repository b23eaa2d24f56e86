"""What can be wrong with data, predictions and the packages they need: one sentence each, with the fix."""

from __future__ import annotations

from stackelberg.errors import MissingPackageError as MissingPackageError
from stackelberg.errors import StackelbergError


class DataError(StackelbergError, ValueError):
    """A file, a row or a label cannot be what the task needs; names the file, the line and the fix."""


class SubmissionError(StackelbergError, ValueError):
    """Predictions, or a zip, that the GLUE server would not take."""


class RunError(StackelbergError, ValueError):
    """A run folder is not what it is asked to be: not finished, another recipe's, or no run at all."""
