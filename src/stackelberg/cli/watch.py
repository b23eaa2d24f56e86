"""`stackelberg watch`: a study while it runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .app import app

if TYPE_CHECKING:
    from ..studies.looking import Look

EVERY = 2.0  # seconds
BAR = 32  # letters


@app.command()
def watch(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Of a study that runs, or ran.")],
    once: Annotated[bool, typer.Option("--once", help="Print how it stands, and leave.")] = False,
) -> None:
    """Look at a running study: how far it is, how long it may take, and the best of each task so far.

    It reads the study's folder, from any terminal, as often as one likes. Ctrl-C leaves the study alone.
    """
    from ..studies.looking import Watcher
    from ..studies.store import Store
    from ._tables import console

    watcher, to = Watcher(Store(folder)), console()
    if once or not to.is_terminal:
        to.print(drawn(watcher.look()))
        return
    from rich.live import Live

    with Live(drawn(watcher.look()), console=to, auto_refresh=False, screen=False) as live:
        try:
            while True:
                look = watcher.look()
                live.update(drawn(look), refresh=True)
                if not look.counts["running"] and not look.counts["waiting"]:
                    break
                time.sleep(EVERY)
        except KeyboardInterrupt:
            return


def drawn(look: Look) -> Any:
    """The view."""
    from rich.console import Group
    from rich.text import Text

    from ..runs.progress import clock
    from ..studies.figures import digits, scale
    from ._tables import table

    over = look.counts["finished"] + look.counts["failed"]
    full = BAR * over // max(look.total, 1)
    left = "" if not look.seconds_left else f"  about {clock(look.seconds_left)} left"
    counts = ", ".join(f"{count} {state}" for state, count in look.counts.items() if count)
    parts: list[Any] = [
        Text(look.title, style="bold"),
        Text(f"{'█' * full}{'░' * (BAR - full)} {over}/{look.total}{left}"),
        Text(counts, style="dim"),
    ]
    if look.going:
        rows = [
            [
                each.result.method,
                each.result.task,
                each.result.setting,
                str(each.result.seed),
                "" if each.step is None else f"{each.step:,}",
                "" if each.loss is None else f"{each.loss:.3f}",
                "" if each.dev is None else f"{each.dev * scale(each.result.kind, 'score'):.1f}",
                f"{each.result.who or ''}{' (silent)' * each.silent}",
            ]
            for each in look.going
        ]
        header = ["running", "task", "setting", "seed", "step", "loss", "dev", "by"]
        parts.append(table((header, rows)))
    if look.best:
        rows = [
            [
                each.title,
                each.method,
                each.setting,
                each.score.text(scale(each.kind, each.metric), digits(each.metric)),
                str(each.score.count),
            ]
            for each in look.best
        ]
        parts.append(table((["best so far", "method", "setting", "mean", "seeds"], rows)))
    parts += [
        Text(f"failed: {each.method} on {each.task}, seed {each.seed}: {each.error}", style="red")
        for each in look.failed
    ]
    return Group(*parts)
