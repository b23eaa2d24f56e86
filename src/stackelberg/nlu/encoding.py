"""Texts as the token ids that a model and the Hugging Face Trainer want, with a count of what was cut."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from stackelberg.errors import DataError
from stackelberg.nlu.examples import Examples
from stackelberg.nlu.labels import LabelOrder

SLICE = 2000  # rows given to the tokenizer at once


class Encoded(Sequence[dict[str, Any]]):
    """A list of dicts, one a row: `input_ids`, `attention_mask`, what else the tokenizer makes, and `labels`.

    Each column is one flat array of 32-bit integers: a row of dicts of lists of Python's would take ten times the
    memory, and QQP has 364 thousand. Rows are not padded; a collator does that a batch at a time.

    Args:
        columns: for each of the tokenizer's outputs, all rows end to end.
        ends: where each row ends in them.
        labels: of each row, as the model numbers them; None where there are none.
        lengths: tokens of each row before it was cut.
        max_length: that rows were cut to.
    """

    def __init__(
        self,
        columns: dict[str, array[int]],
        ends: Sequence[int],
        labels: Sequence[int] | Sequence[float] | None,
        lengths: Sequence[int],
        max_length: int,
    ) -> None:
        self._columns = columns
        self._bounds = [0, *ends]
        self.labels = labels
        self.lengths = tuple(lengths)
        self.max_length = max_length

    @property
    def truncated(self) -> int:
        """How many rows were longer than `max_length`."""
        return sum(length > self.max_length for length in self.lengths)

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[index] for index in range(*row.indices(len(self)))]
        row = int(row)
        index = row + len(self) if row < 0 else row
        if not 0 <= index < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        start, end = self._bounds[index], self._bounds[index + 1]
        features: dict[str, Any] = {name: values[start:end].tolist() for name, values in self._columns.items()}
        if self.labels is not None:
            features["labels"] = self.labels[index]
        return features

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[row] for row in range(len(self)))


def encode(examples: Examples, tokenizer: Any, *, max_length: int = 128, order: LabelOrder | None = None) -> Encoded:
    """Tokenize rows, pairs with the tokenizer's own separator; the longer text of a pair is cut first.

    Args:
        examples: with or without labels.
        tokenizer: of Hugging Face, slow or fast.
        max_length: tokens, the special ones included.
        order: the model's order of the classes; the task's when None.
    """
    least = tokenizer.num_special_tokens_to_add(pair=examples.pairs is not None)
    most = min(max_length, tokenizer.model_max_length)
    if max_length <= least:
        raise DataError(
            f"max_length={max_length} leaves no room beside {least} special tokens; use {least + 8} or more"
        )
    columns: dict[str, array[int]] = {}
    lengths: list[int] = []
    kept: list[int] = []
    for start in range(0, len(examples), SLICE):
        texts = list(examples.texts[start : start + SLICE])
        pairs = None if examples.pairs is None else list(examples.pairs[start : start + SLICE])
        # not cut at first: the length that a row would have had is part of the summary
        whole = tokenizer(texts, pairs, truncation=False, padding=False, verbose=False)
        lengths += [len(ids) for ids in whole["input_ids"]]
        long = [row for row, ids in enumerate(whole["input_ids"]) if len(ids) > most]
        if long:
            cut = tokenizer(
                [texts[row] for row in long],
                None if pairs is None else [pairs[row] for row in long],
                truncation="longest_first",
                max_length=most,
                padding=False,
            )
            for name, rows in whole.items():
                for row, ids in zip(long, cut[name], strict=True):
                    rows[row] = ids
        kept += [len(ids) for ids in whole["input_ids"]]
        for name, rows in whole.items():
            column = columns.setdefault(name, array("i"))
            for ids in rows:
                column.extend(ids)
    return Encoded(columns, list(accumulate(kept)), _labels(examples, order), lengths, most)


def _labels(examples: Examples, order: LabelOrder | None) -> Sequence[int] | Sequence[float] | None:
    targets = examples.targets
    if targets is None or order is None or not all(isinstance(target, int) for target in targets):
        return targets
    return tuple(order.to_model(int(target)) for target in targets)
