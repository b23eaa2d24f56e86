"""A study's summary in tables and in plain words. Scores are printed times 100, their differences in points."""

from __future__ import annotations

from stackelberg.analysis.comparison_report import p_text
from stackelberg.analysis.statistics import Spread
from stackelberg.studies.figures import (
    LOWER_IS_BETTER,
    NOTHING,
    figure_text,
    interval_text,
    signed_text,
    size_text,
    titles,
)
from stackelberg.studies.summary import Against, Column, Line, Summary

Table = tuple[list[str], list[list[str]]]  # header, rows
MOST_TOLD = 12  # comparisons in sentences of their own


def score_table(summary: Summary) -> Table:
    """Every method in every setting; what is shown to differ from the baseline, for the better, in bold."""
    several = any(line.setting for line in summary.lines)
    columns, averaged = summary.columns, any(line.average is not None for line in summary.lines)
    header = [
        "method",
        *(["setting"] if several else []),
        *(_title(column, columns) for column in columns),
        *(["mean"] if averaged else []),
        "n",
    ]
    rows = []
    for line in _ordered(summary):
        cells = [_cell(summary, line, column, its) for column, its in zip(columns, line.spreads, strict=True)]
        mean = [_text(line.average, columns[0])] if averaged else []
        counts = sorted({its.count if its is not None else 0 for its in line.spreads}) or [0]
        seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]}–{counts[-1]}"
        rows.append([line.method, *([line.setting] if several else []), *cells, *mean, seeds])
    return header, rows


def difference_table(summary: Summary) -> Table:
    """Every comparison with the baseline."""
    several = any(pair.setting for pair in summary.pairs)
    header = ["method", *(["setting"] if several else []), "on", "difference", f"{summary.level:.0%} interval",
              "over", "seeds", "p (Holm)", "shown"]  # fmt: skip
    rows = [
        [
            pair.method,
            *([pair.setting] if several else []),
            _title(pair.column, _compared(summary)),
            signed_text(pair.value, pair.column.kind, pair.column.metric),
            interval_text(pair.interval, pair.column.kind, pair.column.metric),
            pair.over,
            str(pair.seeds),
            p_text(pair.p),
            "yes" if pair.shown else "no",
        ]
        for pair in summary.pairs
    ]
    return header, rows


def sentences(summary: Summary) -> list[str]:
    """What is shown and what is not."""
    said = []
    shown = [pair for pair in summary.pairs if pair.shown]
    judged = [pair for pair in summary.pairs if pair.p is not None]
    seeds = [pair.seeds for pair in summary.pairs]
    if summary.pairs and not judged:
        said.append(f"None of {_count(len(summary.pairs), 'comparison')} with {summary.baseline} can be judged.")
    elif summary.pairs:
        said.append(
            f"Of {_count(len(summary.pairs), 'comparison')} with {summary.baseline}, {len(shown) or 'none'} "
            f"{'is' if len(shown) == 1 else 'are'} shown to be more than luck (Holm's correction over the "
            f"{len(judged)} that can be judged, at {1 - summary.level:.0%})."
        )
    said += [_about(pair, summary) for pair in shown[:MOST_TOLD]]
    if len(shown) > MOST_TOLD:
        said.append(f"{len(shown) - MOST_TOLD} more are in the table.")
    if seeds and max(seeds) == 1:
        said.append("One seed cannot show any difference between methods; play at least three (seeds=3).")
    lacking = [each for each in summary.results if each.state not in ("finished", "failed")]
    if lacking:
        runs = f"{_count(len(lacking), 'run')} of {len(summary.results)}"
        said.append(f"{runs} not finished: the table is of the others.")
    return [*said, *summary.remarks]


def method_note(summary: Summary) -> str:
    """How the figures were made."""
    return (
        "± is the standard deviation over seeds; n, how many there are. Differences are paired by seed. Over rows and "
        "seeds: both drawn anew, t with Welch and Satterthwaite's degrees of freedom; over seeds: Student's t of the "
        "paired differences. Bold: better than the baseline, and shown to be."
    )


def _ordered(summary: Summary) -> list[Line]:
    """The study's order; the best first where it is a search."""
    if not summary.columns or not any(show.what == "grid" for show in summary.study.shows):
        return list(summary.lines)
    sign = -1 if summary.columns[0].metric in LOWER_IS_BETTER else 1

    def value(line: Line) -> float:
        found = line.average or line.spreads[0]
        return float("-inf") if found is None else sign * found.mean

    return sorted(summary.lines, key=value, reverse=True)


def _cell(summary: Summary, line: Line, column: Column, its: Spread | None) -> str:
    text = _text(its, column)
    better = any(
        pair.shown
        and (pair.column, pair.setting, pair.method) == (column, line.setting, line.method)
        and (pair.value < 0) == (column.metric in LOWER_IS_BETTER)
        for pair in summary.pairs
    )
    return f"**{text}**" if better else text


def _text(its: Spread | None, column: Column) -> str:
    return NOTHING if its is None else figure_text(its, column.kind, column.metric)


def _title(column: Column, among: tuple[Column, ...]) -> str:
    return titles([(each.task, each.metric) for each in among])[column.task, column.metric]


def _compared(summary: Summary) -> tuple[Column, ...]:
    """What there are comparisons of, which scores are whatever the table has."""
    return tuple(dict.fromkeys(pair.column for pair in summary.pairs))


def _about(pair: Against, summary: Summary) -> str:
    on = _title(pair.column, _compared(summary))
    way = f" ({pair.setting})" if pair.setting else ""
    its = (pair.column.kind, pair.column.metric)
    return (
        f"{pair.method}{way} on {on}: {size_text(pair.value, *its)} {'more' if pair.value > 0 else 'less'} than "
        f"{pair.baseline} ({summary.level:.0%} interval over {pair.over} {interval_text(pair.interval, *its)}; p "
        f"{p_text(pair.p)})."
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
