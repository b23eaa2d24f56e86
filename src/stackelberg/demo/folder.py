"""The demo's folder, made once; a second call finds it as it was left.

letters/train.tsv, dev.tsv    the task          study/         the runs, as `stackelberg study` keeps them
model/                        the encoder       report.html    what came of them
                                                picture.png    score, calibration and cost
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stackelberg.decoding import listing
from stackelberg.demo.encoder import write_encoder
from stackelberg.demo.letters import Letter, judged, learnt
from stackelberg.errors import RunError
from stackelberg.storage import UNFINISHED, sweep_unfinished, unwritable, write_whole

TRAIN, DEV = Path("letters", "train.tsv"), Path("letters", "dev.tsv")
MODEL, STUDY = Path("model"), Path("study")
REPORT, PICTURE = Path("report.html"), Path("picture.png")
ROWS = {TRAIN: 600, DEV: 1000}
SEED = 0  # of the letters


def begin(home: Path, seed: int = SEED) -> None:
    """Write the task and the encoder where they are not there yet; refuse a folder that is not a demo's.

    Args:
        home: the demo's folder.
        seed: of the letters. The settings of the methods were chosen on those of another one.
    """
    rows = {TRAIN: learnt(ROWS[TRAIN], seed), DEV: judged(ROWS[DEV], seed)}
    files = {home / name: _tsv(letters) for name, letters in rows.items()}
    _refuse_others(home, files)
    for place in (home, home / TRAIN.parent):
        sweep_unfinished(place)
    for path, text in files.items():
        if not path.is_file():
            write_whole(path, text)
    if not (home / MODEL).is_dir():
        write_encoder(home / MODEL, [letter.text for letter in rows[TRAIN]])


def _refuse_others(home: Path, files: dict[Path, str]) -> None:
    if (wrong := unwritable(home)) is not None:
        raise RunError(f"{wrong}; give another --out")
    if home.is_dir() and any(not path.name.startswith(UNFINISHED) for path in home.iterdir()):
        if not (home / TRAIN.parent).is_dir():
            raise RunError(f"{home} is not empty and holds no demo; give another --out ({listing(home)})")
        for path, text in files.items():
            if path.is_file() and path.read_bytes() != text.encode():
                raise RunError(f"{path} is not as this version's demo writes it; give another --out")


def _tsv(letters: Sequence[Letter]) -> str:
    return "text\tlabel\n" + "".join(f"{letter.text}\t{letter.desk}\n" for letter in letters)
