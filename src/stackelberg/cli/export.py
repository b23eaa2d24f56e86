"""`stackelberg export`: a trained translation model for CTranslate2."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import _outputs
from .app import app


@app.command()
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN|FOLDER", help="A translation run, or a model's folder.")],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="A folder that is not there yet.", callback=_outputs.folder)
    ],
    quantization: Annotated[str, typer.Option(help="int8 is a quarter of the size and fastest on a CPU.")] = "float32",
) -> None:
    """Write a translation model as CTranslate2 serves it, its tokenizer beside it."""
    from ..errors import SettingError
    from ..nmt.ctranslate import export as write
    from .translate import model_folder

    if not run.is_dir():
        raise SettingError(f"{run} is not a folder; give a translation run's or a model's")
    written = write(model_folder(run), out, quantization=quantization)
    size = sum(path.stat().st_size for path in written.rglob("*") if path.is_file()) / 2**20
    typer.echo(f"{written}, {size:.1f} MiB; use it with: stackelberg translate {written}", err=True)
