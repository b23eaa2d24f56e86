"""`stackelberg translate`: a file, or whatever comes in, line by line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import SettingError, one_of
from . import _outputs
from .app import app

BACKENDS = ("auto", "transformers", "ctranslate2")


@app.command()
def translate(
    model: Annotated[Path, typer.Argument(metavar="RUN|FOLDER", help="A run, a model's folder, or an exported model.")],
    file: Annotated[
        str, typer.Option("--input", "-i", help="Text, a sentence a line, plain or .gz; - is standard input.")
    ] = "-",
    out: Annotated[Path | None, typer.Option(help="A file; standard output without.", callback=_outputs.file)] = None,
    backend: Annotated[
        str, typer.Option(help="transformers or ctranslate2; what the folder is made for without.")
    ] = "auto",
    beam: Annotated[int | None, typer.Option(help="Hypotheses followed at once; the recipe's, or 5.")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="The recipe's, or 1.")] = None,
    n_best: Annotated[int, typer.Option(help="More than one: lines of number ||| translation ||| score.")] = 1,
    tokenized: Annotated[bool, typer.Option("--tokenized", help="As the model writes it, not put together.")] = False,
    reference: Annotated[Path | None, typer.Option(help="Translations to score by, on standard error.")] = None,
    precision: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16, for transformers.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="For ctranslate2; all cores without.")] = None,
) -> None:
    """Translate text, in its order and of any length.

    stackelberg translate runs/en-vi --input tst2013.en --beam 10 > tst2013.vi
    """
    from ..nmt.lines import read_lines
    from ..nmt.search import Search
    from ..storage import write_whole

    one_of("backend", backend, BACKENDS)
    usual = _usual(model)
    how = Search(
        beam=beam if beam is not None else usual.beam,
        length_penalty=length_penalty if length_penalty is not None else usual.length_penalty,
        n_best=n_best,
        scored=n_best > 1,
    )
    references = list(read_lines(reference)) if reference is not None else None
    translator = _translator(model, backend, precision, threads)
    lines = _standard_input() if file == "-" else read_lines(Path(file), longest=-1)
    written: list[str] = []
    best: list[Any] = []
    for number, found in enumerate(translator.stream(lines, how)):
        texts = [each.tokenized if tokenized else each.text for each in found]
        for text, each in zip(texts, found, strict=True):
            line = f"{number} ||| {text} ||| {each.score:.4f}" if n_best > 1 else text
            if out is None:
                typer.echo(line)
            else:
                written.append(line + "\n")
        if references is not None:
            best.append(found[0])
    if out is not None:
        write_whole(out, "".join(written))
    if references is not None:
        _score(translator, best, references)


def _usual(folder: Path) -> Any:
    """The search that a run's recipe wants."""
    from ..nmt.run import TranslationRun
    from ..nmt.search import Search
    from ..runs.folder import RESULT

    return TranslationRun.open(folder).search if (folder / RESULT).is_file() else Search()


def _translator(folder: Path, backend: str, precision: str | None, threads: int | None) -> Any:
    from ..nmt.ctranslate import MODEL, load_exported
    from ..nmt.generating import load_translator

    if not folder.is_dir():
        raise SettingError(
            f"{folder} is not a folder; give a run, a model's folder, or what `stackelberg export` wrote"
        )
    exported = (folder / MODEL).is_file()
    if backend == "ctranslate2" and not exported:
        raise SettingError(f"{folder} is not exported; make it so with: stackelberg export {folder} OUT")
    if backend == "transformers" and exported:
        raise SettingError(f"{folder} is exported for ctranslate2; give the run or the model's folder instead")
    if exported:
        return load_exported(folder, threads=threads)
    return load_translator(model_folder(folder), precision=precision)


def model_folder(folder: Path) -> Path:
    """The model in a run's folder, or the folder itself."""
    from ..nmt.run import TranslationRun
    from ..runs.folder import RECIPE

    return TranslationRun.open(folder).model_folder if (folder / RECIPE).is_file() else folder


def _standard_input() -> Iterator[str]:
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            yield line.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise SettingError(f"standard input, line {number}: not UTF-8 ({error.reason})") from error


def _score(translator: Any, best: list[Any], references: list[str]) -> None:
    from ..nmt.scores import figures

    ready = [translator.codec.form.prepared_target(line) for line in references]
    found = figures([each.tokenized for each in best], ready, [each.text for each in best], references)
    for name, score in found.items():
        typer.echo(f"{name:<16}{score.value:6.2f}   {score.signature}", err=True)
