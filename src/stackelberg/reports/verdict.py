"""What is shown and what is not, in words, before any table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from stackelberg.analysis.comparison import Comparison, Pair
from stackelberg.analysis.comparison_report import ALL, between, p_text, range_text
from stackelberg.reports.document import Section, Words
from stackelberg.reports.evidence import Evidence
from stackelberg.reports.quoted import QuotedTable, table_of
from stackelberg.studies.arms import Arm, unvaried
from stackelberg.studies.comparing import Group, Measured
from stackelberg.studies.figures import interval_text, size_text

NAMED = 8  # runs that are named here; all are in the last table


def verdict(evidence: Evidence, arms: Sequence[Arm], groups: Sequence[Group], measured: Sequence[Measured]) -> Section:
    """The first section."""
    compared = [each.comparison for each in groups if each.comparison is not None]
    shown = [(each, pair) for each in compared for pair in each.pairs if pair.shown]
    points = list(evidence.remarks)
    points += [_point(each, pair) for each, pair in shown]
    points += [_measured_point(each) for each in measured if each.shown]
    points += _best(compared)
    points += _limits(compared)
    points += _remarks(groups)
    points += _beside_the_paper(arms)
    return Section(
        "verdict",
        "What is shown",
        [
            Words([_lead(compared, measured)], lead=True),
            Words(points, listed=True),
            Words(_coverage(evidence, arms), heading="What it is made from", listed=True),
        ],
    )


def _lead(compared: Sequence[Comparison], measured: Sequence[Measured]) -> str:
    given: list[Pair | Measured] = [pair for each in compared for pair in each.pairs]
    given += [each for each in measured if each.baseline is not None]
    pairs = len(given)
    if not pairs:
        return "Nothing is compared here: there are no two methods with scores on the same rows."
    shown = sum(each.shown for each in given)
    baselines = " or ".join(dict.fromkeys(str(each.baseline) for each in given))
    over = f"{pairs} comparison{'s' * (pairs > 1)} with {baselines}"
    if all(each.p is None for each in given):
        return f"None of {over} can be judged: a difference between methods needs several seeds that both have."
    if not shown:
        return f"No difference is shown in {over}: luck of seeds and rows could explain every one."
    return f"{shown} of {over} {'shows' if shown == 1 else 'show'} a difference."


def _point(comparison: Comparison, pair: Pair) -> str:
    its = pair.difference
    assert its is not None and pair.p is not None  # or it would not be shown
    return (
        f"{comparison.title}: {pair.method} scores {abs(100 * its.value):.1f} points "
        f"{'more' if its.value > 0 else 'less'} than {pair.baseline}, {comparison.level:.0%} interval over rows and "
        f"seeds {range_text(its.over_both)} (p {p_text(pair.p)} after Holm's correction over all comparisons)."
    )


def _measured_point(measured: Measured) -> str:
    assert measured.difference is not None  # or it would not be shown
    its = (measured.arm.kind, measured.name)
    return (
        f"{measured.arm.title}, {measured.spoken}: {measured.arm.name} has {size_text(measured.difference, *its)} "
        f"{'more' if measured.difference > 0 else 'less'} than {measured.baseline}, 95% interval over seeds "
        f"{interval_text(measured.interval, *its)} (p {p_text(measured.p)} after Holm's correction over all "
        "comparisons)."
    )


def _best(compared: Sequence[Comparison]) -> list[str]:
    several = [each for each in compared if len(each.methods) > 2]
    found = [f"{each.best} on {each.title}" for each in several if each.best]
    if found:
        return [f"Shown to be better than every other method of its task: {', '.join(found)}."]
    return ["No method is shown to be better than every other one on any task."] * bool(several)


def _limits(compared: Sequence[Comparison]) -> list[str]:
    found = [pair.found for each in compared for pair in each.pairs if pair.found is not None]
    if not found:
        return []
    if min(found) > ALL:
        return [
            "What is not shown is not refuted: with so few seeds no difference, however large, would be found here in "
            "four cases of five."
        ]
    return [
        f"What is not shown is not refuted: a true difference has to be {between(found)} points to be found here in "
        "four cases of five."
    ]


def _remarks(groups: Sequence[Group]) -> list[str]:
    """Of each task once, however many settings there are."""
    by_task: dict[str, list[str]] = {}
    for each in groups:
        by_task.setdefault(each.arms[0].title, []).extend(each.remarks)
    return [f"{title}: {' '.join(dict.fromkeys(said))}" for title, said in by_task.items() if said]


def _beside_the_paper(arms: Sequence[Arm]) -> list[str]:
    quoted = quoted_tables(arms)
    if not quoted:
        return []
    models = {Path(each.run.recipe.model).name for arm in arms if arm.task in quoted for each in arm.runs}
    theirs = " and ".join(dict.fromkeys(table.model for table in quoted.values()))
    same = all(any(word in model.lower() for word in theirs.split(" and ")) for model in models)
    ours = ", ".join(f"“{model}”" for model in sorted(models))
    return [
        f"Figures of the paper stand beside those of this study, marked as quoted. They are of {theirs}; this study "
        + ("trained that, with settings of its own." if same else f"trained {ours}: for orientation, no replication.")
    ]


def quoted_tables(arms: Sequence[Arm]) -> dict[str, QuotedTable]:
    """For each task the paper's table that has it; none where settings are varied, which the table says nothing of."""
    comparable = [arm for arm in unvaried(arms) if arm.of_the_task_itself]
    splits = {arm.task: "test" if arm.runs[0].result.kind == "nmt" else "dev" for arm in comparable}
    return {task: table for task, split in splits.items() if (table := table_of(task, split)) is not None}


def _coverage(evidence: Evidence, arms: Sequence[Arm]) -> list[str]:
    states = Counter("finished" if each.id in evidence.runs else each.state for each in evidence.results)
    total, finished = len(evidence.results), states["finished"]
    said = [
        f"{finished} of {total} runs {'is' if finished == 1 else 'are'} finished"
        if finished < total
        else ("The one run is finished" if total == 1 else f"All {total} runs are finished")
    ]
    said[0] += f": {_seeds(arms)}."
    for state, words in (("failed", "failed"), ("running", "still running"), ("waiting", "not finished")):
        its = [each for each in evidence.results if each.state == state]
        if its:
            names = [
                f"{each.method} on {each.task}{', ' * bool(each.setting)}{each.setting}, seed {each.seed}"
                for each in its
            ]
            more = [f"and {len(names) - NAMED} more"] if len(names) > NAMED else []
            said.append(f"{words.capitalize()}, {len(its)}: {'; '.join([*names[:NAMED], *more])}.")
    return said


def _seeds(arms: Sequence[Arm]) -> str:
    counts = sorted({len(arm.runs) for arm in arms})
    methods = len({arm.method for arm in arms})
    tasks = len({arm.task for arm in arms})
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return (
        f"{methods} method{'s' * (methods > 1)} on {tasks} task{'s' * (tasks > 1)}, "
        f"{seeds} seed{'s' * (counts[-1] > 1)} each"
    )
