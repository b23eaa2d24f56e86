"""Tasks by name: the layouts they are published in, the hub, and the real files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stackelberg.errors import SettingError
from stackelberg.nlu import TASKS, DataError, attacked_and_original, find_task, load
from stackelberg.nlu.metrics import METRICS
from stackelberg.nlu.submission import FILES

Lay = Callable[[Mapping[str, str]], Path]
DATA = Path(__file__).parent.parent / ".data" / "nlu"


@pytest.fixture
def lay(tmp_path: Path) -> Lay:
    def _lay(files: Mapping[str, str]) -> Path:
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8", newline="")
        return tmp_path

    return _lay


# GLUE's own layout, one row a split: header (None: there is none), a labelled row, a test header, a test row.
OFFICIAL: dict[str, tuple[str | None, str, str, str, float]] = {
    "CoLA": (None, "gj04\t0\t*\tThe sailors.", "index\tsentence", "0\tBill.", 0),
    "SST-2": ("sentence\tlabel", "a charming journey \t1", "index\tsentence", "0\tuneasy .", 1),
    "MRPC": (
        "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
        "1\t7\t8\tHe said .\tShe said .",
        "index\t#1 ID\t#2 ID\t#1 String\t#2 String",
        "0\t1\t2\tA .\tB .",
        1,
    ),
    "QQP": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
        "1\t2\t3\tHow?\tWhy?\t0",
        "id\tquestion1\tquestion2",
        "0\tWho?\tWhen?",
        0,
    ),
    "STS-B": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
        "0\tg\tf\t2012\t1\tn\tn\tA plane.\tA train.\t3.800",
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2",
        "0\tg\tf\t2012\t1\tn\tn\tA girl.\tA boy.",
        3.8,
    ),
    "QNLI": (
        "index\tquestion\tsentence\tlabel",
        "0\tWhen?\tThen.\tnot_entailment",
        "index\tquestion\tsentence",
        "0\tA?\tB.",
        1,
    ),
    "RTE": (
        "index\tsentence1\tsentence2\tlabel",
        "0\tA.\tB.\tentailment",
        "index\tsentence1\tsentence2",
        "0\tA.\tB.",
        0,
    ),
    "WNLI": ("index\tsentence1\tsentence2\tlabel", "0\tA.\tB.\t1", "index\tsentence1\tsentence2", "0\tA.\tB.", 1),
}
MNLI_HEADER = "index\tpromptID\tpairID\tgenre\tsentence1_parse\tsentence2_parse\tsentence1\tsentence2"


@pytest.mark.parametrize("title", OFFICIAL)
def test_the_official_layout(lay: Lay, title: str) -> None:
    header, row, test_header, test_row, target = OFFICIAL[title]
    labelled = f"{header}\n{row}\n" if header else f"{row}\n"
    root = lay(
        {
            f"{title}/train.tsv": labelled * (1 if header else 2),
            f"{title}/dev.tsv": labelled,
            f"{title}/test.tsv": f"{test_header}\n{test_row}\n",
        }
    )
    data = load(title, root)
    assert list(data) == ["train", "dev", "test"]
    assert data["dev"].targets == (target,) and data["test"].targets is None
    assert (data["test"].pairs is not None) is data.task.has_pairs
    assert data["dev"].texts[0] in row and data["test"].texts[0] in test_row
    assert len(data["train"]) == (1 if header else 2)
    assert dict(load(title, root / title)) == dict(data)  # the task's own folder
    assert data.subsets()["dev"] == (1, data.task.rows["dev"])


def test_both_sets_of_mnli_and_the_diagnostics(lay: Lay) -> None:
    row, labels = "0\t1\t2\tfiction\tp\tp\tA.\tB.", "\tneutral\tentailment\tneutral\tneutral\tneutral\tneutral"
    dev = f"{MNLI_HEADER}\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label\n{row}{labels}\n"
    test = f"{MNLI_HEADER}\n{row}\n"
    root = lay(
        {
            "MNLI/train.tsv": f"{MNLI_HEADER}\tlabel1\tgold_label\n{row}\tneutral\tcontradiction\n",
            "MNLI/dev_matched.tsv": dev + f"{row}{labels.removesuffix('neutral')}-\n",
            "MNLI/dev_mismatched.tsv": dev,
            "MNLI/test_matched.tsv": test,
            "MNLI/test_mismatched.tsv": test,
            "diagnostic/diagnostic.tsv": "index\tsentence1\tsentence2\n0\tA.\tB.\n",
        }
    )
    data = load("mnli", root)
    assert data["train"].targets == (2,) and data["dev_mismatched"].targets == (1,)
    assert data["dev_matched"].targets == (1,) and data["dev_matched"].skipped == 1  # "-" is no label
    assert data["test_matched"].targets is None and data.task.evaluation == ("dev_matched", "dev_mismatched")
    assert load("ax", root)["test"].pairs == ("B.",)


def test_mrpc_as_microsoft_publishes_it(lay: Lay) -> None:
    header = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
    root = lay(
        {
            "MRPC/msr_paraphrase_train.txt": f'{header}1\t1\t2\tA "\tB\r\n0\t3\t4\tC\tD\r\n1\t5\t6\tE\tF\r\n',
            "MRPC/msr_paraphrase_test.txt": f"{header}1\t7\t8\tG\tH\r\n",
            "MRPC/dev_ids.tsv": "3\t4\n",
        }
    )
    data = load("mrpc", root)
    assert data["train"].texts == ('A "', "E") and data["dev"].pairs == ("D",) and data["test"].texts == ("G",)
    (root / "MRPC" / "dev_ids.tsv").unlink()
    with pytest.raises(DataError, match=r"dev_ids\.tsv"):
        load("mrpc", root)


def test_broken_rows_of_qqp_are_left_out_and_counted(lay: Lay) -> None:
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    root = lay({"QQP/train.tsv": f"{header}1\t2\t3\tHow\n?\tWhy?\t0\n4\t5\t6\tWho?\tWhen?\t1\n"})
    examples = load("qqp", root)["train"]
    assert examples.texts == ("Who?",) and examples.skipped == 2


def test_subsets_and_ambiguous_files(lay: Lay) -> None:
    rows = "index\tsentence1\tsentence2\tlabel\n0\tA.\tB.\tentailment\n"
    root = lay({"RTE/train_1.tsv": rows})
    assert load("rte", root).subsets() == {"train": (1, 2490)}
    lay({"RTE/train_2.tsv": rows})
    with pytest.raises(DataError, match=r"train_1\.tsv, train_2\.tsv.*leave one"):
        load("rte", root)


def test_rounds_of_anli_are_joined(lay: Lay) -> None:
    def line(label: str) -> str:
        return json.dumps({"uid": "u", "context": "A.", "hypothesis": label, "label": label}) + "\n"

    root = lay({f"ANLI/R{n}/dev.jsonl": line(label) for n, label in ((1, "e"), (2, "n"), (3, "c"))})
    assert load("anli", root)["dev"].targets == (0, 1, 2) and load("anli-r3", root)["dev"].pairs == ("c",)
    (root / "ANLI/R2/dev.jsonl").unlink()
    with pytest.raises(DataError, match=r"dev\.jsonl but not R2/dev\.jsonl"):
        load("anli", root)


def test_adversarial_rows_and_their_originals(lay: Lay) -> None:
    rows = [
        {"idx": 5, "question": "Q?", "original_question": "q?", "sentence": "S.", "label": 0},
        {"idx": 6, "question": "Made up?", "sentence": "T.", "label": 1},
        {"idx": 7, "question": "R?", "sentence": "U.", "original_sentence": "u.", "label": 1},
    ]
    plain = [{name: value for name, value in row.items() if "original" not in name} for row in reversed(rows)]
    root = lay({"AdvGLUE/dev.json": json.dumps({"qnli": plain}), "AdvGLUE/dev_ann.json": json.dumps({"qnli": rows})})
    data = load("advglue-qnli", root)
    assert len(data["dev"]) == 3 and data["original"].skipped == 1
    attacked, original = attacked_and_original(data)
    assert attacked.texts == ("Q?", "R?") and original.texts == ("q?", "R?")
    assert attacked.pairs == ("S.", "U.") and original.pairs == ("S.", "u.")
    assert attacked.targets == original.targets == (0, 1)


def test_a_folder_without_the_task(lay: Lay) -> None:
    root = lay({"SST-2/train.tsv": "sentence\tlabel\na\t1\n"})
    with pytest.raises(DataError, match=r"neither a folder RTE nor a file of RTE .*SST-2/"):
        load("rte", root)
    with pytest.raises(DataError, match=r"SST-2 has no dev in .* has train\.tsv"):
        load("sst-2", root, splits=["train", "dev"])
    with pytest.raises(DataError, match="is not a folder"):
        load("sst-2", root / "nowhere")
    with pytest.raises(DataError, match=r"no split 'dev' here; it has train"):
        load("sst-2", root)["dev"]


def test_wrong_labels_and_scores_name_the_line(lay: Lay) -> None:
    root = lay(
        {
            "RTE/dev.tsv": "index\tsentence1\tsentence2\tlabel\n0\tA.\tB.\tentailment\n1\tC.\tD.\tneutral\n",
            "STS-B/dev.tsv": "sentence1\tsentence2\tscore\nA.\tB.\t5.01\n",
            "MNLI/dev_matched.tsv": "sentence1\tsentence2\tgold_label\nA.\tB.\t0\n",
        }
    )
    with pytest.raises(DataError, match=r"dev\.tsv, line 3: label 'neutral' is not one of RTE's"):
        load("rte", root)
    with pytest.raises(DataError, match=r"line 2: the score 5\.01 is outside STS-B's range, 0 to 5"):
        load("sts-b", root)
    with pytest.raises(DataError, match="label '0' is not one of MNLI's"):  # whose 0 it is cannot be known
        load("mnli", root)


def test_names_are_found_however_they_are_written() -> None:
    assert find_task("STS-B") is find_task("stsb") is find_task("sts_b") is TASKS["sts-b"]
    assert find_task("AdvGLUE-SST2").name == "advglue-sst-2"
    with pytest.raises(SettingError, match="did you mean 'mrpc'"):
        find_task("mrcp")


@pytest.mark.parametrize("name", TASKS)
def test_the_catalogue_is_consistent(name: str) -> None:
    task = TASKS[name]
    assert task.name == name and set(task.metrics) <= set(METRICS)
    assert (task.kind == "classes") is bool(task.labels) and (task.kind == "score") is (task.bounds is not None)
    assert set(task.rows) <= set(task.splits) and set(task.evaluation) <= set(task.splits)
    assert all(len(way) == len(task.labels) for way in task.spellings)
    assert len(task.label_index()) == len(task.labels) * (1 + len(task.spellings))
    assert task.hub is not None and set(task.hub.splits) <= set(task.splits)
    assert task.hub.columns.pair is None or task.has_pairs


def test_the_catalogue_and_the_submission_agree() -> None:
    for file in FILES.values():
        assert find_task(file.task).rows[file.split] == file.rows


class FakeSplit:
    """As much of `datasets.Dataset` as a reader needs."""

    def __init__(self, columns: dict[str, Sequence[Any]], names: Sequence[str] | None = None) -> None:
        self._columns = columns
        self.column_names = list(columns)
        self.features = {
            column: SimpleNamespace(names=list(names)) if column.endswith("label") and names else SimpleNamespace()
            for column in columns
        }

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, column: str) -> Sequence[Any]:
        return self._columns[column]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str | None], Any]:
    there: dict[tuple[str, str | None], Any] = {}

    def load_dataset(path: str, config: str | None = None, *, cache_dir: Any = None, revision: Any = None) -> Any:
        if (path, config) not in there:
            raise ConnectionError("no route to the hub")
        return there[path, config]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return there


def test_the_hub_by_name(hub: dict[tuple[str, str | None], Any]) -> None:
    names = ["contradiction", "neutral", "entailment"]  # not our order: labels go by name
    pairs = {"premise": ["A.", "B."], "hypothesis": ["C.", "D."]}
    labelled = FakeSplit({**pairs, "label": [0, 2], "idx": [0, 1]}, names)
    hub["nyu-mll/glue", "mnli"] = {
        "train": labelled,
        "validation_matched": labelled,
        "validation_mismatched": labelled,
        "test_matched": FakeSplit({**pairs, "label": [-1, -1], "idx": [0, 1]}, names),
        "test_mismatched": FakeSplit({**pairs, "label": [-1, -1], "idx": [0, 1]}, names),
    }
    data = load("mnli")
    assert data["train"].targets == (2, 0) and data["test_matched"].targets is None
    assert data["train"].pairs == ("C.", "D.") and data["train"].sources == ("nyu-mll/glue/mnli/train",)
    assert list(load("mnli", splits=["dev_matched"])) == ["dev_matched"]
    with pytest.raises(DataError, match="no dev_matched_hard on the hub"):
        load("mnli", splits=["dev_matched_hard"])


def test_the_hub_s_joined_splits_scores_and_rows_without_a_label(hub: dict[tuple[str, str | None], Any]) -> None:
    def anli(label: int) -> FakeSplit:
        return FakeSplit({"premise": ["A."], "hypothesis": ["B."], "label": [label]}, ("entailment", "neutral", "c"))

    hub["facebook/anli", None] = {f"{split}_r{n}": anli(n % 3) for split in ("train", "dev", "test") for n in (1, 2, 3)}
    assert load("anli")["dev"].targets == (1, 2, 0)
    scores = FakeSplit({"sentence1": ["A."], "sentence2": ["B."], "label": [2.5]})
    test = FakeSplit({"sentence1": ["A."], "sentence2": ["B."], "label": [-1.0]})
    hub["nyu-mll/glue", "stsb"] = {"train": scores, "validation": scores, "test": test}
    data = load("sts-b")
    assert data["dev"].targets == (2.5,) and data["test"].targets is None
    nli = ("entailment", "neutral", "contradiction")
    some = FakeSplit({"premise": ["A.", "B."], "hypothesis": ["C.", "D."], "label": [-1, 1]}, nli)
    hub["stanfordnlp/snli", None] = dict.fromkeys(("train", "validation", "test"), some)
    assert load("snli")["train"].texts == ("B.",) and load("snli")["train"].skipped == 1


def test_a_hub_out_of_reach_is_one_sentence(hub: dict[tuple[str, str | None], Any]) -> None:
    with pytest.raises(DataError, match=r"ConnectionError: no route to the hub.*give a folder"):
        load("rte")
    hub["nyu-mll/glue", "rte"] = {}
    with pytest.raises(DataError, match="is not on the hub"):
        load("rte")


real = pytest.mark.skipif(not DATA.is_dir(), reason="no real data in .data/nlu")

# rows of every split, and how many of the rows the published file has that were left out
REAL = {
    "rte": {"train": 2490, "dev": 277, "test": 3000},
    "mrpc": {"train": 3668, "dev": 408, "test": 1725},
    "cola": {"train": 8551, "dev": 1043, "test": 1063},
    "sts-b": {"train": 5749, "dev": 1500, "test": 1379},
    "sst-2": {"train": 67349, "dev": 872, "test": 1821},
    "qnli": {"train": 2000, "dev": 5463, "test": 5463},
    "qqp": {"train": 25365, "dev": 7600},
    "mnli": {"train": 12808, "dev_matched": 9815, "dev_matched_hard": 4573, "dev_mismatched_hard": 4530},
    "snli": {"train": 19999, "dev": 9842, "test": 9824, "test_hard": 3261},
    "anli-r1": {"dev": 1000, "test": 1000},
    "anli-r2": {"dev": 1000, "test": 1000},
    "anli-r3": {"dev": 1200, "test": 1200},
    "anli": {"dev": 3200, "test": 3200},
    "cr": {"all": 3775},
    "mr": {"all": 10662},
    "subj": {"all": 10000},
    "trec": {"train": 5452, "test": 500},
}
UNLABELLED = {(name, "test") for name in ("rte", "mrpc", "cola", "sts-b", "sst-2", "qnli")}


@real
@pytest.mark.parametrize("name", REAL)
def test_no_row_of_the_real_files_is_lost(name: str) -> None:
    data = load(name, DATA)
    assert {split: len(data[split]) for split in data} == REAL[name]
    for split, examples in data.items():
        assert (examples.targets is None) is ((name, split) in UNLABELLED)
        assert examples.skipped == 0
        if data.task.kind == "classes" and examples.targets is not None:
            assert set(examples.targets) == set(range(data.task.outputs))


@real
def test_the_real_adversarial_rows() -> None:
    names = [name for name in TASKS if name.startswith("advglue")]
    tasks = [load(name, DATA) for name in names]
    assert sum(len(data["dev"]) for data in tasks) == 738
    assert all(len(data["dev"]) == data.task.rows["dev"] for data in tasks)
    assert sum(len(data["original"]) for data in tasks) == 656
    for data in tasks:
        attacked, original = attacked_and_original(data)
        assert attacked.targets == original.targets
        after, before = ((rows.texts, rows.pairs or rows.texts) for rows in (attacked, original))
        assert all(now != then for now, then in zip(zip(*after, strict=True), zip(*before, strict=True), strict=True))
