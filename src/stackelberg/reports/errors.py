"""What can be wrong with a report."""

from __future__ import annotations

from stackelberg.errors import StackelbergError


class ReportError(StackelbergError, ValueError):
    """There is nothing to report on, or the report cannot be written where it should be."""
