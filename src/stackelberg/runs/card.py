"""The model card of a run: what was trained, how well it does, and the recipe to do it again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence


def model_card(
    task: str,
    title: str,
    said: Iterable[str],
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    recipe: str,
    *,
    base: str | None,
) -> str:
    """Markdown with the hub's front matter.

    Args:
        task: what the hub calls it.
        title: of the card.
        said: sentences, a line each.
        header: of the table of figures.
        rows: of it.
        recipe: as YAML.
        base: the model that was trained, by its name on the hub; None where it has none.
    """
    return "\n".join(
        [
            "---",
            "library_name: transformers",
            f"pipeline_tag: {task}",
            *([] if base is None else [f"base_model: {json.dumps(base)}"]),
            "---",
            "",
            f"# {title}",
            "",
            *said,
            "",
            f"| {' | '.join(header)} |",
            "|---" * len(header) + "|",
            *(f"| {' | '.join(row)} |" for row in rows),
            "",
            "## Recipe",
            "",
            "```yaml",
            recipe.strip(),
            "```",
            "",
        ]
    )
