"""The sections of tasks in params.yaml: tables of one's own, ready teachers, fine-tuning, and settings of all tasks."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag

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

GLUE_TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
# The metrics that a task of one's own may name; the first of its kind is the default.
METRICS_BY_KIND = {
    "classification": ("accuracy", "macro_f1", "f1", "matthews"),
    "regression": ("pearson", "spearman"),
    "multilabel": ("micro_f1", "macro_f1"),
}
REGRESSION_LABEL = "score"  # the name of a regression's output


class HubTable(HubDataset):
    config: NonEmptyStr | None = None


Separator = Annotated[str, Field(min_length=1, max_length=10)]
Columns = Annotated[UniqueList[NonEmptyStr], BeforeValidator(lambda name: [name] if isinstance(name, str) else name)]


class TableData(ConfigModel):
    """The table of a task of one's own.

    Attributes:
        train: A file, or a split of `hub`; so are dev and test. A test split with labels is scored too.
        dev_fraction: The share of train that is dev if there is no dev file.
        labels: The classes in their order; None: those of train, sorted.
        positive: The class whose F1 is the metric.
        separator: What separates the labels of a cell of text; None: cells hold lists.
        id: The column of a unique name of each row, by which predictions of a teacher are found; None: row numbers.
    """

    train: NonEmptyStr
    dev: NonEmptyStr | None = None
    test: NonEmptyStr | None = None
    dev_fraction: Annotated[Real, Field(gt=0, le=0.5)] = 0.1
    texts: Annotated[UniqueList[NonEmptyStr], Field(max_length=2)]
    label: NonEmptyStr
    kind: Literal["classification", "regression", "multilabel"] = "classification"
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
        given = {"train": self.train, "dev": self.dev, "test": self.test}
        return {split: name for split, name in given.items() if name}

    def check(self) -> None:
        if self.label in self.texts:
            raise ValueError(f"label: is a text too (got {self.label}); fix: name the column of the labels")
        allowed = METRICS_BY_KIND[self.kind]
        if self.metric and self.metric not in allowed:
            raise ValueError(f"metric: not one of {self.kind} (got {self.metric}); allowed: {', '.join(allowed)}")
        if (self.metric == "f1") != (self.positive is not None):
            problem = f"required with metric f1, not allowed otherwise (got {self.positive})"
            raise ValueError(f"positive: {problem}; fix: set both")
        if self.labels and (self.kind == "regression" or (self.positive and self.positive not in self.labels)):
            raise ValueError("labels: a regression has none, and positive is one of them; fix: correct labels")
        is_text = any(name.lower().removesuffix(".gz").endswith((".csv", ".tsv")) for name in self.splits.values())
        if self.kind == "multilabel" and is_text and not self.hub and not self.separator:
            raise ValueError("separator: missing, a cell of CSV or TSV holds the labels as one text; fix: such as '|'")
        if self.separator and self.kind != "multilabel":
            raise ValueError(f"separator: rows of kind {self.kind} have one label; fix: remove it, or set kind")


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
            raise ValueError(f"must name one of probabilities, logits and label (got {found}); fix: keep one of them")


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
            problem = f"finetuned_teacher has no predictions of augmented rows (got {self.augmented_copies})"
            raise ValueError(f"augmented_copies: {problem}; allowed: 0")
        if predictions and self.data and (predictions.dev is None) != (self.data.dev is None):
            problem = f"data.dev and this are files both, or both null (got {predictions.dev})"
            raise ValueError(f"finetuned_teacher.predictions.dev: {problem}; fix: change one of them")


RESERVED_NAMES = ("teacher", "tfidf", "static")  # the teacher and the baselines of a task


def teacher_source(task: str, settings: TaskSettings, encoder: TeacherEncoder) -> tuple[ModelSource, str] | None:
    """The third-party model that a task's teacher is or starts from, and its key; None if there is none.

    Args:
        task: Its name.
        settings: Its section.
        encoder: `tasks.teacher_encoder`.
    """
    if ready := settings.finetuned_teacher:
        return None if ready.predictions else (ready, f"tasks.{task}.finetuned_teacher")
    key = f"tasks.{task}.teacher.encoder" if settings.teacher.encoder else "tasks.teacher_encoder"
    source = settings.teacher.encoder or encoder
    return (source, key) if isinstance(source, ModelSource) else None


class SyntheticTasks(ConfigModel):
    train_examples: PositiveInt
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
            if (settings.data is None) != (name in GLUE_TASKS):
                fix = "GLUE's tasks take rows from tasks.source; fix: null, or another name for a task of your own"
                fix = fix if settings.data else "missing; fix: name the task's table, or one of GLUE's tasks"
                raise ValueError(f"{name}.data: {fix}")
        for task in self.run:
            if task not in self.__pydantic_extra__:
                raise ValueError(f"run: {task} has no section; fix: add tasks.{task}, or take it off the list")

    def __getitem__(self, task: str) -> TaskSettings:
        return self.__pydantic_extra__[task]
