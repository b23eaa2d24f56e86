"""The model card of a translation run: what was trained, on what, and how well it does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stackelberg.nmt.recipe import TranslationRecipe
from stackelberg.nmt.scores import Score
from stackelberg.runs.card import model_card


def card(recipe: TranslationRecipe, scores: Mapping[str, Mapping[str, Score]], figures: Mapping[str, float]) -> str:
    """The card's text; folders by their last part, which alone means something elsewhere."""
    local = Path(recipe.model).is_dir()
    base = Path(recipe.model).resolve().name if local else recipe.model
    corpus = recipe.hub or (Path(recipe.data).resolve().name if recipe.data else "a made-up language")
    portable = recipe.replace(model=base, **({"data": corpus} if recipe.data else {}), cache=None)
    kept = int(figures["averaged"])
    said = [
        f"Chosen by dev {recipe.choose} among the evaluations of one run of {int(figures['steps']):,} steps: "
        + (f"the mean of the last {kept} weights." if kept > 1 else f"step {int(figures['best_step']):,}."),
        f"Beam {recipe.beam}, length penalty {recipe.length_penalty:g}.",
    ]
    rows = [
        (split, name, f"{each.value:.2f}", f"`{each.signature}`")
        for split, found in scores.items()
        for name, each in found.items()
    ]
    return model_card(
        "translation",
        f"{recipe.source}–{recipe.target}, {base}, on {corpus}",
        said,
        ("split", "score", "value", "signature"),
        rows,
        portable.to_yaml(located=False),
        base=base if recipe.pretrained and not local else None,
    )
