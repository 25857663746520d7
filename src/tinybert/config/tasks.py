"""What a task is: GLUE's nine, or one that a table describes; and the section `tasks` of params.yaml."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, TypeAdapter

from tinybert.config.fields import (
    ConfigModel,
    HubDataset,
    LocalFolder,
    ModelSource,
    Name,
    NonEmptyStr,
    NonNegative,
    PositiveFraction,
    PositiveInt,
    Real,
    RowTokens,
    Source,
    Training,
    UniqueList,
)
from tinybert.config.students import LOGIT_LOSSES
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import read_json, write_json

TASK_FILE = "task.json"
# What a classifier is for, in transformers' words: this makes pipelines score each class by itself.
MULTILABEL: Literal["multi_label_classification"] = "multi_label_classification"
ProblemType = Literal["regression", "single_label_classification", "multi_label_classification"]
GLUE: dict[str, dict] = yaml.safe_load(Path(__file__).with_name("glue.yaml").read_text(encoding="utf-8"))
REPRODUCED = {name: entry["reproduced"] for name, entry in GLUE.items() if "reproduced" in entry}
Kind = Literal["classification", "regression", "multilabel"]  # of a task
# The metrics that a task of one's own may name; the first of its kind is the default.
METRICS_BY_KIND: dict[Kind, tuple[str, ...]] = {
    "classification": ("accuracy", "macro_f1", "f1", "matthews"),
    "regression": ("pearson", "spearman"),
    "multilabel": ("micro_f1", "macro_f1"),
}
REGRESSION_LABEL = "score"  # the name of a regression's output


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
    kind: Kind = "regression" if len(labels) == 1 else "multilabel" if problem_type == MULTILABEL else "classification"
    return Task("rows", columns, () if kind == "regression" else labels, "rows", METRICS_BY_KIND[kind][:1], kind=kind)


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


class HubTable(HubDataset):
    config: NonEmptyStr | None = None


Separator = Annotated[str, Field(min_length=1, max_length=10)]
Columns = Annotated[UniqueList[NonEmptyStr], BeforeValidator(lambda name: [name] if isinstance(name, str) else name)]


class TableData(ConfigModel):
    """The table of a task of one's own.

    Attributes:
        train: A file, or a split of `hub`; so are dev, test and unlabeled. A test split with labels is scored too.
        unlabeled: Texts without labels; only students learn from them, with the teacher's outputs as targets.
        dev_fraction: The share of train that is dev if there is no dev file.
        labels: The classes in their order; None: those of train, sorted.
        positive: The class whose F1 is the metric.
        separator: What separates the labels of a cell of text; None: cells hold lists.
        id: The column of a unique name of each row, by which predictions of a teacher are found; None: row numbers.
    """

    train: NonEmptyStr
    dev: NonEmptyStr | None = None
    test: NonEmptyStr | None = None
    unlabeled: NonEmptyStr | None = None
    dev_fraction: Annotated[Real, Field(gt=0, le=0.5)] = 0.1
    texts: Annotated[UniqueList[NonEmptyStr], Field(max_length=2)]
    label: NonEmptyStr
    kind: Kind = "classification"
    labels: Annotated[UniqueList[NonEmptyStr], Field(min_length=2)] | None = None
    metric: NonEmptyStr | None = None
    positive: NonEmptyStr | None = None
    separator: Separator | None = None
    id: NonEmptyStr | None = None
    hub: HubTable | None = None

    @property
    def unlabeled_columns(self) -> tuple[str, ...]:
        """The columns of a table without labels that are read."""
        return (*self.texts, *([self.id] if self.id else []))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the table that are read, the label last."""
        return (*self.unlabeled_columns, self.label)

    @property
    def splits(self) -> dict[str, str]:
        """The splits that are given, by name."""
        return {split: name for split in ("train", "dev", "test", "unlabeled") if (name := getattr(self, split))}

    def check(self) -> None:
        if self.label in self.texts:
            raise ValueError(f"label: is a text too (got {self.label}); fix: name the column of the labels")
        allowed = METRICS_BY_KIND[self.kind]
        if self.metric and self.metric not in allowed:
            raise ValueError(f"metric: not one of {self.kind} (got {self.metric}); allowed: {', '.join(allowed)}")
        if (self.metric == "f1") != (self.positive is not None):
            problem = f"set for metric f1, and for no other (got {self.positive} for {self.metric})"
            raise ValueError(f"positive: must be {problem}; fix: set positive, or choose another metric")
        if self.labels and (self.kind == "regression" or (self.positive and self.positive != self.labels[1])):
            raise ValueError(f"labels: a regression has none, positive is second (got {self.labels}); fix: correct it")
        labeled = filter(None, (self.train, self.dev, self.test))
        is_text = any(name.lower().removesuffix(".gz").endswith((".csv", ".tsv")) for name in labeled)
        if self.kind == "multilabel" and is_text and not self.hub and not self.separator:
            raise ValueError("separator: missing, a cell of CSV or TSV holds the labels as one text; fix: such as '|'")
        if self.separator and self.kind != "multilabel":
            fix = "remove it (only multilabel has several)"
            raise ValueError(f"separator: rows of kind {self.kind} have one label; fix: {fix}")


class PredictionFiles(ConfigModel):
    """Predictions of any teacher, in tables.

    Attributes:
        train: The file of the training rows; so are dev and test.
        dev: None if dev is a share of train: its predictions are in train's file then.
        test: The file of a test split with labels.
        id: The column of the row's id: its cell of data.id, or its number in its table, from 0.
        probabilities: A column for each class in the order of the labels, or one column of lists; so are logits.
        label: The column of the predicted class, score or classes.
        separator: As that of `data`, for `label`.
        missing: What a training row without a prediction gets: its gold label, or no place in the distillation.
    """

    train: NonEmptyStr
    dev: NonEmptyStr | None = None
    test: NonEmptyStr | None = None
    id: NonEmptyStr
    probabilities: Columns | None = None
    logits: Columns | None = None
    label: NonEmptyStr | None = None
    separator: Separator | None = None
    missing: Literal["gold", "drop"]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the predictions."""
        return self.probabilities or self.logits or (self.label or "",)

    @property
    def losses(self) -> tuple[str, ...]:
        """The losses that it has targets for: classes, gold ones too, have no logits."""
        return LOGIT_LOSSES if not self.label and self.missing == "drop" else ("hard", "prediction")

    def check(self) -> None:
        given = [key for key in ("probabilities", "logits", "label") if getattr(self, key)]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(f"must name one of probabilities, logits and label (got {found}); fix: name exactly one")


class ReadyTeacher(ModelSource):
    """A task teacher that needs no fine-tuning: in a folder, on the Hub, or its predictions alone."""

    predictions: PredictionFiles | None = None

    def check(self) -> None:
        if len([given for given in (self.folder, self.hub, self.predictions) if given is not None]) != 1:
            model = "{folder: path} or {hub: {model: name, revision: commit}}"
            raise ValueError(f"must be {model} or {{predictions: {{train, dev, id, ...}}}}")


TeacherEncoder = Annotated[
    Annotated[Literal["given", "pretrained"], Tag("[named]")] | Annotated[ModelSource, Tag("[model]")],
    Discriminator(lambda value: "[model]" if isinstance(value, (dict, ModelSource)) else "[named]"),
]


class FineTuning(Training):
    """Training of a task's teacher; `encoder`: what it starts from, by default `tasks.teacher_encoder`."""

    encoder: TeacherEncoder | None = None


class TaskSettings(ConfigModel):
    data: TableData | None
    max_length_tokens: RowTokens
    augmented_copies: Annotated[int, Field(ge=0, le=1000)]
    train_fraction: PositiveFraction
    finetuned_teacher: ReadyTeacher | None
    teacher: FineTuning
    intermediate: Training
    prediction: Training
    pruning: Training

    def check(self) -> None:
        if self.pruning.epochs == 0:
            raise ValueError("pruning.epochs: sparsity rises while training goes on (got 0); allowed: 1 or more")
        if self.teacher.epochs == 0 and self.finetuned_teacher is None:
            raise ValueError("teacher.epochs: got 0; fix: set it to 1 or more, or name a finetuned_teacher")
        predictions = self.finetuned_teacher and self.finetuned_teacher.predictions
        if predictions and self.augmented_copies:
            problem = f"finetuned_teacher has no predictions for augmented rows (got {self.augmented_copies})"
            raise ValueError(f"augmented_copies: {problem}; allowed: 0")
        if predictions and self.data and self.data.unlabeled:
            problem = f"finetuned_teacher has no predictions for these rows (got {self.data.unlabeled})"
            raise ValueError(f"data.unlabeled: {problem}; allowed: null; fix: remove it")
        if predictions and self.data and (predictions.dev is None) != (self.data.dev is None):
            problem = f"data.dev and this are files both, or both null (got {predictions.dev})"
            raise ValueError(f"finetuned_teacher.predictions.dev: {problem}; fix: change one of them")


class SyntheticTasks(ConfigModel):
    train_examples: Annotated[int, Field(ge=10, le=10**9)]  # the baselines choose their regularization on thirds
    dev_examples: PositiveInt


class Tasks(ConfigModel):
    """Settings of all tasks; every other key is a task's name with its section."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[Name, TaskSettings]

    run: UniqueList[Name]
    students: UniqueList[Name]
    source: Source
    hub: HubDataset
    local: LocalFolder
    synthetic: SyntheticTasks
    heldout_fraction: Annotated[Real, Field(ge=0, le=0.5)]
    teacher_encoder: TeacherEncoder
    teacher_cache_gb: NonNegative
    vocabulary_tokens: PositiveInt | None

    def check(self) -> None:
        for name, settings in self.__pydantic_extra__.items():
            if hasattr(type(self), name) or name == "domain":  # which is a folder of models/final
                raise ValueError(f"{name}: the name is reserved; fix: rename this task")
            if (settings.data is None) != (name in GLUE):
                fix = "GLUE's tasks take rows from tasks.source; fix: null, or another name for a task of your own"
                fix = fix if settings.data else "missing; fix: name the task's table, or one of GLUE's tasks"
                raise ValueError(f"{name}.data: {fix}")
        for task in self.run:
            if task not in self.__pydantic_extra__:
                raise ValueError(f"run: {task} has no section; fix: add tasks.{task}, or take it off the list")

    def __getitem__(self, task: str) -> TaskSettings:
        return self.__pydantic_extra__[task]


def teacher_source(tasks: Tasks, name: str) -> tuple[ModelSource, str] | None:
    """The third-party model that a task's teacher is or starts from, and its key; None if there is none.

    `tasks` may be the part that a stage declares.
    """
    settings = tasks[name]
    if ready := settings.finetuned_teacher:
        return None if ready.predictions else (ready, f"tasks.{name}.finetuned_teacher")
    key = f"tasks.{name}.teacher.encoder" if settings.teacher.encoder else "tasks.teacher_encoder"
    source = settings.teacher.encoder or tasks.teacher_encoder
    return (source, key) if isinstance(source, ModelSource) else None
