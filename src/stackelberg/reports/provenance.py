"""How it was made, so that it can be made again: settings, versions, hardware, and every run by name."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

from stackelberg.reports.document import NOTHING, Block, Cell, Column, Facts, Rows, Section, Table, compact
from stackelberg.reports.evidence import Evidence
from stackelberg.runs.folder import VERSIONS
from stackelberg.studies.arms import Arm

HARDWARE = ("device", "cuda", "cores", "threads", "system")
ELSEWHERE = ("seed", "method", "settings", "task", "kind")  # fields that other tables have, or a task's name says
STATES = {"finished": "finished", "failed": "failed", "running": "running", "waiting": "not finished"}


def settings(arms: Sequence[Arm]) -> Section:
    """Recipes, versions and hardware."""
    everywhere = _common(arms)
    bodies = []
    for task in dict.fromkeys(arm.task for arm in arms):
        its = [arm for arm in arms if arm.task == task]
        of_task = _common(its)
        said = _said({name: value for name, value in of_task.items() if name not in everywhere})
        rows = []
        for arm in its:
            own = {name: value for name, value in _common([arm]).items() if name not in of_task}
            rows.append([Cell(arm.name), Cell(_said({**own, **arm.runs[0].run.recipe.settings}) or NOTHING)])
        bodies.append(Rows(rows, f"{its[0].title}{': ' * bool(said)}{said}"))
    columns = [Column("method", number=False), Column("its settings", number=False)]
    notes = ["A setting that is not named is the method's own default. Folders are named by their last part."]
    blocks: list[Block] = [
        Facts("The same in all runs", [(name, _text(value)) for name, value in everywhere.items()]),
        Table("Settings of each task and method", columns, bodies, notes),
        *_versions(arms),
    ]
    return Section("settings", "Settings and provenance", blocks)


def runs(evidence: Evidence, arms: Sequence[Arm], out: Path) -> Section:
    """Every run, with a link to its folder."""
    played = {each.result.id: each for arm in arms for each in arm.runs}
    rows = []
    for result in evidence.results:
        its = played.get(result.id)
        state = STATES["finished"] if its else STATES[result.state] if result.state != "finished" else "not usable"
        there = result.folder.is_dir()
        rows.append(
            [
                Cell(result.method, href=_link(result.folder, out) if there else None),
                Cell(result.task),
                Cell(result.setting or NOTHING),
                Cell(str(result.seed)),
                Cell(f"{100 * its.score:.2f}" if its else NOTHING),
                Cell(f"{its.figures['best_step']:,.0f}" if its and "best_step" in its.figures else NOTHING),
                Cell(f"{its.figures['seconds']:,.0f}" if its and "seconds" in its.figures else NOTHING),
                Cell(f"{state}: {result.error}" if result.error and not its else state),
            ]
        )
    words = {"method", "task", "setting", "state"}
    names = ("method", "task", "setting", "seed", "score", "best step", "seconds", "state")
    columns = [Column(name, number=name not in words) for name in names]
    notes = ["A method's name leads to its run's folder, as long as this file stays where it was written."]
    return Section("runs", "Runs", [compact(Table("Every run", columns, [Rows(rows)], notes))])


def _common(arms: Sequence[Arm]) -> dict[str, Any]:
    """Fields that all recipes have alike, but for those that have no value."""
    recipes = [each.run.recipe for arm in arms for each in arm.runs]
    names = [f.name for f in fields(recipes[0]) if f.name not in (*ELSEWHERE, *recipes[0].ABOUT)]
    values = {name: [getattr(recipe, name, None) for recipe in recipes] for name in names}
    return {
        name: its[0] for name, its in values.items() if its[0] not in (None, "") and all(one == its[0] for one in its)
    }


def _said(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {_text(value)}" for name, value in settings.items())


def _text(value: Any) -> str:
    if isinstance(value, str) and "/" in value and Path(value).is_absolute():
        return Path(value).name  # a folder of this machine says nothing elsewhere
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _versions(arms: Sequence[Arm]) -> list[Block]:
    found: dict[str, dict[str, None]] = {}
    for arm in arms:
        for each in arm.runs:
            path = each.run.folder / VERSIONS
            said = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
            for name, value in said.items():
                if value not in (None, "not installed"):
                    found.setdefault(name, {})[str(value)] = None
    said = {name: " and ".join(values) for name, values in found.items()}
    hardware = [(name, said[name]) for name in HARDWARE if name in said]
    versions = [(name, value) for name, value in said.items() if name not in HARDWARE]
    return [Facts(title, facts) for title, facts in (("Versions", versions), ("Hardware", hardware)) if facts]


def _link(folder: Path, out: Path) -> str:
    """Relative, and with nothing in it that a browser would take for a scheme."""
    return "./" + quote(Path(os.path.relpath(folder.absolute(), out.absolute().parent)).as_posix()) + "/"
