"""The model card of a translation run: what was trained, on what, how well it does, and the recipe to do it again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from stackelberg.nmt.recipe import TranslationRecipe
from stackelberg.nmt.scores import Score


def card(recipe: TranslationRecipe, scores: Mapping[str, Mapping[str, Score]], figures: Mapping[str, float]) -> str:
    """Markdown with the hub's front matter; folders by their last part, which alone means something elsewhere."""
    local = Path(recipe.model).is_dir()
    base = Path(recipe.model).resolve().name if local else recipe.model
    corpus = recipe.hub or (Path(recipe.data).resolve().name if recipe.data else "a made-up language")
    portable = recipe.replace(model=base, **({"data": corpus} if recipe.data else {}), cache=None)
    kept = int(figures["averaged"])
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: translation",
        *([f"base_model: {json.dumps(base)}"] if recipe.pretrained and not local else []),
        "---",
        "",
        f"# {recipe.source}–{recipe.target}, {base}, on {corpus}",
        "",
        f"Chosen by dev {recipe.choose} among the evaluations of one run of {int(figures['steps']):,} steps: "
        + (f"the mean of the last {kept} weights." if kept > 1 else f"step {int(figures['best_step']):,}."),
        f"Beam {recipe.beam}, length penalty {recipe.length_penalty:g}.",
        "",
        "| split | score | value | signature |",
        "|---|---|---|---|",
        *(
            f"| {split} | {name} | {each.value:.2f} | `{each.signature}` |"
            for split, found in scores.items()
            for name, each in found.items()
        ),
        "",
        "## Recipe",
        "",
        "```yaml",
        portable.to_yaml(located=False).strip(),
        "```",
        "",
    ]
    return "\n".join(lines)
