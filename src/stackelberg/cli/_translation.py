"""What `stackelberg train` says of translation runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

NAMES = {"tokenized_bleu": "BLEU of tokens", "sacrebleu": "sacreBLEU", "chrf": "chrF"}


def result(run: Any) -> str:
    """A finished run's scores, with what says how they were computed."""
    figures, lines = run.figures, []
    for split in [name for name in ("dev", "test") if f"{name}/sacrebleu" in figures]:
        for name, score in run.scores(split).items():
            lines.append(f"  {split:<5} {NAMES[name]:<15} {score.value:6.2f}  {score.signature}")
    kept = int(figures["averaged"])
    chosen = f"the mean of the last {kept} weights" if kept > 1 else f"step {figures['best_step']:,.0f}"
    memory = f", {figures['peak_gib']:.1f} GiB" if "peak_gib" in figures else ""
    recipe = run.recipe
    return "\n".join(
        [
            f"{recipe.source}–{recipe.target}, {recipe.model}: {recipe.method}, seed {recipe.seed}",
            *lines,
            f"{chosen} of {figures['steps']:,.0f} steps; {figures['tokens_per_second']:,.0f} tokens a second, "
            f"{figures['seconds']:.0f} s in all{memory}",
            f"in {run.folder}",
        ]
    )


def name_of(recipe: Any) -> str:
    """A run's, for its folder."""
    corpus = "synthetic" if recipe.synthetic else Path(recipe.data or recipe.hub or "").name
    return "-".join(part for part in (corpus, recipe.source, recipe.target) if part)
