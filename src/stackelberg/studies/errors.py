"""What can be wrong with a study."""

from __future__ import annotations

from stackelberg.errors import StackelbergError


class StudyError(StackelbergError, ValueError):
    """A study, its file or its folder is not what it is asked to be."""
