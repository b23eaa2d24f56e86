"""Paired differences, task by task."""

from __future__ import annotations

from collections.abc import Sequence

from stackelberg.analysis.comparison_report import difference_table, method_note, sentences
from stackelberg.reports.document import Block, Cell, Column, Rows, Section, Table, Words, compact
from stackelberg.studies.comparing import Group


def differences(groups: Sequence[Group]) -> Section | None:
    """The third section; None where nothing is compared."""
    compared = [each.comparison for each in groups if each.comparison is not None and each.comparison.pairs]
    if not compared:
        return None
    header = difference_table(compared[0])[0]
    columns = [Column(name, number=place not in (0, 6)) for place, name in enumerate(header)]
    bodies = [
        Rows(
            [
                [Cell(text, strong=pair.shown and place == 6) for place, text in enumerate(row)]
                for row, pair in zip(difference_table(each)[1], each.pairs, strict=True)
            ],
            f"{each.title}, less {each.baseline}",
        )
        for each in compared
    ]
    blocks: list[Block] = [
        compact(
            Table(
                f"Differences from the baseline, in points, with {compared[0].level:.0%} intervals",
                columns,
                bodies,
                list(dict.fromkeys(method_note(each).replace("`", "") for each in compared)),
            )
        )
    ]
    blocks += [Words(sentences(each), heading=each.title, listed=True) for each in compared]
    return Section("differences", "Differences", blocks)
