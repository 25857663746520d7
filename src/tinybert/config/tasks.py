"""What a task is: GLUE's nine, or one that a table describes; columns, labels, metrics, and published scores."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import yaml
from pydantic import TypeAdapter

from tinybert.config.schema import METRICS_BY_KIND, REGRESSION_LABEL, Kind
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import read_json, write_json

TASK_FILE = "task.json"
# What a classifier is for, in transformers' words: this makes pipelines score each class by itself.
MULTILABEL: Literal["multi_label_classification"] = "multi_label_classification"
ProblemType = Literal["regression", "single_label_classification", "multi_label_classification"]
GLUE: dict[str, dict] = yaml.safe_load(Path(__file__).with_name("glue.yaml").read_text(encoding="utf-8"))
REPRODUCED = {name: entry["reproduced"] for name, entry in GLUE.items() if "reproduced" in entry}


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
        has_label_order: Whether the order of the labels means more than that of their names: given, or 0, 1, 2, ...
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
    def outputs(self) -> tuple[str, ...]:
        """The names of a model's outputs: the classes, or a single name for a regression."""
        return self.labels or (REGRESSION_LABEL,)

    @property
    def is_regression(self) -> bool:
        return self.kind == "regression"

    @property
    def is_multilabel(self) -> bool:
        return self.kind == "multilabel"

    @property
    def problem_type(self) -> ProblemType | None:
        """config.json's problem_type of a multilabel task; None: `save_model` derives it from the labels."""
        return MULTILABEL if self.is_multilabel else None

    @property
    def is_pair(self) -> bool:
        return len(self.columns) == 2

    @property
    def headline(self) -> str:
        return self.metrics[0]

    @property
    def published(self) -> dict[tuple[str, str], tuple[float, ...]]:
        """By system and metric, the published test scores as shares of 1, one for each dev split."""
        scores = dict(GLUE.get(self.name, {}).get("published", {}))
        metric = scores.pop("metric", "")
        return {(system, metric): tuple(round(score / 100, 4) for score in row) for system, row in scores.items()}


@dataclass(frozen=True)
class TrainingRows:
    """How many training rows a task has, the mean of their words, and how many a file of predictions leaves out."""

    task: Task
    count: int
    words: float
    without_prediction: int = 0
    unlabeled: int = 0  # further rows, of task distillation only


TASK_TYPE = TypeAdapter(Task)
TASKS = {name: TASK_TYPE.validate_python({"name": name} | entry["task"]) for name, entry in GLUE.items()}


def task_of(labels: tuple[str, ...], problem_type: str | None, columns: tuple[str, ...]) -> Task:
    """A classifier's task, named "rows", by the names of its outputs and config.json's problem_type."""
    if len(labels) == 1:
        return Task("rows", columns, (), "rows", METRICS_BY_KIND["regression"][:1], kind="regression")
    kind: Kind = "multilabel" if problem_type == MULTILABEL else "classification"
    return Task("rows", columns, labels, "rows", METRICS_BY_KIND[kind][:1], kind=kind)


def write_task(task: Task, folder: str | Path) -> None:
    """Writes task.json, which describes the task to all later stages, into an existing folder of rows."""
    write_json(Path(folder) / TASK_FILE, asdict(task))


def read_task(name: str, root: str | Path = "") -> Task:
    """The task that stage prepare_task described beside its rows; UserError if there is no such description."""
    path = Path(root, paths.task_rows(name), TASK_FILE)
    try:
        return TASK_TYPE.validate_python(read_json(path))
    except (OSError, ValueError) as error:
        wrong = "missing" if isinstance(error, FileNotFoundError) else "damaged"
        fix = f"fix: dvc repro prepare_task@{name}"
        raise UserError(f"{path.relative_to(root)}: {wrong}; stage prepare_task writes it; {fix}") from None
