"""The command itself; each other file here adds one of its commands."""

from __future__ import annotations

import typer

app = typer.Typer(
    name="stackelberg",
    help="Adversarial regularization of language models: SALT and every method it is compared with.",
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True),
) -> None:
    if version:
        from importlib.metadata import version as version_of

        typer.echo(version_of("stackelberg"))
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)
