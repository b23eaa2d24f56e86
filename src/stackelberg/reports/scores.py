"""The main table: methods × tasks, this study's figures and the paper's side by side; and each metric by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stackelberg.analysis.comparison_report import p_text
from stackelberg.analysis.statistics import Spread, spread
from stackelberg.reports.document import NOTHING, Block, Cell, Column, Rows, Section, Table, compact, figure
from stackelberg.reports.evidence import Evidence
from stackelberg.reports.quoted import AVERAGE, ECE, Quoted, QuotedTable, source, tables
from stackelberg.reports.verdict import quoted_tables
from stackelberg.studies.arms import Arm
from stackelberg.studies.comparing import Group, Measured
from stackelberg.studies.figures import LOWER_IS_BETTER, figure_text, interval_text, signed_text

MEAN = "mean of tasks"
HERE, PAPER = "here", "paper"
COMPUTED = "†"
SPOKEN = {"tokenized_bleu": "BLEU of tokens", "sacrebleu": "sacreBLEU", "chrf": "chrF"}
SCORES = ("accuracy", "f1", "macro_f1", "matthews", "pearson", "spearman")


def scores(evidence: Evidence, arms: Sequence[Arm], groups: Sequence[Group], measured: Sequence[Measured]) -> Section:
    """The second section."""
    blocks: list[Block] = [_main(_in_order(evidence, arms), groups)]
    blocks += [table for table in (_by_metric(arms), _measured(measured)) if table is not None]
    blocks += _verbatim(evidence, arms, measured)
    return Section("scores", "Scores", blocks)


def _in_order(evidence: Evidence, arms: Sequence[Arm]) -> list[Arm]:
    """The study's, but of a grid the best first: there are many settings, and no other order means anything."""
    if not any(show.what == "grid" for show in evidence.shows):
        return list(arms)
    first = {arm.name: spread([each.score for each in arm.runs]).mean for arm in reversed(arms)}
    return sorted(arms, key=lambda arm: -first[arm.name])


def _main(arms: Sequence[Arm], groups: Sequence[Group]) -> Table:
    by_name = _by_name(arms)
    tasks = list(dict.fromkeys(arm.task for arm in arms))
    titles = {arm.task: arm.title for arm in arms}
    quoted = quoted_tables(arms)
    columns, bodies = [Column("method", number=False)], [[Cell(name)] for name in by_name]
    computed = False
    for task in tasks:
        means = {name: spread([each.score for each in its[task].runs]) for name, its in by_name.items() if task in its}
        best = {arm.name for arm in arms if arm.task == task and _is_best(arm, groups)}
        columns.append(Column(HERE, titles[task]))
        for name, row in zip(by_name, bodies, strict=True):
            row.append(_cell(means.get(name), list(means.values()), strong=name in best))
        if task in quoted:
            columns.append(Column(PAPER, titles[task], quoted=True))
            for (_, its), row in zip(by_name.items(), bodies, strict=True):
                found = quoted[task].figure(its[task].method, task) if task in its else None
                row.append(_quoted(found))
                computed |= found is not None and "/" in found.text
    if len(tasks) > 1:
        averages = {name: average for name, its in by_name.items() if (average := _average(its, tasks)) is not None}
        columns.append(Column(HERE, MEAN))
        for name, row in zip(by_name, bodies, strict=True):
            row.append(_cell(averages.get(name), list(averages.values())))
        if len(quoted) == len(tasks) and len({table.name for table in quoted.values()}) == 1:
            table = next(iter(quoted.values()))
            columns.append(Column(PAPER, MEAN, quoted=True))
            for (_, its), row in zip(by_name.items(), bodies, strict=True):
                method = next(iter(its.values())).method
                row.append(_quoted_average(table, method, tasks))
                computed |= len(tasks) < len(table.measures)
    columns.append(Column("seeds"))
    for its, row in zip(by_name.values(), bodies, strict=True):
        counts = sorted({len(arm.runs) for arm in its.values()})
        row.append(Cell(f"{counts[0]}" if len(counts) == 1 else f"{counts[0]}–{counts[-1]}"))
    return Table("Score of every method on every task, times 100", columns, [Rows(bodies)], _notes(quoted, computed))


def _notes(quoted: Mapping[str, QuotedTable], computed: bool) -> list[str]:
    said = [
        "A task's score is the mean of its metrics and of its splits; of translation, BLEU. ± is the standard "
        "deviation over seeds. Underlined: the highest mean of a column. Bold: shown to be better than every other "
        "method of the task, which the highest mean alone does not show."
    ]
    if quoted:
        places = {table.place: table for table in quoted.values()}
        said.append(
            f"Columns “{PAPER}” are quoted from {source()}, "
            + "; ".join(f"{place}: {table.about.rstrip('.')}" for place, table in places.items())
            + "."
        )
    if computed:
        said.append(f"{COMPUTED} Computed here: the mean of figures that the paper prints.")
    return said


def _by_metric(arms: Sequence[Arm]) -> Table | None:
    """Where a task has several metrics or splits, or the paper has figures to quote word for word."""
    bodies = []
    for task in dict.fromkeys(arm.task for arm in arms):
        rows = []
        for arm in (each for each in arms if each.task == task):
            names = metrics_of(arm)
            if len(names) < 2:
                continue
            translation = arm.runs[0].result.kind == "nmt"
            table = None if translation else quoted_tables(arms).get(task)  # of one metric: it is in the first table
            found = table.figure(arm.method, task) if table is not None else None
            scale = 1.0 if translation else 100.0
            values = [spread([each.figures[name] for each in arm.runs]).text(scale) for name in names]
            measured = " / ".join(SPOKEN.get(name.partition("/")[2], name.replace("_", " ")) for name in names)
            rows.append(
                [Cell(arm.name), Cell(measured), Cell(" / ".join(values)), Cell(found.text if found else NOTHING)]
            )
        if rows:
            bodies.append(Rows(rows, arms_title(arms, task)))
    if not bodies:
        return None
    columns = [
        Column("method", number=False),
        Column("measured by", number=False),
        Column(HERE),
        Column(PAPER, quoted=True),
    ]
    printed = any(row[-1].text != NOTHING for body in bodies for row in body.rows)
    notes = ["Quoted figures as the paper prints them, in its order of the metrics."] * printed
    return compact(Table("Tasks with several metrics, each by itself", columns, bodies, notes))


def _measured(measured: Sequence[Measured]) -> Table | None:
    if not measured:
        return None
    bodies = []
    for task, name in dict.fromkeys((each.arm.task, each.name) for each in measured):
        its = [each for each in measured if (each.arm.task, each.name) == (task, name)]
        means, kind = [each.score for each in its], its[0].arm.kind
        better = name not in LOWER_IS_BETTER
        rows = []
        for each in its:
            quoted = _quoted_measure(each)
            rows.append(
                [
                    Cell(each.arm.name),
                    Cell(figure_text(each.score, kind, name), best=_is_highest(each.score, means, high=better)),
                    Cell(NOTHING if quoted is None else quoted.text),
                    Cell(NOTHING if each.difference is None else signed_text(each.difference, kind, name)),
                    Cell(interval_text(each.interval, kind, name)),
                    Cell(p_text(each.p)),
                    Cell("yes" if each.shown else "no" if each.baseline else NOTHING, strong=each.shown),
                ]
            )
        bodies.append(Rows(rows, f"{its[0].arm.title}: {its[0].spoken}"))
    columns = [
        Column("method", number=False),
        Column(HERE),
        Column(PAPER, quoted=True),
        Column("less the baseline"),
        Column("over seeds"),
        Column("p (Holm)"),
        Column("shown", number=False),
    ]
    notes = [
        "Figures times 100, but for losses; ± is the standard deviation over seeds. Underlined: the best mean, "
        f"which is not thereby shown to be. Differences from {_baselines(measured)} are paired by seed, rows kept, "
        "with 95% intervals (Student's t); p is corrected over all comparisons of this report."
    ]
    places = dict.fromkeys(table.place for each in measured for table, _ in [_place_of(each)] if table is not None)
    if places:
        notes.append(f"Columns “{PAPER}” are quoted from {source()}, {' and '.join(places)}: BERT-base.")
    return compact(Table("What else was measured", columns, bodies, notes))


def _baselines(measured: Sequence[Measured]) -> str:
    return " or ".join(dict.fromkeys(each.baseline for each in measured if each.baseline)) or "a baseline"


def _quoted_measure(measured: Measured) -> Quoted | None:
    table, task = _place_of(measured)
    return None if table is None else table.figure(measured.arm.method, task)


def _place_of(measured: Measured) -> tuple[QuotedTable | None, str]:
    """Where the paper has it: ANLI's rounds, and the ECE of SST-2."""
    kind, _, rest = measured.name.partition("/")
    if measured.arm.setting or not measured.arm.of_the_task_itself:
        return None, ""
    if kind == ECE:
        return tables()[ECE], measured.arm.task
    split, _, title = rest.partition("/")
    table = tables().get(f"anli-{split}") if kind == "robustness" else None
    return table, "anli" if title == "anli-all" else title


def _verbatim(evidence: Evidence, arms: Sequence[Arm], measured: Sequence[Measured]) -> list[Table]:
    """The paper's tables that a study mirrors, as they are printed, unless all of it stands beside its own figures."""
    labels = {show.mirrors for show in evidence.shows}
    beside = {(table.name, task) for task, table in quoted_tables(arms).items()}
    beside |= {(table.name, task) for each in measured for table, task in [_place_of(each)] if table is not None}
    return [
        _printed(table)
        for table in tables().values()
        if table.label in labels and table.name != ECE and {(table.name, task) for task in table.measures} - beside
    ]


def _printed(table: QuotedTable) -> Table:
    names = list(dict.fromkeys(name for row in table.methods.values() for name in row))
    columns = [Column("method", number=False)]
    columns += [Column(name, table.measures.get(name, " "), quoted=True) for name in names]
    rows = [
        [Cell(method), *(Cell(row[name].text if name in row else NOTHING) for name in names)]
        for method, row in table.methods.items()
    ]
    about = f"Quoted as printed from {source()}, {table.place}; plain is the paper's model without a regularizer. "
    return Table(f"Quoted, {table.place}: {table.title}", columns, [Rows(rows)], [about + table.about])


def metrics_of(arm: Arm) -> list[str]:
    """The figures that an arm's score is made of."""
    its = arm.runs[0].figures
    if arm.runs[0].result.kind == "nmt":
        return [name for name in its if name.startswith("test/")] or [name for name in its if name.startswith("dev/")]
    return [name for name in its if name.split("/")[0] in SCORES or name.split("/")[-1] in SCORES]


def arms_title(arms: Sequence[Arm], task: str) -> str:
    """A task's name as tables have it."""
    return next(arm.title for arm in arms if arm.task == task)


def _by_name(arms: Sequence[Arm]) -> dict[str, dict[str, Arm]]:
    found: dict[str, dict[str, Arm]] = {}
    for arm in arms:
        found.setdefault(arm.name, {})[arm.task] = arm
    return found


def _is_best(arm: Arm, groups: Sequence[Group]) -> bool:
    """Of all groups that it is in, and which have every method of the task."""
    mine = [group for group in groups if any(each is arm for each in group.arms)]
    return bool(mine) and all(each.comparison is not None and each.comparison.best == arm.method for each in mine)


def _cell(mean: Spread | None, column: Sequence[Spread], *, strong: bool = False) -> Cell:
    return Cell(figure(mean), best=_is_highest(mean, column), strong=strong)


def _is_highest(mean: Spread | None, column: Sequence[Spread], *, high: bool = True) -> bool:
    """The best mean of a column, or the lowest one where low is good; none where all are alike."""
    means = [each.mean for each in column]
    if mean is None or max(means) == min(means):
        return False
    return mean.mean == (max(means) if high else min(means))


def _quoted(found: Quoted | None) -> Cell:
    if found is None:
        return Cell(NOTHING)
    return Cell(f"{found.mean:.2f}{COMPUTED}" if "/" in found.text else found.text)


def _quoted_average(table: QuotedTable, method: str, tasks: Sequence[str]) -> Cell:
    printed = table.figure(method, AVERAGE)
    if set(tasks) == set(table.measures) and printed is not None:
        return Cell(printed.text)
    found = [table.figure(method, task) for task in tasks]
    values = [each.mean for each in found if each is not None]
    return Cell(f"{sum(values) / len(values):.1f}{COMPUTED}" if len(values) == len(tasks) else NOTHING)


def _average(its: Mapping[str, Arm], tasks: Sequence[str]) -> Spread | None:
    """Over tasks, seed by seed."""
    if set(tasks) - set(its):
        return None
    by_seed = [{each.result.seed: each.score for each in its[task].runs} for task in tasks]
    seeds = set.intersection(*(set(each) for each in by_seed))
    return spread([sum(each[seed] for each in by_seed) / len(tasks) for seed in sorted(seeds)]) if seeds else None
