"""What a study needs is looked for before anything long begins, not after days of training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stackelberg.errors import DataError
from stackelberg.nmt.recipe import TranslationRecipe
from stackelberg.studies.cell import Cell
from stackelberg.studies.errors import StudyError

if TYPE_CHECKING:
    from stackelberg.studies.study import Study


def check(study: Study, cells: Sequence[Cell]) -> None:
    """Refuse a study whose data are not there.

    Args:
        study: what is asked for.
        cells: its runs that are not finished.
    """
    first = {cell.task: cell for cell in reversed(cells)}
    for cell in first.values():
        try:
            _look(cell)
        except DataError as error:
            raise StudyError(
                f"{cell.task}: {str(error).removesuffix('.')}; for this task alone it is {cell.task}.data=FOLDER"
            ) from error
    probing = study.measures.get("probing")
    if probing is not None and first:
        from stackelberg.analysis.probing import probing_task

        data = probing.get("data") or next(iter(first.values())).recipe.data
        for name in probing["tasks"]:
            probing_task(name, None if data is None else Path(data))


def _look(cell: Cell) -> None:
    if not isinstance(cell.recipe, TranslationRecipe):
        from stackelberg.nlu.recipe_data import read_data

        read_data(cell.recipe)
    elif cell.recipe.synthetic is None:
        from stackelberg.nmt.recipe_data import corpora

        corpora(cell.recipe, Path())
