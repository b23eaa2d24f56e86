"""Rows as a Trainer wants them, labels as the checkpoint numbers them, and a summary that can be trusted."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, DataCollatorWithPadding, PreTrainedTokenizerFast

from stackelberg.nlu import (
    DataError,
    Examples,
    TaskData,
    encode,
    find_task,
    label2id,
    label_order,
    named_outputs,
    render,
    summarize,
)
from stackelberg.nlu.summary import percentile

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "d"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Words by number, between [CLS] and [SEP], with token types: BERT's form."""
    plain = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    plain.pre_tokenizer = Whitespace()
    plain.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=plain,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def test_a_row_is_what_the_trainer_wants(tokenizer: Any) -> None:
    rows = encode(Examples(("a b", "c"), ("d", "d d d"), targets=(1, 0)), tokenizer)
    assert len(rows) == 2 and rows.truncated == 0 and rows.lengths == (6, 7)
    assert rows[0] == {
        "input_ids": [2, 4, 5, 3, 7, 3],
        "token_type_ids": [0, 0, 0, 0, 1, 1],
        "attention_mask": [1] * 6,
        "labels": 1,
    }
    assert rows[-1] == rows[1] == list(rows)[1] and rows[:1] == [rows[0]] and rows[1]["labels"] == 0
    with pytest.raises(IndexError):
        rows[2]
    batch = DataCollatorWithPadding(tokenizer)(list(rows))
    assert batch["input_ids"].shape == (2, 7) and batch["labels"].tolist() == [1, 0]


def test_rows_without_labels_and_with_scores(tokenizer: Any) -> None:
    assert "labels" not in encode(Examples(("a",)), tokenizer)[0]
    row = encode(Examples(("a",), targets=(2.5,)), tokenizer)[0]
    assert row["labels"] == 2.5 and row["input_ids"] == [2, 4, 3]


def test_long_rows_are_cut_and_counted(tokenizer: Any) -> None:
    examples = Examples(("a " * 9, "a b", "b " * 4), ("c", "d", "c " * 7))
    rows = encode(examples, tokenizer, max_length=8)
    assert rows.lengths == (13, 6, 14) and rows.truncated == 2 and rows.max_length == 8
    assert [len(row["input_ids"]) for row in rows] == [8, 6, 8]
    for row, text, pair in zip(rows, examples.texts, examples.pairs or (), strict=True):
        whole = tokenizer(text, pair, truncation="longest_first", max_length=8)
        assert row == {name: whole[name] for name in row}
    assert rows[0]["input_ids"] == [2, 4, 4, 4, 4, 3, 6, 3]  # the short text of the pair is whole
    with pytest.raises(DataError, match="max_length=3 leaves no room beside 3 special tokens"):
        encode(examples, tokenizer, max_length=3)


def test_many_rows_are_in_the_order_they_came(tokenizer: Any) -> None:
    texts = tuple("a b c d"[: 1 + 2 * (row % 4)] for row in range(4100))
    rows = encode(Examples(texts, targets=tuple(range(4100))), tokenizer, max_length=5)
    assert [row["labels"] for row in rows] == list(range(4100))
    assert all(row["input_ids"][1:-1] == [4, 5, 6, 7][: min(1 + n % 4, 3)] for n, row in enumerate(rows))
    assert rows.truncated == 1025


def test_labels_follow_the_checkpoint(tokenizer: Any) -> None:
    task = find_task("mnli")
    names = {"CONTRADICTION": 0, "ENTAILMENT": 1, "NEUTRAL": 2}
    config = BertConfig(id2label={str(output): name for name, output in names.items()})  # as many have it
    order = label_order(task, named_outputs(config), trained=True)
    assert order.named and order.ids == (1, 2, 0)
    rows = encode(Examples(("a",) * 3, ("b",) * 3, targets=(0, 1, 2)), tokenizer, order=order)
    assert [row["labels"] for row in rows] == [1, 2, 0]
    assert [order.to_task(order.to_model(target)) for target in range(3)] == [0, 1, 2]
    assert label2id(task, order) == {"entailment": 1, "neutral": 2, "contradiction": 0}


@pytest.mark.parametrize(
    ("task", "names", "ids", "named"),
    [
        ("rte", {"LABEL_0": 0, "LABEL_1": 1}, (0, 1), False),  # nobody named them
        ("rte", {"0": 0, "1": 1}, (0, 1), False),
        ("rte", {"not entailment": 0, "Entailment": 1}, (1, 0), True),
        ("rte", {"NEGATIVE": 0, "POSITIVE": 1}, (0, 1), False),  # another task's head, to be fitted anew
        ("rte", {"contradiction": 0, "neutral": 1, "entailment": 2}, (0, 1), False),
        ("mr", {"pos": 0, "neg": 1}, (1, 0), True),
        ("cola", {"acceptable": 0, "unacceptable": 1}, (1, 0), True),
        ("cola", {"0": 1, "1": 0}, (0, 1), False),
        ("rte", None, (0, 1), False),
    ],
)
def test_a_configuration_is_followed_where_it_names_the_classes(
    task: str, names: dict[str, int] | None, ids: tuple[int, ...], named: bool
) -> None:
    order = label_order(find_task(task), names)
    assert (order.ids, order.named) == (ids, named)


def test_a_trained_head_of_other_classes_is_refused() -> None:
    rte = find_task("rte")
    for names in ({"NEGATIVE": 0, "POSITIVE": 1}, {"contradiction": 0, "neutral": 1, "entailment": 2}):
        with pytest.raises(DataError, match="RTE's classes are entailment, not_entailment"):
            label_order(rte, names, trained=True)
    with pytest.raises(DataError, match="LABEL_2"):
        label_order(rte, {f"LABEL_{n}": n for n in range(3)}, trained=True)
    assert label_order(rte, {"LABEL_0": 0, "LABEL_1": 1}, trained=True).ids == (0, 1)


def test_the_summary_counts(tokenizer: Any) -> None:
    train = Examples(("a", "b  b", "c", "c"), ("d", "d", "d", "d"), targets=(0, 0, 0, 1), skipped=2)
    dev = Examples(("b b", "a", "", "d a b c a b"), ("d", "x", "d", "d"), targets=(1, 1, 0, 0))
    data = TaskData(find_task("rte"), {"train": train, "dev": dev, "test": Examples(("c",), ("d",))})
    summary = summarize(data, {split: encode(examples, tokenizer, max_length=8) for split, examples in data.items()})
    first, second, third = summary.splits.values()
    assert (first.rows, first.published, first.skipped, first.repeated, first.in_train) == (4, 2490, 2, 1, 0)
    assert first.labels == {"entailment": 3, "not_entailment": 1} and third.labels is None
    assert first.lengths == {50: 5, 95: 6, 99: 6, 100: 6}
    assert (second.empty, second.in_train, second.repeated) == (1, 1, 0) and third.in_train == 1
    assert second.truncated == 0.25 and first.truncated == 0.0 and summary.max_length == 8
    text = render(summary)
    assert "RTE, lengths in tokens" in text and "train: entailment 75.0%, not_entailment 25.0%" in text
    assert "dev: rows that are in train too: 1 (25.0%)" in text and "test: no labels" in text
    assert "train: 4 rows where 2,490 were published" in text and "25.0%" in text.splitlines()[3]
    assert len({len(line) for line in text.splitlines()[1:5]}) == 1  # the columns are aligned


def test_the_summary_of_scores_in_words() -> None:
    data = TaskData(find_task("sts-b"), {"train": Examples(("a b", "c"), ("d", "d"), targets=(1.0, 4.0))})
    split = summarize(data).splits["train"]
    assert split.scores == (1.0, 2.5, 4.0) and split.labels is None and split.truncated is None
    assert split.lengths[100] == 3 and "lengths in words" in render(summarize(data))
    assert "train: scores 1 to 4, mean 2.500" in render(summarize(data))


def test_percentiles_are_values_that_occur() -> None:
    values = list(range(1, 101))
    assert [percentile(values, share) for share in (50, 95, 99, 100)] == [50, 95, 99, 100]
    assert percentile([7], 50) == 7 and percentile([3, 1, 2], 50) == 2


def test_nothing_heavy_is_imported_with_the_package() -> None:
    import subprocess
    import sys

    code = "import sys, stackelberg.nlu, stackelberg.analysis; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"datasets", "torchmetrics", "matplotlib", "sklearn", "transformers"} & set(loaded)
    assert not [name for name in loaded if name.startswith("stackelberg.adapters")]
