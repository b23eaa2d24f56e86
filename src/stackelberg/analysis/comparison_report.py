"""A comparison in words, in tables and as data. Scores are printed times 100, their differences in points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from stackelberg.analysis.comparison import Comparison, Pair
from stackelberg.analysis.statistics import Interval

Table = tuple[list[str], list[list[str]]]  # header, rows
NOTHING = "–"
ALL = 1.0  # 100 points, as far apart as accuracies can be


def score_table(comparison: Comparison) -> Table:
    """Every method's figures, the best in bold only where it is shown to be the best."""
    header = ["method", f"{score_name(comparison)} (%)", "ECE (%)", "cost of a step", "n"]
    rows = []
    for each in comparison.methods:
        score = each.score.text(100)
        rows.append(
            [
                each.method,
                f"**{score}**" if each.method == comparison.best else score,
                NOTHING if each.ece is None else each.ece.text(100),
                NOTHING if each.cost is None else f"{each.cost:.2f} × plain",
                str(len(each.seeds)),
            ]
        )
    return header, rows


def difference_table(comparison: Comparison) -> Table:
    """Every method against the baseline."""
    header = ["method", "points", "over rows", "over seeds", "over both", "p (Holm)", "shown", "ECE, over seeds"]
    rows = []
    for pair in comparison.pairs:
        its = pair.difference
        rows.append(
            [
                pair.method,
                NOTHING if its is None else signed(its.value),
                range_text(None if its is None else its.over_rows),
                range_text(None if its is None else its.over_seeds),
                range_text(None if its is None else its.over_both),
                NOTHING if pair.p is None else p_text(pair.p),
                "yes" if pair.shown else "no",
                NOTHING if pair.ece is None else f"{signed(pair.ece)} ({range_text(pair.ece_interval)})",
            ]
        )
    return header, rows


def score_name(comparison: Comparison) -> str:
    """What the score is the mean of."""
    metrics = " and ".join(comparison.metrics)
    return metrics if len(comparison.rows) == 1 else f"{metrics}, mean of {' and '.join(comparison.rows)}"


def sentences(comparison: Comparison) -> list[str]:
    """What is shown and what is not, in plain words."""
    said = [_about(pair, comparison.level) for pair in comparison.pairs]
    said += _limits(comparison)
    if len(comparison.methods) > 1:
        said.append(
            f"{comparison.best} is shown to be better than every other method."
            if comparison.best
            else "No method is shown to be better than every other one, so none is marked as the best."
        )
    return [*said, *comparison.remarks]


def method_note(comparison: Comparison) -> str:
    """How the intervals were made: what was drawn anew."""
    rows = " + ".join(f"{count:,} of {name}" for name, count in comparison.rows.items())
    return (
        f"± is the standard deviation over seeds. Differences are paired by seed and by row. Rows: {rows}, drawn anew "
        f"{comparison.resamples:,} times, the same rows for every method and seed, models kept (percentile bootstrap). "
        "Seeds: drawn anew, rows kept (Student's t of the paired differences). Rows and seeds: both errors together, "
        "t with Welch and Satterthwaite's degrees of freedom; p and `shown` go by this one, with Holm's correction "
        f"over {comparison.family} comparison{'s' * (comparison.family != 1)}; intervals are not corrected."
    )


def markdown(comparison: Comparison) -> str:
    """The whole, to put into a document."""
    parts = [
        f"# {comparison.title}",
        _markdown_table(score_table(comparison)),
        *([caption(comparison), _markdown_table(difference_table(comparison))] if comparison.pairs else []),
        "\n".join(f"- {said}" for said in sentences(comparison)),
        method_note(comparison),
    ]
    return "\n\n".join(parts) + "\n"


def as_data(comparison: Comparison) -> dict[str, Any]:
    """The whole as what JSON can hold; scores as fractions, rows' predictions left in the runs' folders."""
    found = asdict(comparison)
    for outcome in found["outcomes"]:
        del outcome["predictions"]
    found["runs"] = found.pop("outcomes")
    found["sentences"] = sentences(comparison)
    found["intervals"] = method_note(comparison)
    return found


def caption(comparison: Comparison) -> str:
    """What the table of differences has in it."""
    return f"Less {comparison.baseline}, in points, with {comparison.level:.0%} intervals"


def _about(pair: Pair, level: float) -> str:
    its = pair.difference
    if its is None:
        return f"{pair.method} and {pair.baseline} have no seed in common, so they are not compared."
    if its.over_both is None:
        if its.seeds == 1:
            return (
                f"{pair.method} scored {_points(its.value)} {pair.baseline} with the one seed both have; whether "
                "another seed would say the same cannot be known from it."
            )
        if not its.value:
            return f"{pair.method} and {pair.baseline} have the same score in every seed and on every draw of the rows."
        return (
            f"{pair.method} scored {_points(its.value)} {pair.baseline} in every seed and on every draw of the rows "
            "alike, so there is no spread to judge the difference by."
        )
    corrected = f" (p {'= ' * (pair.p is not None and pair.p >= 0.001)}{p_text(pair.p)} after Holm's correction)"
    if pair.shown:
        verdict = f"which is shown{corrected}"
    else:  # an interval is not corrected, and may leave out 0 where nothing is shown
        without = its.over_both.low > 0 or its.over_both.high < 0
        verdict = f"which is not shown to be more than luck{corrected * without}"
    return (
        f"{pair.method} scored {_points(its.value)} {pair.baseline} ({level:.0%} interval over rows and seeds "
        f"{range_text(its.over_both)}), {verdict}."
    )


def _limits(comparison: Comparison) -> list[str]:
    least = [pair.least for pair in comparison.pairs if pair.least is not None]
    found = [pair.found for pair in comparison.pairs if pair.found is not None]
    seeds = min(len(each.seeds) for each in comparison.methods)
    rows = sum(comparison.rows.values())
    if seeds == 1:
        return ["One seed cannot show any difference between methods; play at least three (--seeds 3)."]
    if not least:
        return []
    if min(least) > ALL:
        return [f"{seeds} seeds on {rows:,} rows cannot show any difference here, however large."]
    return [
        f"{seeds} seeds on {rows:,} rows cannot show a difference smaller than {between(least)} points here; a true "
        f"difference has to be {between(found)} points to be shown in four cases of five."
    ]


def between(values: Sequence[float]) -> str:
    """Fractions, as points from the least to the greatest."""
    low, high = (f"{100 * value:.1f}" if value <= ALL else "over 100" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high} (the pairs differ)"


def _points(value: float) -> str:
    size = f"{abs(100 * value):.1f}"
    if size == "0.0":
        return "the same, to a tenth of a point, as"
    return f"{size} points {'more' if value > 0 else 'less'} than"


def signed(value: float) -> str:
    """A difference of fractions, in points."""
    return f"{100 * value:+.1f}".replace("-", "−")


def range_text(interval: Interval | None) -> str:
    """An interval of fractions, in points."""
    return NOTHING if interval is None else f"{signed(interval.low)} to {signed(interval.high)}"


def p_text(value: float | None) -> str:
    """A p value, no more exact than it can be."""
    return NOTHING if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"


def _markdown_table(table: Table) -> str:
    header, rows = table
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
