"""Files become rows without losing or merging any, and a bad file is one sentence with its line and the fix."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stackelberg.errors import StackelbergError
from stackelberg.extras import need
from stackelberg.nlu import DataError, Examples, MissingPackageError, find_task, hold_out, load, load_files, read_file
from stackelberg.nlu.table import Table, read_table

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def _write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return _write


def refused(work: Callable[[], object], *words: str) -> str:
    """The sentence of a refusal, which has all of the words and is one line."""
    with pytest.raises(DataError) as caught:
        work()
    sentence = str(caught.value)
    assert isinstance(caught.value, StackelbergError)
    assert [word for word in words if word not in sentence] == [], sentence
    assert "\n" not in sentence
    return sentence


# Rows that break readers: quotes left open, and everything that Python, though not GLUE, ends a line at.
ODD = "\"\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\ufeff\\,;'ü字 a1"
tsv_fields = st.text(st.sampled_from(ODD), max_size=8)
any_fields = st.text(st.one_of(st.sampled_from(ODD + "\n\t"), st.characters(exclude_categories=["Cs"])), max_size=8)
ON_DISK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@ON_DISK
@given(rows=st.lists(st.tuples(tsv_fields, tsv_fields), min_size=1, max_size=8))
def test_tsv_rows_come_back_whatever_is_in_them(tmp_path: Path, rows: list[tuple[str, str]]) -> None:
    path = tmp_path / "odd.tsv"
    path.write_bytes("".join(f"{a}\t{b}\n" for a, b in [("one", "two"), *rows]).encode())
    assert [tuple(row) for row in read_table(path).rows] == rows


@ON_DISK
@given(rows=st.lists(st.tuples(any_fields, any_fields), min_size=1, max_size=8))
def test_csv_rows_come_back_whatever_is_in_them(tmp_path: Path, rows: list[tuple[str, str]]) -> None:
    path = tmp_path / "odd.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([("one", "two"), *rows])
    assert [tuple(row) for row in read_table(path).rows] == rows


@ON_DISK
@given(rows=st.lists(st.tuples(any_fields, any_fields), min_size=1, max_size=8), ascii=st.booleans())
def test_json_lines_come_back_whatever_is_in_them(tmp_path: Path, rows: list[tuple[str, str]], ascii: bool) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_bytes("".join(json.dumps({"one": a, "two": b}, ensure_ascii=ascii) + "\n" for a, b in rows).encode())
    assert [tuple(row) for row in read_table(path).rows] == rows


@ON_DISK
@given(content=st.binary(max_size=60), ending=st.sampled_from([".tsv", ".csv", ".jsonl", ".json", ".txt"]))
def test_any_bytes_are_rows_or_one_sentence(tmp_path: Path, content: bytes, ending: str) -> None:
    path = tmp_path / f"any{ending}"
    path.write_bytes(content)
    try:
        assert len(read_table(path).rows) > 0
    except DataError as error:
        assert str(path) in str(error)


def test_a_lone_quote_merges_no_rows(write: Write) -> None:
    path = write(
        "MRPC/train.tsv", 'Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t1\t2\t" he said\tb\n0\t3\t4\tc\td "\n'
    )
    examples = load("mrpc", path.parent)["train"]
    assert examples.texts == ('" he said', "c") and examples.pairs == ("b", 'd "') and examples.targets == (1, 0)


def test_windows_files_lose_their_carriage_returns_and_no_others(write: Write) -> None:
    assert read_table(write("w.tsv", "a\tb\r\n1\t2\r\n3\r\t4\r\n")).rows == [["1", "2"], ["3\r", "4"]]
    assert read_table(write("u.tsv", "a\tb\n1\t2\r\n")).rows == [["1", "2\r"]]


def test_a_byte_order_mark_is_no_part_of_the_first_column(write: Write) -> None:
    for name, text in (("b.tsv", "text\tlabel\nx\t1\n"), ("b.csv", "text,label\nx,1\n"), ("b.jsonl", '{"text": "x"}')):
        assert read_table(write(name, b"\xef\xbb\xbf" + text.encode())).columns[0] == "text"


def test_a_mark_in_a_field_stays(write: Write) -> None:
    assert read_table(write("m.tsv", "text\tlabel\n\ufeffx\t1\n")).rows[0][0] == "\ufeffx"


def test_long_csv_fields_are_read_and_the_limit_is_put_back(write: Write) -> None:
    before = csv.field_size_limit()
    path = write("long.csv", f'text,label\n"{"x" * 200_000}",1\n')
    assert len(read_table(path).rows[0][0]) == 200_000
    assert csv.field_size_limit() == before


def test_line_numbers_count_the_lines_of_the_file(write: Write) -> None:
    path = write("n.csv", 'text,label\n"two\nlines",1\nx,1\ny,1,1\n')
    refused(lambda: read_table(path), "line 5", "3 fields", "2 (text, label)")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("e.tsv", "", ["is empty"]),
        ("e.csv", b"\xef\xbb\xbf", ["is empty"]),
        ("e.jsonl", " \n\n", ["is empty"]),
        ("h.tsv", "text\tlabel\n", ["header and no rows"]),
        ("h.csv", "text,label\n", ["header and no rows"]),
        ("mac.tsv", "text\tlabel\rx\t1\r", ["no rows", "\\r alone"]),
        ("l.tsv", b"text\tlabel\nok\t1\ncaf\xe9\t1\n", ["line 3", "0xe9", "not UTF-8", "iconv"]),
        ("u16.tsv", "text\tlabel\nx\t1\n".encode("utf-16"), ["UTF-16", "iconv -f UTF-16"]),
        ("u16le.tsv", "text\tlabel\nx\t1\n".encode("utf-16-le"), ["UTF-16"]),
        ("u32.tsv", "text\tlabel\nx\t1\n".encode("utf-32"), ["UTF-32"]),
        ("d.tsv", "text\tlabel\ttext\nx\t1\ty\n", ["line 1", "more than one column 'text'"]),
        ("d.jsonl", '{"text": "a", "text": "b"}\n', ["line 1", "more than one column 'text'"]),
        ("f.tsv", "text\tlabel\nx\t1\ny\n", ["line 3", "1 field where the header has 2"]),
        ("f.tsv", "text\tlabel\nx\t1\n\ny\t1\n", ["line 3", "an empty line"]),
        ("f.csv", "text,label\nx,1\n\ny,1\n", ["line 3", "an empty line"]),
        ("q.csv", 'text,label\nx,1\n"y,1\nz,1\n', ["line 3", "begins here is not CSV", "quotes"]),
        ("q.csv", 'text,label\n"y" z,1\n', ["line 2", "not CSV"]),
        ("j.jsonl", '{"text": "a"}\n[1]\n', ["line 2", "a list where an object is needed"]),
        ("j.jsonl", '{"text": "a"}\nnull\n', ["line 2", "null where an object"]),
        ("j.jsonl", '{"text": "a"}\n{"text": \n', ["line 2", "not JSON"]),
        ("j.jsonl", '{"text": "a"}\n\n{"text": "b"}\n', ["line 2", "an empty line"]),
        ("j.json", '{"a": [], "b": []}', ["an object where a list"]),
        ("j.json", "[]", ["no rows"]),
        ("j.json", '[{"text": "a"}, 3]', ["entry 2", "a number where an object"]),
        ("x.xlsx", "PK", [".xlsx", ".tsv, .txt, .csv, .jsonl, .json"]),
    ],
)
def test_a_bad_file_is_one_sentence(write: Write, name: str, content: str | bytes, words: list[str]) -> None:
    path = write(name, content)
    refused(lambda: read_table(path), str(path), *words)


def test_a_missing_file_lists_what_is_there(write: Write) -> None:
    path = write("train.tsv", "text\tlabel\nx\t1\n")
    refused(lambda: read_table(path.parent / "trian.tsv"), "is not there", "train.tsv", "did you mean 'train.tsv'")
    refused(lambda: read_table(path.parent / "no" / "train.tsv"), "there is no folder")
    refused(lambda: read_table(path.parent), "is a folder")


@pytest.mark.parametrize(
    ("content", "settings", "words"),
    [
        ("texts\tlabel\nx\t1\ny\t0\n", {}, ["no column 'text'", "'texts', 'label'", "did you mean 'texts'"]),
        ("text\tlable\nx\t1\ny\t0\n", {}, ["no column 'label'", "did you mean 'lable'"]),
        ("text,label\nx,1\ny,0\n", {}, ["no column 'text'", "one column with ','"]),
        ("text\tlabel\nx\t1\ny\t \n", {}, ["line 3", "no label"]),
        ("text\tlabel\nx\t1\ny\t1\n", {}, ["one class only, '1'"]),
        ("text\tlabel\nx\tyes\ny\tnoo\n", {"labels": ["yes", "no"]}, ["line 3", "'noo'", "yes, no", "mean 'no'"]),
        ("text\tlabel\nx\t1.5\ny\thigh\n", {"kind": "score"}, ["line 3", "'high'", "not a number"]),
        ("text\tlabel\nx\t1.5\ny\tnan\n", {"kind": "score"}, ["line 3", "'nan'", "not a finite number"]),
        ("text\tlabel\nx\t1.5\ny\t1e999\n", {"kind": "score"}, ["line 3", "not a finite number"]),
        ("text\tlabel\nx\t1\ny\t0\n", {"labels": ["1"]}, ["at least two classes"]),
        ("text\tlabel\nx\t1\ny\t0\n", {"labels": ["1", "0", "1"]}, ["names a class twice"]),
        ("text\tlabel\n" + "".join(f"x\t{n / 7}\n" for n in range(150)), {}, ["150 different values", "kind='score'"]),
    ],
)
def test_bad_columns_and_labels_are_one_sentence(
    write: Write, content: str, settings: dict[str, Any], words: list[str]
) -> None:
    path = write("train.tsv", content)
    refused(lambda: load_files({"train": path}, **settings), str(path) if "labels" not in settings else "", *words)


def test_a_label_that_training_did_not_have(write: Write) -> None:
    files = {"train": write("a.csv", "text,label\nx,yes\ny,no\n"), "dev": write("b.csv", "text,label\nx,maybe\n")}
    refused(lambda: load_files(files), "b.csv, line 2", "'maybe'", "no, yes")


def test_json_values_of_the_wrong_type(write: Write) -> None:
    def load_lines(*lines: str) -> object:
        return load_files({"train": write("t.jsonl", "\n".join(lines))}, labels=["a", "b"])

    refused(lambda: load_lines('{"text": "x", "label": "a"}', '{"text": 3, "label": "a"}'), "line 2", "3 where a text")
    refused(lambda: load_lines('{"text": "x", "label": "a"}', '{"label": "a"}'), "line 2", "None where a text")
    refused(lambda: load_lines('{"text": "x", "label": "a"}', '{"text": "y"}'), "line 2", "no label")
    refused(lambda: load_lines('{"text": "x", "label": ["a"]}'), "line 1", "where a label")
    refused(lambda: load_lines('{"text": "\\ud800", "label": "a"}'), "line 1", "surrogate")


def test_own_files_of_every_kind(write: Write) -> None:
    rows = [("a, b", 'says "c"', "10"), ("d", "e\n", "9"), ("f", "g", "10")]
    buffer = io.StringIO()
    csv.writer(buffer).writerows([("first", "second", "class"), *rows])
    keys = ("first", "second", "class")
    files = {
        "train": write("t.csv", buffer.getvalue()),
        "dev": write("d.jsonl", "\n".join(json.dumps(dict(zip(keys, row, strict=True))) for row in rows)),
        "test": write("x.tsv", "second\tfirst\nB\tA\n"),
    }
    data = load_files(files, text="first", pair="second", label="class", name="mine")
    assert data.task.labels == ("9", "10")  # numbers by size, not by spelling
    assert data["train"].targets == (1, 0, 1) and data["train"].pairs == ('says "c"', "e\n", "g")
    assert data["dev"].targets == data["train"].targets and data["dev"].texts == data["train"].texts
    assert data["test"] == Examples(("A",), ("B",), None, sources=(str(files["test"]),))
    assert data.task.evaluation == ("dev",) and data.task.outputs == 2
    assert load_files(files, text="first", pair="second", label="class", labels=["10", "9"])["dev"].targets == (0, 1, 0)


def test_own_scores(write: Write) -> None:
    data = load_files({"train": write("s.csv", "text,label\nx,-1.5\ny,2e1\n")}, kind="score")
    assert data["train"].targets == (-1.5, 20.0) and data.task.outputs == 1 and data.task.metrics[0] == "pearson"


def test_rows_to_predict_on_need_no_labels_and_none_is_left_out(write: Write) -> None:
    task = find_task("snli")
    assert read_file(write("p.tsv", "sentence1\tsentence2\na\tb\n"), task).targets is None
    withheld = read_file(write("p.tsv", "sentence1\tsentence2\tgold_label\na\tb\t\n"), task)
    assert withheld.targets is None and len(withheld) == 1
    refused(lambda: read_file(write("p.tsv", "sentence1\tsentence2\tgold_label\na\tb\t-\n"), task), "'-'")
    assert read_file(write("p.tsv", "sentence1\tsentence2\tgold_label\na\tb\tneutral\n"), task).targets == (1,)


def test_examples_cannot_change_or_disagree() -> None:
    examples = Examples(("a", "b"), targets=(0, 1))
    with pytest.raises(AttributeError):
        examples.texts = ()  # type: ignore[misc]
    refused(lambda: Examples(("a", "b"), targets=(0,)), "2 and 1 rows")
    assert examples.take([1]).texts == ("b",) and examples.take([1, 0]).targets == (1, 0)


def test_held_out_rows_are_stratified_and_the_same_each_time() -> None:
    examples = Examples(tuple(map(str, range(110))), targets=(0,) * 100 + (1,) * 10)
    kept, held = hold_out(examples, 0.2, seed=3)
    assert sorted(kept.texts + held.texts) == sorted(examples.texts)
    assert held.targets is not None and (held.targets.count(0), held.targets.count(1)) == (20, 2)
    assert hold_out(examples, 0.2, seed=3)[1] == held != hold_out(examples, 0.2, seed=4)[1]
    scores = Examples(("a", "b", "c", "d"), targets=(0.5, 1.5, 2.5, 3.5))
    assert len(hold_out(scores, 0.5)[1]) == 2
    refused(lambda: hold_out(examples, 1.0), "between 0 and 1")
    refused(lambda: hold_out(Examples(("a",))), "labels")


def test_a_missing_package_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'stackelberg\[hf\]'"):
        load("rte")
    with pytest.raises(MissingPackageError, match=r"needs matplotlib, .* pip install 'stackelberg\[report\]'"):
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        need("matplotlib.figure")


def test_a_table_names_its_columns(tmp_path: Path) -> None:
    table = Table(tmp_path / "t.tsv", ("sentence1", "gold"), [["a", "b"]], [2])
    refused(lambda: table.column("sentence"), "'sentence1', 'gold'", "did you mean 'sentence1'")
