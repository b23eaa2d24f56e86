"""The tasks that the library knows by name, as data.

Classes are in the order of the Hugging Face hub, which most checkpoints follow. Counts are those of the published
files; `-1` for the label of an unlabelled row is the hub's.
"""

from __future__ import annotations

from collections.abc import Mapping

from stackelberg.errors import one_of
from stackelberg.nlu.task import Columns, Hub, NluTask, Part, Parts

GLUE = "nyu-mll/glue"
NLI = ("entailment", "neutral", "contradiction")
NUMBERS = ("0", "1", "2")
SENTENCES = Columns("sentence1", "sentence2")
Splits = Mapping[str, tuple[Parts, ...]]


def _files(**splits: str) -> dict[str, tuple[Parts, ...]]:
    """Splits of one file each: names to try, separated by spaces."""
    return {split: ((Part(tuple(names.split())),),) for split, names in splits.items()}


TRAIN_DEV_TEST = _files(train="train.tsv train_*.tsv", dev="dev.tsv dev_*.tsv", test="test.tsv")


def _glue(config: str, columns: Columns) -> Hub:
    return Hub(GLUE, config, {"train": ("train",), "dev": ("validation",), "test": ("test",)}, columns)


COLA_COLUMNS = ("source", "label", "mark", "sentence")

COLA = NluTask(
    name="cola",
    title="CoLA",
    kind="classes",
    columns=Columns("sentence"),
    labels=("unacceptable", "acceptable"),
    spellings=(NUMBERS[:2],),
    metrics=("matthews",),
    folders=("CoLA",),
    splits={
        "train": ((Part(("train.tsv",), header=COLA_COLUMNS),),),
        "dev": ((Part(("dev.tsv",), header=COLA_COLUMNS),),),
        "test": ((Part(("test.tsv",)),),),
    },
    rows={"train": 8551, "dev": 1043, "test": 1063},
    hub=_glue("cola", Columns("sentence")),
)

SST2 = NluTask(
    name="sst-2",
    title="SST-2",
    kind="classes",
    columns=Columns("sentence"),
    labels=("negative", "positive"),
    spellings=(NUMBERS[:2],),
    metrics=("accuracy",),
    folders=("SST-2", "SST2"),
    splits=TRAIN_DEV_TEST,
    rows={"train": 67349, "dev": 872, "test": 1821},
    hub=_glue("sst2", Columns("sentence")),
)

_MSR = ("msr_paraphrase_train.txt",)

MRPC = NluTask(
    name="mrpc",
    title="MRPC",
    kind="classes",
    columns=Columns("#1 String", "#2 String", "Quality"),
    labels=("not_equivalent", "equivalent"),
    spellings=(NUMBERS[:2],),
    metrics=("accuracy", "f1"),
    folders=("MRPC",),
    splits={
        "train": ((Part(("train.tsv",)),), (Part(_MSR, rows="not_dev_ids"),)),
        "dev": ((Part(("dev.tsv",)),), (Part(_MSR, rows="dev_ids"),)),
        "test": ((Part(("test.tsv", "msr_paraphrase_test.txt")),),),
    },
    rows={"train": 3668, "dev": 408, "test": 1725},
    hub=_glue("mrpc", SENTENCES),
)

QQP = NluTask(
    name="qqp",
    title="QQP",
    kind="classes",
    columns=Columns("question1", "question2", "is_duplicate"),
    labels=("not_duplicate", "duplicate"),
    spellings=(NUMBERS[:2],),
    metrics=("accuracy", "f1"),
    broken_rows=True,  # the published train.tsv has some, which every loader leaves out
    folders=("QQP",),
    splits=TRAIN_DEV_TEST,
    rows={"train": 363846, "dev": 40430, "test": 390965},
    hub=_glue("qqp", Columns("question1", "question2")),
)

STSB = NluTask(
    name="sts-b",
    title="STS-B",
    kind="score",
    columns=Columns("sentence1", "sentence2", "score"),
    bounds=(0.0, 5.0),
    metrics=("pearson", "spearman"),
    folders=("STS-B", "STSB"),
    splits=TRAIN_DEV_TEST,
    rows={"train": 5749, "dev": 1500, "test": 1379},
    hub=_glue("stsb", SENTENCES),
)

MNLI = NluTask(
    name="mnli",
    title="MNLI",
    kind="classes",
    columns=Columns("sentence1", "sentence2", "gold_label"),
    labels=NLI,
    no_label="-",
    metrics=("accuracy",),
    folders=("MNLI", "multinli_1.0"),
    splits=_files(
        train="train.tsv train_*.tsv multinli_1.0_train.jsonl",
        dev_matched="dev_matched.tsv multinli_1.0_dev_matched.jsonl",
        dev_mismatched="dev_mismatched.tsv multinli_1.0_dev_mismatched.jsonl",
        dev_matched_hard="dev_matched_hard.tsv",
        dev_mismatched_hard="dev_mismatched_hard.tsv",
        test_matched="test_matched.tsv",
        test_mismatched="test_mismatched.tsv",
    ),
    rows={
        "train": 392702,
        "dev_matched": 9815,
        "dev_mismatched": 9832,
        "test_matched": 9796,
        "test_mismatched": 9847,
    },
    hub=Hub(
        GLUE,
        "mnli",
        {
            "train": ("train",),
            "dev_matched": ("validation_matched",),
            "dev_mismatched": ("validation_mismatched",),
            "test_matched": ("test_matched",),
            "test_mismatched": ("test_mismatched",),
        },
        Columns("premise", "hypothesis"),
    ),
    evaluation=("dev_matched", "dev_mismatched"),
)

QNLI = NluTask(
    name="qnli",
    title="QNLI",
    kind="classes",
    columns=Columns("question", "sentence"),
    labels=("entailment", "not_entailment"),
    metrics=("accuracy",),
    folders=("QNLI", "QNLIv2"),
    splits=TRAIN_DEV_TEST,
    rows={"train": 104743, "dev": 5463, "test": 5463},
    hub=_glue("qnli", Columns("question", "sentence")),
)

RTE = NluTask(
    name="rte",
    title="RTE",
    kind="classes",
    columns=SENTENCES,
    labels=("entailment", "not_entailment"),
    metrics=("accuracy",),
    folders=("RTE",),
    splits=TRAIN_DEV_TEST,
    rows={"train": 2490, "dev": 277, "test": 3000},
    hub=_glue("rte", SENTENCES),
)

WNLI = NluTask(
    name="wnli",
    title="WNLI",
    kind="classes",
    columns=SENTENCES,
    labels=("not_entailment", "entailment"),
    spellings=(NUMBERS[:2],),
    metrics=("accuracy",),
    folders=("WNLI",),
    splits=TRAIN_DEV_TEST,
    rows={"train": 635, "dev": 71, "test": 146},
    hub=_glue("wnli", SENTENCES),
)

AX = NluTask(
    name="ax",
    title="AX",
    kind="classes",
    columns=Columns("sentence1", "sentence2"),
    labels=NLI,
    metrics=("matthews",),
    folders=("AX", "diagnostic"),
    splits=_files(test="AX.tsv diagnostic.tsv test.tsv"),
    rows={"test": 1104},
    hub=Hub(GLUE, "ax", {"test": ("test",)}, Columns("premise", "hypothesis")),
    evaluation=("test",),
)

SNLI = NluTask(
    name="snli",
    title="SNLI",
    kind="classes",
    columns=Columns("sentence1", "sentence2", "gold_label"),
    labels=NLI,
    no_label="-",
    metrics=("accuracy",),
    folders=("SNLI", "snli_1.0"),
    splits=_files(
        train="train.tsv train_*.tsv snli_1.0_train.jsonl snli_1.0_train.txt",
        dev="dev.tsv snli_1.0_dev.jsonl snli_1.0_dev.txt",
        test="test.tsv snli_1.0_test.jsonl snli_1.0_test.txt",
        test_hard="snli_1.0_test_hard.jsonl",
    ),
    rows={"train": 549367, "dev": 9842, "test": 9824, "test_hard": 3261},
    hub=Hub(
        "stanfordnlp/snli",
        None,
        {"train": ("train",), "dev": ("validation",), "test": ("test",)},
        Columns("premise", "hypothesis"),
    ),
)

ANLI_ROUNDS = {"r1": (16946, 1000, 1000), "r2": (45460, 1000, 1000), "r3": (100459, 1200, 1200)}
ANLI_COLUMNS = Columns("context", "hypothesis")


def _anli(name: str, rounds: tuple[str, ...]) -> NluTask:
    """One round, or all of them joined, as the paper's "All" column is."""
    splits = ("train", "dev", "test")
    return NluTask(
        name=name,
        title=name.upper().replace("-", " "),
        kind="classes",
        columns=ANLI_COLUMNS,
        labels=NLI,
        spellings=(("e", "n", "c"),),
        metrics=("accuracy",),
        folders=("ANLI", "anli_v1.0", "anli_v0.1"),
        splits={split: (tuple(Part((f"{r.upper()}/{split}.jsonl",)) for r in rounds),) for split in splits},
        rows={split: sum(ANLI_ROUNDS[r][column] for r in rounds) for column, split in enumerate(splits)},
        hub=Hub(
            "facebook/anli",
            None,
            {split: tuple(f"{split}_{r}" for r in rounds) for split in splits},
            Columns("premise", "hypothesis"),
        ),
    )


ANLI = (*(_anli(f"anli-{r}", (r,)) for r in ANLI_ROUNDS), _anli("anli", tuple(ANLI_ROUNDS)))


def _advglue(base: NluTask, key: str, config: str, texts: tuple[str, str | None], rows: int) -> NluTask:
    """Adversarial rows for a task of GLUE: `dev` after the attack, `original` before it, matched by id."""
    columns = Columns(*texts, id="idx")
    return NluTask(
        name=f"advglue-{key}".replace("sst2", "sst-2"),
        title=f"AdvGLUE {base.title}{'-mm' if key.endswith('mm') else ''}",
        kind="classes",
        columns=columns,
        labels=base.labels,
        spellings=(NUMBERS[: len(base.labels)],),
        metrics=base.metrics,
        folders=("AdvGLUE", "adv_glue"),
        splits={
            "dev": ((Part(("dev.json", "dev_ann.json"), key=key),),),
            "original": ((Part(("dev_ann.json",), key=key, rows="originals"),),),
        },
        rows={"dev": rows},
        hub=Hub("AI-Secure/adv_glue", f"adv_{config}", {"dev": ("validation",)}, columns),
    )


ADVGLUE = (
    _advglue(SST2, "sst2", "sst2", ("sentence", None), 148),
    _advglue(QQP, "qqp", "qqp", ("question1", "question2"), 78),
    _advglue(MNLI, "mnli", "mnli", ("premise", "hypothesis"), 121),
    _advglue(MNLI, "mnli-mm", "mnli_mismatched", ("premise", "hypothesis"), 162),
    _advglue(QNLI, "qnli", "qnli", ("question", "sentence"), 148),
    _advglue(RTE, "rte", "rte", ("sentence1", "sentence2"), 81),
)

LABEL_TEXT = Columns("text", label="label_text")
TRAIN_TEST = {"train": ("train",), "test": ("test",)}


def _probing(
    name: str,
    labels: tuple[str, ...],
    codes: tuple[tuple[str, ...], ...],
    splits: Splits,
    rows: Mapping[str, int],
    hub: Hub,
) -> NluTask:
    return NluTask(
        name=name,
        title=name.upper(),
        kind="classes",
        columns=Columns("text"),
        labels=labels,
        spellings=codes,
        metrics=("accuracy",),
        folders=(name.upper(),),
        splits=splits,
        rows=rows,
        hub=hub,
        evaluation=("test",) if "test" in splits else ("all",),
    )


ALL = _files(all="all.tsv")

PROBING = (
    _probing(
        "cr",
        ("negative", "positive"),
        (NUMBERS[:2],),
        ALL,
        {"all": 3775},
        Hub("SetFit/CR", None, {"all": ("train", "test")}, LABEL_TEXT),
    ),
    _probing(
        "mr",
        ("negative", "positive"),
        (NUMBERS[:2], ("neg", "pos")),
        ALL,
        {"all": 10662},
        Hub(
            "cornell-movie-review-data/rotten_tomatoes",
            None,
            {"all": ("train", "validation", "test")},
            Columns("text"),
        ),
    ),
    _probing(
        "subj",
        ("subjective", "objective"),
        (NUMBERS[:2],),
        ALL,
        {"all": 10000},
        Hub("SetFit/subj", None, {"all": ("train", "test")}, LABEL_TEXT),
    ),
    _probing(
        "trec",
        ("description", "entity", "abbreviation", "human", "location", "number"),
        (("0", "1", "2", "3", "4", "5"), ("DESC", "ENTY", "ABBR", "HUM", "LOC", "NUM")),
        _files(train="train.tsv", test="test.tsv"),
        {"train": 5452, "test": 500},
        # the dataset itself is a script, which `datasets` 4 no longer runs: its converted files
        Hub("CogComp/trec", None, TRAIN_TEST, Columns("text", label="coarse_label"), "refs/convert/parquet"),
    ),
)

TASKS: Mapping[str, NluTask] = {
    task.name: task
    for task in (COLA, SST2, MRPC, QQP, STSB, MNLI, QNLI, RTE, WNLI, AX, SNLI, *ANLI, *ADVGLUE, *PROBING)
}


def find_task(name: str) -> NluTask:
    """The task of that name, however it is capitalised and hyphenated: `STS-B`, `stsb` and `sts_b` are one."""
    spelled = {_plain(known): known for known in TASKS}
    if _plain(name) not in spelled:
        one_of("task", name, TASKS)
    return TASKS[spelled[_plain(name)]]


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
