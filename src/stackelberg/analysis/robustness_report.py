"""Robustness of several runs in tables, as the paper's, and as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from stackelberg.analysis.robustness import Adversarial, Attacked, Rate, Robustness
from stackelberg.analysis.statistics import LEVEL, spread

if TYPE_CHECKING:
    from stackelberg.nlu.run import Run

Found = Sequence[tuple[str, "Run", Robustness]]  # what each is a run of, its seed aside
Table = tuple[list[str], list[list[str]]]


def tables(found: Found) -> dict[str, Table]:
    """By their titles; runs that differ in their seed alone are one row, mean ± standard deviation."""
    made = {}
    for split in ("dev", "test"):
        columns = _titles([its.adversarial for _, _, its in found], split)
        if columns:
            rows = [[kind, *(_adversarial(runs, title, split) for title in columns)] for kind, runs in _kinds(found)]
            made[f"ANLI {split}, accuracy (%)"] = (["run", *(name.removeprefix("ANLI ") for name in columns)], rows)
    attacked = list(dict.fromkeys(each.title for _, _, its in found for each in its.attacked))
    if attacked:
        header = ["run", "task", "original", "attacked", "drop", "turned", "all attacked rows"]
        rows = [_attacked(kind, runs, title) for title in attacked for kind, runs in _kinds(found)]
        made["AdvGLUE, accuracy (%)"] = (header, [row for row in rows if row])
    return made


def remarks(found: Found) -> list[str]:
    """What a reader must know of the figures."""
    sizes = {len(runs) for _, runs in _kinds(found)}
    counted: dict[str, int] = {}
    for _, _, its in found:
        counted |= {f"{each.title} {each.split}": each.accuracy.rows for each in its.adversarial}
        counted |= {each.title: each.original.rows for each in its.attacked}
    said = ["Rows: " + ", ".join(f"{count:,} of {title}" for title, count in counted.items()) + "."]
    if sizes - {1}:
        said.append("± is the standard deviation over runs that differ in their seed.")
    if 1 in sizes:
        said.append(f"Brackets are {LEVEL:.0%} intervals over rows: Wilson's of an accuracy, of a drop paired by row.")
    if any(its.attacked for _, _, its in found):
        said.append(
            "Original and attacked are the same rows before and after; turned is the share of those right before that "
            "are wrong after."
        )
    return said


def document(found: Found) -> list[dict[str, Any]]:
    """For JSON, run by run."""
    return [
        {"kind": kind, "folder": str(run.folder), "seed": run.recipe.seed, **asdict(its)} for kind, run, its in found
    ]


def _kinds(found: Found) -> list[tuple[str, list[Robustness]]]:
    pooled: dict[str, list[Robustness]] = {}
    for kind, _, its in found:
        pooled.setdefault(kind, []).append(its)
    return list(pooled.items())


def _titles(found: Sequence[Sequence[Adversarial]], split: str) -> list[str]:
    return list(dict.fromkeys(each.title for its in found for each in its if each.split == split))


def _adversarial(runs: Sequence[Robustness], title: str, split: str) -> str:
    return _rates([e.accuracy for its in runs for e in its.adversarial if (e.title, e.split) == (title, split)])


def _attacked(kind: str, runs: Sequence[Robustness], title: str) -> list[str]:
    its: list[Attacked] = [each for run in runs for each in run.attacked if each.title == title]
    if not its:
        return []
    drop = spread([each.drop for each in its]).text(100)
    if len(its) == 1 and its[0].interval is not None:
        drop += f" [{100 * its[0].interval.low:.1f}, {100 * its[0].interval.high:.1f}]"
    turned = [each.turned for each in its if each.turned is not None]
    return [
        kind,
        title.removeprefix("AdvGLUE "),
        _rates([each.original for each in its]),
        _rates([each.attacked for each in its]),
        drop,
        spread(turned).text(100) if turned else "–",
        f"{_rates([each.every for each in its])} of {its[0].every.rows}",
    ]


def _rates(rates: Sequence[Rate]) -> str:
    if not rates:
        return "–"
    if len(rates) == 1:
        its = rates[0].interval
        return f"{100 * rates[0].value:.1f} [{100 * its.low:.1f}, {100 * its.high:.1f}]"
    return spread([rate.value for rate in rates]).text(100)
