"""What commands say of translation runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..analysis.translating import Against
    from ..nmt.scores import Score

NAMES = {"tokenized_bleu": "BLEU of tokens", "sacrebleu": "sacreBLEU", "chrf": "chrF"}


def result(run: Any) -> str:
    """A finished run's scores, with what says how they were computed."""
    figures, lines = run.figures, []
    for split in [name for name in ("dev", "test") if f"{name}/sacrebleu" in figures]:
        lines += score_lines(run.scores(split), f"{split:<5} ")
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


def score_lines(scores: Mapping[str, Score], before: str = "") -> list[str]:
    """A line a score, its signature last."""
    return [f"  {before}{NAMES[name]:<15} {score.value:6.2f}  {score.signature}" for name, score in scores.items()]


def against_lines(run: Path, found: Iterable[Against], sentences: int) -> list[str]:
    """How a run compares with others: figures, and what they mean in words."""
    lines = []
    for each in found:
        low, high = signed(each.interval.low), signed(each.interval.high)
        lines += [
            f"  against {each.baseline}, {NAMES[each.metric]}: {each.score:.2f} − {each.baseline_score:.2f} = "
            f"{signed(each.difference)}",
            f"    {100 * each.interval.level:.3g}% interval {low} to {high}; p = {each.p:.3f} "
            f"by sacrebleu's paired bootstrap, {each.samples:,} samples",
            f"    {_meaning(run, each, sentences)}",
        ]
    return lines


def signed(value: float) -> str:
    """A difference of scores that are times 100."""
    return f"{value:+.2f}".replace("-", "−")


def _meaning(run: Path, its: Against, sentences: int) -> str:
    size = f"{abs(its.difference):.2f}"
    if size == "0.00":
        return f"{run} scored the same as {its.baseline}, to a hundredth of a point."
    verdict = (
        f"which is more than the luck of these {sentences:,} sentences; another seed may still say otherwise"
        if its.shown
        else f"which may be the luck of these {sentences:,} sentences"
    )
    return f"{run} scored {size} points {'more' if its.difference > 0 else 'less'} than {its.baseline}, {verdict}."


def name_of(recipe: Any) -> str:
    """A run's, for its folder."""
    corpus = "synthetic" if recipe.synthetic else Path(recipe.data or recipe.hub or "").name
    return "-".join(part for part in (corpus, recipe.source, recipe.target) if part)
