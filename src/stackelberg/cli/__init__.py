"""The command `stackelberg`. Each command is a file here that imports what is slow only once it runs."""

from __future__ import annotations

import sys

from ..errors import StackelbergError, needs

with needs("typer", extra="cli"):
    import typer

app = typer.Typer(
    name="stackelberg",
    help="Adversarial regularization of language models: SALT and every method it is compared with.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


@app.callback(invoke_without_command=True)
def _options(
    version: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True),
) -> None:
    if version:
        from importlib.metadata import version as version_of

        typer.echo(version_of("stackelberg"))
        raise typer.Exit


def main() -> None:
    """Run the command: an error on purpose is one sentence and exit code 2, never a traceback."""
    try:
        app()
    except StackelbergError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)


from . import calibrate as calibrate  # noqa: E402
from . import compare as compare  # noqa: E402
from . import doctor as doctor  # noqa: E402  # each command's file registers it
from . import evaluate as evaluate  # noqa: E402
from . import export as export  # noqa: E402
from . import predict as predict  # noqa: E402
from . import probe as probe  # noqa: E402
from . import robustness as robustness  # noqa: E402
from . import submit as submit  # noqa: E402
from . import train as train  # noqa: E402
from . import translate as translate  # noqa: E402
