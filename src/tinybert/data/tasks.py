"""What a task is: GLUE's nine, or one that a table describes; columns, labels, metrics, and published scores."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import read_json, read_jsonl, write_json

Kind = Literal["classification", "regression", "multilabel"]


@dataclass(frozen=True)
class Task:
    """A task: GLUE's under its Hub name, or one's own under the name of its section in params.yaml.

    Attributes:
        columns: The text columns of its rows, one or two.
        labels: Class names, index = label id; none for a regression.
        title: Its name for readers.
        metrics: The first is the headline metric; "f1" is that of class 1.
        score_range: Least and greatest gold score of a regression.
        dev_splits: The splits that are scored.
        is_own: Whether its rows come from a table of the user.
        has_label_order: Whether the order of the labels means more than that of their names: it was given, or they are
            the numbers from 0.
    """

    name: str
    columns: tuple[str, ...]
    labels: tuple[str, ...]
    title: str
    metrics: tuple[str, ...] = ("accuracy",)
    score_range: tuple[float, float] | None = None
    dev_splits: tuple[str, ...] = ("dev",)
    kind: Kind = "classification"
    is_own: bool = False
    has_label_order: bool = True

    @property
    def test_splits(self) -> tuple[str, ...]:
        return tuple(split.replace("dev", "test") for split in self.dev_splits)

    @property
    def is_regression(self) -> bool:
        return self.kind == "regression"

    @property
    def is_multilabel(self) -> bool:
        return self.kind == "multilabel"

    @property
    def is_pair(self) -> bool:
        return len(self.columns) == 2

    @property
    def headline(self) -> str:
        return self.metrics[0]

    @property
    def published(self) -> dict[tuple[str, str], tuple[float, ...]]:
        """By system and metric, the published test scores as shares of 1, one for each dev split."""
        metric, *rows = PUBLISHED.get(self.name, ("",))
        systems = zip(("bert_base", "tinybert4", "tinybert6"), rows, strict=False)
        return {(system, metric): tuple(round(score / 100, 4) for score in row) for system, row in systems}


@dataclass(frozen=True)
class TrainingRows:
    """How many training rows a task has, the mean of their words, and how many a file of predictions leaves out."""

    task: Task
    count: int
    words: float
    without_prediction: int = 0


# GLUE server, test sets, in percent (Jiao et al. 2020, table 1): the metric, then BERT-base, TinyBERT4 and TinyBERT6.
PUBLISHED: dict[str, tuple] = {
    "cola": ("matthews", [52.8], [44.1], [51.1]),
    "sst2": ("accuracy", [93.4], [92.6], [93.1]),
    "mrpc": ("f1", [87.5], [86.4], [87.3]),
    "stsb": ("spearman", [85.2], [80.4], [83.7]),
    "qqp": ("f1", [71.1], [71.3], [71.6]),
    "mnli": ("accuracy", [83.9, 83.4], [82.5, 81.8], [84.6, 83.2]),
    "qnli": ("accuracy", [90.9], [87.7], [90.4]),
    "rte": ("accuracy", [67.0], [66.6], [70.0]),
}
# Dev split, headline metric: TinyBERT4 from BERT-base without augmentation (a published TinyBERT reproduction).
REPRODUCED = {"cola": 0.331, "sst2": 0.906, "mrpc": 0.683, "rte": 0.643}
TASK_FILE = "task.json"
PAIR = ("sentence1", "sentence2")
ENTAILMENT = ("entailment", "not_entailment")
ENTAILMENT3 = ("entailment", "neutral", "contradiction")
MNLI_DEV = ("dev_matched", "dev_mismatched")
RATING = ("pearson", "spearman")

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("cola", ("sentence",), ("unacceptable", "acceptable"), "CoLA", ("matthews", "accuracy")),
        Task("sst2", ("sentence",), ("negative", "positive"), "SST-2"),
        Task("mrpc", PAIR, ("not_equivalent", "equivalent"), "MRPC", ("accuracy", "f1")),
        Task("stsb", PAIR, (), "STS-B", RATING, score_range=(0.0, 5.0), kind="regression"),
        Task("qqp", ("question1", "question2"), ("not_duplicate", "duplicate"), "QQP", ("accuracy", "f1")),
        Task("mnli", ("premise", "hypothesis"), ENTAILMENT3, "MNLI", dev_splits=MNLI_DEV),
        Task("qnli", ("question", "sentence"), ENTAILMENT, "QNLI"),
        Task("rte", PAIR, ENTAILMENT, "RTE"),
        Task("wnli", PAIR, ("not_entailment", "entailment"), "WNLI"),
    )
}


def write_task(task: Task, folder: str | Path) -> None:
    """Writes task.json, which describes the task to all later stages, into an existing folder of rows."""
    write_json(Path(folder) / TASK_FILE, asdict(task))


def read_task(name: str, root: str | Path = "") -> Task:
    """The task that stage prepare_task described beside its rows; UserError if there is no such description."""
    path = Path(root, paths.task_rows(name), TASK_FILE)
    try:
        return TypeAdapter(Task).validate_python(read_json(path))
    except (OSError, ValidationError, ValueError) as error:
        wrong = "missing" if isinstance(error, FileNotFoundError) else "damaged"
        fix = f"fix: dvc repro prepare_task@{name}"
        raise UserError(f"{path.relative_to(root)}: {wrong}; stage prepare_task writes it; {fix}") from None


def read_rows(task: Task, split: str) -> list[dict]:
    """The rows of a split that stage prepare_task wrote."""
    return list(read_jsonl(paths.task_rows(task.name) / f"{split}.jsonl"))
