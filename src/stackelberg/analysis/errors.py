"""What can be wrong with an analysis."""

from __future__ import annotations

from stackelberg.errors import StackelbergError


class AnalysisError(StackelbergError, ValueError):
    """The figures asked for cannot be had from, or would be wrong on, what was given."""
