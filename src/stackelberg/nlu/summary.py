"""What is in a task's data, to be looked at before anything is trained on it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stackelberg.nlu.encoding import Encoded
from stackelberg.nlu.examples import Examples, TaskData
from stackelberg.nlu.task import NluTask

PERCENTILES = (50, 95, 99, 100)
MOST_CLASSES = 8  # named in the terminal's rendering


@dataclass(frozen=True, slots=True)
class SplitSummary:
    """One split.

    Args:
        rows: how many there are.
        published: how many there are in the published file, if that is known.
        skipped: rows of the file left out by the task's rules.
        labels: rows of each class; None where there are no classes or no labels.
        scores: least, mean and greatest score; None where there are none.
        lengths: percentile of a row's length to that length.
        truncated: share of the rows that are cut; None where lengths are in words.
        empty: rows with a text that has nothing in it.
        repeated: rows whose texts occur earlier in the split.
        in_train: rows whose texts are also in the training split.
    """

    rows: int
    published: int | None
    skipped: int
    labels: Mapping[str, int] | None
    scores: tuple[float, float, float] | None
    lengths: Mapping[int, int]
    truncated: float | None
    empty: int
    repeated: int
    in_train: int


@dataclass(frozen=True, slots=True)
class Summary:
    """All splits of a task.

    Args:
        title: the task's.
        unit: what lengths count: `tokens`, or `words` where nothing was tokenized.
        max_length: that rows are cut to, if they were tokenized.
        splits: by name.
    """

    title: str
    unit: str
    max_length: int | None
    splits: Mapping[str, SplitSummary]


def summarize(data: TaskData, encoded: Mapping[str, Encoded] | None = None) -> Summary:
    """Count what is in a task's splits.

    Args:
        data: the task.
        encoded: the same splits tokenized, for lengths in tokens and the share that is cut; lengths are otherwise in
            words, between spaces.
    """
    train = set(_keys(data["train"])) if "train" in data else set()
    return Summary(
        title=data.task.title,
        unit="words" if encoded is None else "tokens",
        max_length=None if not encoded else max(split.max_length for split in encoded.values()),
        splits={
            split: _split(data.task, split, examples, None if encoded is None else encoded[split], train)
            for split, examples in data.items()
        },
    )


def render(summary: Summary) -> str:
    """The summary for a terminal."""
    header = ["split", "rows", *(f"p{p}" if p < 100 else "max" for p in PERCENTILES)]
    if summary.max_length is not None:
        header.append(f"cut at {summary.max_length}")
    table = [header]
    for name, split in summary.splits.items():
        row = [name, f"{split.rows:,}", *(f"{split.lengths[p]:,}" for p in PERCENTILES)]
        if summary.max_length is not None:
            row.append("–" if split.truncated is None else f"{split.truncated:.1%}")
        table.append(row)
    lines = [f"{summary.title}, lengths in {summary.unit}", *_aligned(table)]
    lines += [f"{name}: {words}" for name, split in summary.splits.items() for words in _labels(split)]
    lines += [f"{name}: {words}" for name, split in summary.splits.items() for words in _remarks(split)]
    return "\n".join(lines)


def percentile(values: Sequence[int], share: int) -> int:
    """The least value that at least `share` per cent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share / 100 * len(ordered)) - 1, 0)]


def _split(
    task: NluTask, name: str, examples: Examples, encoded: Encoded | None, train: set[tuple[str, str]]
) -> SplitSummary:
    keys = _keys(examples)
    lengths = [len(" ".join(key).split()) for key in keys] if encoded is None else list(encoded.lengths)
    targets = examples.targets
    labels, scores = None, None
    if targets is not None and task.kind == "classes":
        counts = Counter(targets)
        labels = {label: counts[index] for index, label in enumerate(task.labels)}
    elif targets is not None:
        scores = (min(targets), math.fsum(targets) / len(targets), max(targets))
    return SplitSummary(
        rows=len(examples),
        published=task.rows.get(name),
        skipped=examples.skipped,
        labels=labels,
        scores=scores,
        lengths={share: percentile(lengths, share) for share in PERCENTILES},
        truncated=None if encoded is None else encoded.truncated / len(encoded),
        empty=sum(not all(text.strip() for text in texts) for texts in _texts(examples)),
        repeated=len(keys) - len(set(keys)),
        in_train=0 if name == "train" else sum(key in train for key in keys),
    )


def _texts(examples: Examples) -> list[tuple[str, ...]]:
    pairs = examples.pairs
    return [(text,) for text in examples.texts] if pairs is None else list(zip(examples.texts, pairs, strict=True))


def _keys(examples: Examples) -> list[tuple[str, str]]:
    """What makes two rows the same to a reader: their texts, whatever the spacing."""
    return [(" ".join(texts[0].split()), " ".join(texts[-1].split()) * (len(texts) - 1)) for texts in _texts(examples)]


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(cell.rjust(width) if place else cell.ljust(width) for place, (cell, width) in enumerate(cells))
        for cells in (list(zip(row, widths, strict=True)) for row in table)
    ]


def _labels(split: SplitSummary) -> list[str]:
    if split.scores is not None:
        least, mean, greatest = split.scores
        return [f"scores {least:g} to {greatest:g}, mean {mean:.3f}"]
    if split.labels is None:
        return ["no labels"]
    shown = [f"{label} {count / split.rows:.1%}" for label, count in split.labels.items()]
    more = [f"{len(shown) - MOST_CLASSES} more classes"] if len(shown) > MOST_CLASSES else []
    return [", ".join(shown[:MOST_CLASSES] + more)]


def _remarks(split: SplitSummary) -> list[str]:
    remarks = []
    if split.published is not None and split.published != split.rows:
        remarks.append(f"{split.rows:,} rows where {split.published:,} were published; say so beside every figure")
    if split.skipped:
        remarks.append(f"rows of the file left out: {split.skipped:,}")
    if split.empty:
        remarks.append(f"rows with an empty text: {split.empty:,}")
    if split.repeated:
        remarks.append(f"rows that repeat an earlier one: {split.repeated:,}")
    if split.in_train:
        remarks.append(f"rows that are in train too: {split.in_train:,} ({split.in_train / split.rows:.1%})")
    if split.labels is not None and (unseen := [label for label, count in split.labels.items() if not count]):
        remarks.append(f"no row is {', '.join(unseen)}")
    return remarks
