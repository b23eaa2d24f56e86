"""Serving: a model as CTranslate2 runs it, written by its own converter, and searching with it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stackelberg.errors import DataError, first_line, needs, one_of
from stackelberg.nmt.codec import Codec
from stackelberg.nmt.search import Found, Search, Translator
from stackelberg.storage import whole_folder, write_whole

QUANTIZATIONS = ("float32", "float16", "bfloat16", "int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16")
MODEL = "model.bin"  # shows that a folder is CTranslate2's
LIMITS = "limits.json"  # what its own configuration does not say


class CTranslating:
    """An engine around `ctranslate2.Translator`."""

    def __init__(self, translator: Any, codec: Codec, longest: int | None) -> None:
        """`longest`: pieces that a source may have."""
        self.translator = translator
        self.codec = codec
        self.longest = longest

    def search(self, sources: Sequence[Sequence[int]], how: Search, most: int) -> list[list[Found]]:
        """The same search as `Generating`'s."""
        codec = self.codec
        words = [codec.tokenizer.convert_ids_to_tokens(list(source)) for source in sources]
        first = codec.first_target
        prefix = None if first is None else [codec.target.convert_ids_to_tokens([first])] * len(words)
        found = self.translator.translate_batch(
            words,
            target_prefix=prefix,
            beam_size=how.beam,
            num_hypotheses=how.n_best,
            length_penalty=how.length_penalty,
            max_decoding_length=most if self.longest is None else min(most, self.longest - 1),
            max_input_length=0,
            return_scores=True,
        )
        return [
            [
                Found(codec.target.convert_tokens_to_ids(tokens), score)
                for tokens, score in zip(each.hypotheses, each.scores, strict=True)
            ]
            for each in found
        ]


def export(folder: Path, out: Path, *, quantization: str = "float32") -> Path:
    """Write a model's folder as CTranslate2 wants it, with its tokenizer beside it.

    Args:
        folder: a Hugging Face encoder–decoder with its tokenizer, such as a run's `model`.
        out: a folder that is not there yet.
        quantization: of the weights; `int8` is a quarter of the size, and fastest on a CPU.
    """
    one_of("quantization", quantization, QUANTIZATIONS)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"{out} is there already; give another folder, or remove it")
    with needs("ctranslate2", extra="nmt"):
        from ctranslate2.converters import TransformersConverter
    from stackelberg.nmt.hush import hushed
    from stackelberg.nmt.model import load_model, positions

    codec = Codec.load(folder)
    longest = positions(load_model(str(folder), codec))
    out.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(out) as unfinished, hushed():
        try:
            with _for_converter(folder) as told:
                TransformersConverter(str(told)).convert(str(unfinished), quantization=quantization, force=True)
        except (ValueError, AttributeError, KeyError, RuntimeError) as error:  # as models are unlike what it expects
            raise DataError(f"CTranslate2 cannot convert {folder}: {first_line(error)}") from error
        if codec.target is not codec.tokenizer:
            _part_vocabularies(unfinished, codec)
        codec.save(unfinished)
        write_whole(unfinished / LIMITS, json.dumps({"positions": longest}) + "\n")
    return out


def load_exported(folder: Path, *, threads: int | None = None) -> Translator:
    """A translator of a folder that `export` wrote; on the GPU if there is one that CTranslate2 can use."""
    if not (folder / MODEL).is_file():
        raise DataError(f"{folder} is no exported model: it has no {MODEL}; make one with: stackelberg export")
    with needs("ctranslate2", extra="nmt"):
        import ctranslate2

    codec = Codec.load(folder)
    limits = folder / LIMITS
    longest = json.loads(limits.read_text(encoding="utf-8"))["positions"] if limits.is_file() else None
    device = "cuda" if ctranslate2.get_cuda_device_count() else "cpu"
    cores = threads or int(os.environ.get("OMP_NUM_THREADS", "0"))  # 0 lets CTranslate2 choose
    try:
        engine = ctranslate2.Translator(str(folder), device=device, intra_threads=cores)
    except (RuntimeError, ValueError) as error:
        raise DataError(f"CTranslate2 cannot load {folder}: {first_line(error)}; export it again") from error
    return Translator(CTranslating(engine, codec, longest), codec)


@contextmanager
def _for_converter(folder: Path) -> Iterator[Path]:
    """The folder, or one like it that says what the converter asks and transformers 5 no longer writes."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if config.get("model_type") != "bart" or "normalize_before" in config:
        yield folder
        return
    with TemporaryDirectory() as place:
        for path in folder.iterdir():
            (Path(place) / path.name).symlink_to(path.resolve())
        (Path(place) / "config.json").unlink()
        said = {**config, "normalize_before": False, "normalize_embedding": True}  # as every BART is
        (Path(place) / "config.json").write_text(json.dumps(said), encoding="utf-8")
        yield Path(place)


def _part_vocabularies(folder: Path, codec: Codec) -> None:
    """The converter knows one tokenizer; where sides have their own, of equal size, the target's words differ."""
    shared = folder / "shared_vocabulary.json"
    words: list[str] = json.loads(shared.read_text(encoding="utf-8"))
    own = codec.target.convert_ids_to_tokens(list(range(len(words))))
    write_whole(folder / "source_vocabulary.json", json.dumps(words, ensure_ascii=False))
    write_whole(folder / "target_vocabulary.json", json.dumps(own, ensure_ascii=False))
    shared.unlink()
