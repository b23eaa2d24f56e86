"""Checkpoint folders that are known to be whole: sealed with a list of their files once all are on the disk."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

import torch

from ..errors import SettingError
from ..game.game import Game
from ..storage import synced, write_whole

SEAL = "sealed.json"  # file → size; written last
STATE = "trainer_state.json"  # what the stock Trainer writes last


def seal(folder: Path) -> None:
    """Say that the folder is whole, after what is in it has reached the disk."""
    sizes = {}
    for path in sorted(folder.rglob("*")):
        synced(path)
        if path.is_file():
            sizes[str(path.relative_to(folder))] = path.stat().st_size
    write_whole(folder / SEAL, json.dumps(sizes, indent=1))
    synced(folder.parent)


def unseal(folder: Path) -> None:
    """Before anything in it is written again."""
    (folder / SEAL).unlink(missing_ok=True)


def flaw(folder: Path) -> str | None:
    """What shows that a checkpoint was not written to its end; None if it was.

    A folder without a seal may be the stock Trainer's, whose state is the last it writes.
    """
    try:
        if not (folder / SEAL).exists():
            json.loads((folder / STATE).read_text())
            return None
        sizes: dict[str, int] = json.loads((folder / SEAL).read_text())
    except FileNotFoundError:
        return f"it has no {STATE}"
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        return f"it holds a list that is not JSON ({error})"
    for name, size in sizes.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes instead of {size}"
    return None


def last_whole(run: Path) -> str | None:
    """The run's newest checkpoint that is whole, passing over torn ones with a message.

    None, with a message, where all are torn: the run begins anew.
    """
    found = sorted(_numbered(run), reverse=True)
    if not found:
        raise SettingError(f"resume_from_checkpoint=True, but {run} holds no checkpoint; leave it out for a new run")
    for _, folder in found:
        why = flaw(folder)
        if why is None:
            return str(folder)
        warnings.warn(f"{folder} was not written to its end ({why}) and is passed over", stacklevel=3)
    warnings.warn(f"{run} holds no checkpoint that was written to its end, so the run begins anew", stacklevel=3)
    return None


def refuse_torn(folder: Path) -> None:
    """Refuse a checkpoint that is not there or not whole, naming the newest that is."""
    why = "it is not there" if not folder.is_dir() else flaw(folder)
    if why is None:
        return
    whole = [path for _, path in sorted(_numbered(folder.parent)) if flaw(path) is None]
    instead = f"resume from {whole[-1]}" if whole else "leave resume_from_checkpoint out for a new run"
    raise SettingError(f"cannot resume from {folder}: {why}; {instead}")


def restore(path: Path, game: Game, step: int) -> None:
    """Give the game the state that a checkpoint holds of it; of another method or none, only the step."""
    saved = torch.load(path, map_location="cpu", weights_only=True) if path.exists() else None
    if saved is not None and saved["method"] == game.name:
        game.load_state_dict(saved["state"])
        return
    why = "holds no state of a game" if saved is None else f"was written by method {saved['method']!r}"
    warnings.warn(f"{path.parent} {why}; {game.name!r} begins at step {step}", stacklevel=3)
    game.reset(step)


def _numbered(run: Path) -> list[tuple[int, Path]]:
    named = ((path, re.fullmatch(r"checkpoint-(\d+)", path.name)) for path in (run.iterdir() if run.is_dir() else ()))
    return [(int(match[1]), path) for path, match in named if match]
