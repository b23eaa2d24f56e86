"""The model card of a run: what was trained, on what, how well it does, and the recipe to do it again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from stackelberg.nlu.examples import TaskData
from stackelberg.nlu.recipe import PATHS, Recipe


def card(recipe: Recipe, data: TaskData, figures: Mapping[str, float]) -> str:
    """Markdown with the hub's front matter; folders by their last part, which alone means something elsewhere."""
    task = data.task
    local = Path(recipe.model).is_dir()
    base = Path(recipe.model).resolve().name if local else recipe.model
    lacking = data.subsets()
    shown = {name: figures[name] for name in figures if name not in ("steps", "best_step", "seconds")}
    portable = recipe.replace(model=base, **{n: Path(v).name for n in PATHS if (v := getattr(recipe, n)) is not None})
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-classification",
        *([] if local else [f"base_model: {json.dumps(base)}"]),
        "---",
        "",
        f"# {base} on {task.title}",
        "",
        f"Judged by {' and '.join(task.evaluation)} "
        f"({', '.join(f'{len(data[split]):,} rows' for split in task.evaluation)}), which also chose this model among "
        f"the evaluations of one run, at step {int(figures['best_step']):,} of {int(figures['steps']):,}.",
        *(
            f"The {split} split is {here:,} of {published:,} published rows: compare no figure with published ones."
            for split, (here, published) in lacking.items()
            if split in ("train", *task.evaluation)
        ),
        "",
        "| figure | value |",
        "|---|---|",
        *(f"| {name} | {value:.4f} |" for name, value in shown.items()),
        "",
        "## Recipe",
        "",
        "```yaml",
        portable.to_yaml(located=False).strip(),
        "```",
        "",
    ]
    return "\n".join(lines)
