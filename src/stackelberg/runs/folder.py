"""A run's folder: whose it is, whether it is finished, and how to go on with it."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

from stackelberg.decoding import decode, listing
from stackelberg.errors import RunError, StackelbergError
from stackelberg.runs.lock import LOCK
from stackelberg.runs.recipe import BaseRecipe
from stackelberg.runs.records import finite, read_records
from stackelberg.storage import UNFINISHED, unwritable, write_whole

if TYPE_CHECKING:
    from stackelberg.game.game import Game

Read = TypeVar("Read", dict[str, Any], list[Any])
RECIPE, RESULT, VERSIONS = "recipe.yaml", "result.json", "versions.json"


def is_finished(folder: Path, recipe: BaseRecipe, *, before: Collection[str] = ()) -> bool:
    """Whether there is nothing left to do; refuses a folder that is not this run's.

    Args:
        folder: the run's, there or not.
        recipe: of the run that is asked for.
        before: what may be there already of a run that has not begun.
    """
    if (wrong := unwritable(folder)) is not None:
        raise RunError(f"{wrong}; give another --out")
    if not folder.exists() or all(_is_nothing(path.name, before) for path in folder.iterdir()):
        return False
    if not (folder / RECIPE).is_file():
        raise RunError(f"{folder} is not empty and holds no run; give another --out ({listing(folder)})")
    try:
        its = recipe.load(folder / RECIPE)
    except StackelbergError as error:
        raise RunError(f"{folder} holds a run whose recipe cannot be read: {error}") from error
    if its.key() != recipe.key():
        raise RunError(
            f"{folder} holds a run of another recipe ({recipe.difference(its)}); give another --out, or remove it"
        )
    return (folder / RESULT).is_file()


def _is_nothing(name: str, before: Collection[str]) -> bool:
    """Whether a file is no part of a run: a lock, or what a killed process left before it had written a first file."""
    return name in before or name == LOCK or name.startswith(UNFINISHED)


def begin(folder: Path, recipe: BaseRecipe, versions: Mapping[str, Any]) -> None:
    """Write what was asked for and what it is made with."""
    write_whole(folder / RECIPE, recipe.to_yaml())
    write_whole(folder / VERSIONS, json.dumps(versions, indent=2) + "\n")


def finish(folder: Path, game: Game, card: str, figures: Mapping[str, float]) -> None:
    """Write the model's card, the game's description and the figures; the figures last: the run is finished."""
    from stackelberg.adapters.card import described, mark

    model, last = folder / "model", logged(folder)[-1]
    write_whole(model / "README.md", card)
    mark(model / "README.md", game, {k.removeprefix("game/"): v for k, v in last.items() if k.startswith("game/")})
    write_whole(model / "stackelberg.json", described(game))
    write_whole(folder / RESULT, json.dumps(finite(figures), indent=2) + "\n")


def figures_of(folder: Path) -> dict[str, float]:
    """The figures of a finished run."""
    if not (folder / RECIPE).is_file():
        raise RunError(f"{folder} is no run: it has no {RECIPE}; {listing(folder)}")
    if not (folder / RESULT).is_file():
        raise RunError(f"{folder} is not finished: it has no {RESULT}; finish it with: {resuming(folder)}")
    said = read_json(folder / RESULT, dict)
    if not all(value is None or isinstance(value, int | float) for value in said.values()):
        raise RunError(f"{folder / RESULT} has figures that are no numbers; remove it, and run: {resuming(folder)}")
    return {name: math.nan if value is None else value for name, value in said.items()}


def read_json(path: Path, kind: type[Read]) -> Read:
    """A file that a run wrote, with names and values (`dict`) or one after another (`list`)."""
    try:
        said = json.loads(decode(path))
    except ValueError as error:
        raise RunError(f"{path} is not as a run writes it ({error}); remove the run, and make it again") from error
    if not isinstance(said, kind):
        raise RunError(f"{path} is not as a run writes it (no {kind.__name__}); remove the run, and make it again")
    return said


def resuming(folder: Path) -> str:
    """The command that goes on with a run."""
    return shlex.join(["stackelberg", "train", str(folder / RECIPE), "--out", str(folder)])


def logged(folder: Path) -> list[dict[str, Any]]:
    """The records of training, not of evaluation."""
    return [record for record in read_records(folder) if "seconds" in record]


def cost(folder: Path) -> dict[str, float]:
    """What a step took, the median over what was logged, and the most memory of a GPU."""
    import torch

    found = {"seconds_per_step": median(record["seconds_per_step"] for record in logged(folder))}
    return found | ({"peak_gib": torch.cuda.max_memory_allocated() / 2**30} if torch.cuda.is_available() else {})
