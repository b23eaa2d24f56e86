"""Language understanding: tasks and their data, metrics as papers report them, submission files."""

from stackelberg.errors import needs

with needs("numpy", extra="nlu"):
    from stackelberg.errors import DataError, MissingPackageError, SubmissionError
    from stackelberg.nlu.catalogue import TASKS, find_task
    from stackelberg.nlu.encoding import Encoded, encode
    from stackelberg.nlu.examples import Examples, TaskData, hold_out
    from stackelberg.nlu.files import load_files, read_file
    from stackelberg.nlu.labels import LabelOrder, label2id, label_order, named_outputs
    from stackelberg.nlu.loading import load
    from stackelberg.nlu.metrics import METRICS, evaluate, glue_average, predicted, reported, score
    from stackelberg.nlu.robustness import attacked_and_original
    from stackelberg.nlu.submission import Submission, check_submission, submission_problems, write_submission
    from stackelberg.nlu.summary import Summary, render, summarize
    from stackelberg.nlu.task import Columns, NluTask

__all__ = [
    "METRICS",
    "TASKS",
    "Columns",
    "DataError",
    "Encoded",
    "Examples",
    "LabelOrder",
    "MissingPackageError",
    "NluTask",
    "Submission",
    "SubmissionError",
    "Summary",
    "TaskData",
    "attacked_and_original",
    "check_submission",
    "encode",
    "evaluate",
    "find_task",
    "glue_average",
    "hold_out",
    "label2id",
    "label_order",
    "load",
    "load_files",
    "named_outputs",
    "predicted",
    "read_file",
    "render",
    "reported",
    "score",
    "submission_problems",
    "summarize",
    "write_submission",
]
