"""The command `stackelberg`. Each command is a file here that imports what is slow only once it runs."""

from __future__ import annotations

import sys

from ..errors import StackelbergError, needs

with needs("typer", extra="cli"):
    from . import (
        calibrate,
        compare,
        doctor,
        evaluate,
        export,
        predict,
        probe,
        robustness,
        study,
        submit,
        train,
        translate,
        watch,
    )
    from .app import app

COMMANDS = (
    calibrate,
    compare,
    doctor,
    evaluate,
    export,
    predict,
    probe,
    robustness,
    study,
    submit,
    train,
    translate,
    watch,
)

__all__ = ["COMMANDS", "app", "main"]


def main() -> None:
    """Run the command: an error on purpose is one sentence and exit code 2, never a traceback."""
    try:
        app()
    except StackelbergError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
