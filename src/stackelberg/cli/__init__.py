"""The command `stackelberg`. Each command is a file here that imports what is slow only once it runs."""

from __future__ import annotations

import importlib
import pkgutil
import sys

from ..errors import StackelbergError, needs

with needs("typer", extra="cli"):
    from typer.exceptions import TyperException

    for _file in pkgutil.iter_modules(__path__):
        if not _file.name.startswith("_"):
            importlib.import_module(f"{__name__}.{_file.name}")  # each puts its command into the app
    from .app import app

LONGEST = 1000  # letters of an error's sentence

__all__ = ["app", "main"]


def main() -> None:
    """Run the command. What was asked wrongly, or cannot be, is one sentence and exit code 2, never a traceback."""
    try:
        sys.exit(app(standalone_mode=False))
    except StackelbergError as error:
        said = str(error)
    except TyperException as error:  # of the words themselves: options, their values, how many
        context = getattr(error, "ctx", None)
        command = "stackelberg" if context is None else context.command_path
        said = f"{error.format_message().rstrip('.')}; see {command} --help"
    except OSError as error:
        if error.filename is None:
            raise
        said = f"{error.filename}: {error.strerror}"
    if len(said) > LONGEST:  # it names a value as long as that
        said = f"{said[: LONGEST // 2]} … {said[-LONGEST // 2 :]}"
    print("error:", said.replace("\n", " "), file=sys.stderr)
    sys.exit(2)
