"""The model card of a run: what was trained, on what, and how well it does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stackelberg.nlu.examples import TaskData
from stackelberg.nlu.recipe import PATHS, Recipe
from stackelberg.runs.card import model_card

UNSHOWN = ("steps", "best_step", "seconds")


def card(recipe: Recipe, data: TaskData, figures: Mapping[str, float]) -> str:
    """The card's text; folders by their last part, which alone means something elsewhere."""
    task = data.task
    local = Path(recipe.model).is_dir()
    base = Path(recipe.model).resolve().name if local else recipe.model
    portable = recipe.replace(model=base, **{n: Path(v).name for n in PATHS if (v := getattr(recipe, n)) is not None})
    said = [
        f"Judged by {' and '.join(task.evaluation)} "
        f"({', '.join(f'{len(data[split]):,} rows' for split in task.evaluation)}), which also chose this model among "
        f"the evaluations of one run, at step {int(figures['best_step']):,} of {int(figures['steps']):,}.",
        *(
            f"The {split} split is {here:,} of {published:,} published rows: compare no figure with published ones."
            for split, (here, published) in data.subsets().items()
            if split in ("train", *task.evaluation)
        ),
    ]
    return model_card(
        "text-classification",
        f"{base} on {task.title}",
        said,
        ("figure", "value"),
        ((name, f"{value:.4f}") for name, value in figures.items() if name not in UNSHOWN),
        portable.to_yaml(located=False),
        base=None if local else base,
    )
