"""What a trained model says of the game that it was trained with: a JSON file, and a section of its card."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from ..game.game import Game
from ..storage import write_whole

TITLE = "## Adversarial regularization"
TAGS = ("adversarial-regularization", "stackelberg")


def described(game: Game) -> str:
    """Method, settings and version, as JSON."""
    said = {"method": game.name, "settings": game.settings, "stackelberg_version": version("stackelberg")}
    return json.dumps(said, indent=2, default=str) + "\n"


def section(game: Game, figures: Mapping[str, float]) -> str:
    """Markdown."""
    lines = [
        TITLE,
        "",
        f"Trained with method `{game.name}` of stackelberg {version('stackelberg')}.",
        "",
        "| setting | value |",
        "|---|---|",
        *(f"| `{name}` | `{value}` |" for name, value in game.settings.items() if value is not None),
    ]
    if figures:
        lines += ["", "| figure, at the end of training | value |", "|---|---|"]
        lines += [f"| {name} | {value:.4g} |" for name, value in figures.items()]
    return "\n".join(lines) + "\n"


def mark(card: Path, game: Game, figures: Mapping[str, float]) -> None:
    """Add the section and the tags to a model card; a section of an earlier run is replaced."""
    text = card.read_text(encoding="utf-8") if card.exists() else ""
    text = re.sub(rf"\n*{re.escape(TITLE)}\n.*?(?=\n## |\Z)", "\n", text, flags=re.DOTALL)
    write_whole(card, _tagged(text, (*TAGS, game.name)).rstrip() + "\n\n" + section(game, figures))


def _tagged(text: str, tags: tuple[str, ...]) -> str:
    """With these tags in the card's front matter."""
    matter = re.match(r"---\n(.*?\n)---\n", text, flags=re.DOTALL)
    head, body = (matter[1], text[matter.end() :]) if matter else ("", text)
    missing = [tag for tag in tags if not re.search(rf"^- {re.escape(tag)}$", head, flags=re.MULTILINE)]
    new = "".join(f"- {tag}\n" for tag in missing)
    listed = re.search(r"^tags:\n", head, flags=re.MULTILINE)
    if listed:
        head = head[: listed.end()] + new + head[listed.end() :]
    elif new:
        head += "tags:\n" + new
    return f"---\n{head}---\n{body}"
