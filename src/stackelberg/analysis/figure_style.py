"""One look for all figures: Okabe and Ito's colours, told apart by markers and dashes too.

A method has the same look in every figure, so that SALT is found at once in the next one.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from stackelberg.extras import need

INK, PAPER, GRID, MUTED = "#000000", "#ffffff", "#b0b0b0", "#666666"
BLUE, SKY, GREEN, YELLOW = "#0072B2", "#56B4E9", "#009E73", "#F0E442"
ORANGE, VERMILION, PURPLE, GREY = "#E69F00", "#D55E00", "#CC79A7", "#808080"

PANEL = (3.4, 2.7)  # inches: two stand side by side in a column of text, one on a phone
MOST = 8  # lines of one figure that an eye can tell apart


@dataclass(frozen=True, slots=True)
class Look:
    """Of one line, bar or violin.

    Args:
        colour: of eight that colour-blind eyes tell apart.
        marker: matplotlib's.
        dash: matplotlib's line style.
    """

    colour: str
    marker: str
    dash: Any


SOLID, DASHED, DOTTED, DASHDOT = "-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2))
METHODS = {
    "plain": Look(GREY, "o", DOTTED),
    "adv": Look(PURPLE, "X", DASHDOT),
    "vat": Look(GREEN, "^", DASHED),
    "freeat": Look(YELLOW, "P", DASHDOT),
    "freelb": Look(ORANGE, "v", DASHED),
    "smart": Look(BLUE, "s", DASHED),
    "salt": Look(VERMILION, "D", SOLID),
    "salt-adv": Look(SKY, "d", SOLID),
}
OTHERS = (
    Look(SKY, "<", DASHDOT),
    Look(PURPLE, ">", SOLID),
    Look(GREEN, "h", DOTTED),
    Look(ORANGE, "p", SOLID),
    Look(BLUE, "*", DASHDOT),
    Look(GREY, "X", DASHED),
    Look(VERMILION, "o", DOTTED),
    Look(YELLOW, "s", SOLID),
)


def looks(names: Sequence[str]) -> dict[str, Look]:
    """Of methods by name, each its own; other names take what is left, in order."""
    mine = {name: METHODS[name] for name in names if name in METHODS}
    free = [look for look in (*OTHERS, *METHODS.values()) if look not in mine.values()]
    # colours that no method of the figure has come first
    taken = {look.colour for look in mine.values()}
    free.sort(key=lambda look: look.colour in taken)
    rest = [name for name in names if name not in mine]
    others = {name: free[place % len(free)] for place, name in enumerate(rest)}
    return {name: mine.get(name) or others[name] for name in names}


def legend_below(figure: Any, names: int) -> None:
    """In one row, or in two of the same length, so that it is no wider than a panel."""
    columns = names if names <= 4 else -(-names // 2)
    figure.legend(loc="outside lower center", ncols=min(columns, 4), handlelength=2.6, columnspacing=1.2)


@contextmanager
def styled() -> Iterator[None]:
    """While a figure is drawn and saved: small sizes, few lines, and text as it is, whatever dollar signs are in it."""
    settings = {
        "text.parse_math": False,
        "axes.unicode_minus": True,
        "font.size": 9,
        "axes.titlesize": 9,
        "axes.labelsize": 9,
        "xtick.labelsize": 8,
        "ytick.labelsize": 8,
        "legend.fontsize": 8,
        "legend.frameon": False,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": 0.7,
        "axes.edgecolor": MUTED,
        "axes.labelcolor": INK,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "axes.axisbelow": True,
        "grid.color": GRID,
        "grid.linewidth": 0.4,
        "lines.linewidth": 1.5,
        "lines.markersize": 4,
        "svg.hashsalt": "stackelberg",
        "svg.fonttype": "none",
    }
    with need("matplotlib").rc_context(settings), warnings.catch_warnings():
        # in SVG text is text, which whoever shows it has letters for
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield
