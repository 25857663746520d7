"""The schema of params.yaml: every key, its type and range, and what must fit together.

params.yaml itself says what the keys mean, with units and sources.
"""

import re
from collections.abc import Collection
from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag

from tinybert.config.fields import (
    AboveZero,
    Architecture,
    ConfigModel,
    Fraction,
    HubModel,
    ListOf,
    ModelSource,
    Name,
    NonEmptyList,
    NonEmptyStr,
    NonNegative,
    NonNegativeInt,
    Percent,
    PositiveFraction,
    PositiveInt,
    Real,
    RowTokens,
    Seed,
    SmallPositiveInt,
    Source,
    Training,
    UniqueList,
    UniqueOrEmpty,
)
from tinybert.config.students import LOGIT_LOSSES, TASK_PHASES, Student, check_students, training_of
from tinybert.pipeline.errors import UserError

GLUE_TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
Kind = Literal["classification", "regression", "multilabel"]  # of a task
# The metrics that a task of one's own may name; the first of its kind is the default.
METRICS_BY_KIND: dict[Kind, tuple[str, ...]] = {
    "classification": ("accuracy", "macro_f1", "f1", "matthews"),
    "regression": ("pearson", "spearman"),
    "multilabel": ("micro_f1", "macro_f1"),
}
REGRESSION_LABEL = "score"  # the name of a regression's output
RESERVED_NAMES = ("teacher", "untrained", "tfidf", "static")  # not for students: reports have them for references


class LocalFolder(ConfigModel):
    folder: NonEmptyStr


class LocalFile(ConfigModel):
    file: NonEmptyStr


class LocalFiles(ConfigModel):
    files: NonEmptyList[NonEmptyStr]


class HubDataset(ConfigModel):
    dataset: NonEmptyStr
    revision: NonEmptyStr


class Optimizer(ConfigModel):
    weight_decay: NonNegative
    max_gradient_norm: AboveZero
    warmup_fraction: Fraction


class Masking(ConfigModel):
    """Masked-LM corruption: the share of tokens that is predicted, and what the model sees in their place."""

    rate: PositiveFraction
    mask_fraction: Fraction
    random_fraction: Fraction

    def check(self) -> None:
        if (total := self.mask_fraction + self.random_fraction) > 1:
            raise ValueError(f"mask_fraction + random_fraction must be at most 1 (got {total})")


class SyntheticTeacher(ConfigModel):
    """A teacher that is pretrained here from scratch, and the size of its tokenizer."""

    vocabulary_size: Annotated[int, Field(ge=200, le=10**7)]
    architecture: Architecture


class TeacherSettings(ConfigModel):
    source: Source
    hub: HubModel
    local: LocalFolder
    synthetic: SyntheticTeacher
    pretraining: Training

    def check(self) -> None:
        if self.source == "synthetic" and self.pretraining.epochs == 0:
            raise ValueError("pretraining.epochs: a synthetic teacher starts from scratch (got 0); allowed: 1 or more")


class HubCorpus(HubDataset):
    config: NonEmptyStr
    split: NonEmptyStr


class Corpus(ConfigModel):
    source: Source
    unit: Literal["article", "paragraph"]
    max_documents: PositiveInt | None
    heldout_every: Annotated[int, Field(ge=2)]
    hub: HubCorpus
    local: LocalFiles


class Filter(ConfigModel):
    """Which documents belong to the domain."""

    subjects: Annotated[dict[Name, NonEmptyList[NonEmptyStr]], Field(min_length=1)]
    matching: Literal["whole_word", "substring"]
    ignore_case: bool
    min_hits: PositiveInt
    min_hits_per_1000_words: NonNegative


class Tokenize(ConfigModel):
    """How documents become fixed-length token sequences."""

    sequence_tokens: RowTokens
    packing: Literal["pack", "paragraphs", "truncate"]


class Track(ConfigModel):
    """The students of general or domain distillation and how they are trained."""

    students: UniqueList[Name]
    training: Training


class DomainTrack(Track):
    """Domain distillation; without students there is none."""

    students: UniqueOrEmpty[Name]


class Quiz(ConfigModel):
    source: Literal["synthetic", "local"]
    local: LocalFile


class DomainEvaluation(ConfigModel):
    heldout_sequences: PositiveInt
    quiz: Quiz


class WordVectorSettings(ConfigModel):
    """Where the neighbors of words of several tokens come from."""

    source: Literal["corpus", "file"]
    file: NonEmptyStr
    dimensions: PositiveInt
    window_words: SmallPositiveInt
    max_words: PositiveInt


class Substitution(ConfigModel):
    """Word substitution (TinyBERT, algorithm 1)."""

    probability: Fraction
    candidates: PositiveInt
    stop_words: NonEmptyStr
    second_segment: bool
    word_vectors: WordVectorSettings


class Sampling(ConfigModel):
    """Masking, POS-guided replacement and n-gram sampling (Tang et al. 2019, section 4.3)."""

    mask_probability: Fraction
    replacement_probability: Fraction
    ngram_probability: Fraction
    longest_ngram: PositiveInt
    pos_tagger: Literal["rules", "nltk", "off"]

    def check(self) -> None:
        if (total := self.mask_probability + self.replacement_probability) > 1:
            raise ValueError(f"mask_probability + replacement_probability must be at most 1 (got {total})")


class Augmentation(ConfigModel):
    strategy: Literal["substitution", "sampling"]
    substitution: Substitution
    sampling: Sampling


# --- tasks: tables of one's own, ready teachers, training, and settings of all tasks ----------------------------------


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
        given = {"train": self.train, "dev": self.dev, "test": self.test, "unlabeled": self.unlabeled}
        return {split: name for split, name in given.items() if name}

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
            if (settings.data is None) != (name in GLUE_TASKS):
                fix = "GLUE's tasks take rows from tasks.source; fix: null, or another name for a task of your own"
                fix = fix if settings.data else "missing; fix: name the task's table, or one of GLUE's tasks"
                raise ValueError(f"{name}.data: {fix}")
        for task in self.run:
            if task not in self.__pydantic_extra__:
                raise ValueError(f"run: {task} has no section; fix: add tasks.{task}, or take it off the list")

    def __getitem__(self, task: str) -> TaskSettings:
        return self.__pydantic_extra__[task]


def teacher_source(tasks: Tasks, name: str) -> tuple[ModelSource, str] | None:
    """The third-party model that a task's teacher is or starts from, and its key; None if there is none."""
    settings = tasks[name]
    if ready := settings.finetuned_teacher:
        return None if ready.predictions else (ready, f"tasks.{name}.finetuned_teacher")
    key = f"tasks.{name}.teacher.encoder" if settings.teacher.encoder else "tasks.teacher_encoder"
    source = settings.teacher.encoder or tasks.teacher_encoder
    return (source, key) if isinstance(source, ModelSource) else None


class Pruning(ConfigModel):
    """Unstructured pruning of task students, none without a percent; sparsity rises along a cubic ramp."""

    sparsities_percent: UniqueOrEmpty[Percent]
    ramp_fraction: PositiveFraction


class Calibration(ConfigModel):
    """The training examples that set the ranges of activations (minimum to maximum), and their smoothing."""

    examples: PositiveInt
    batch_size: PositiveInt
    smoothing: Fraction


class Latency(ConfigModel):
    batch_sizes: UniqueList[PositiveInt]
    length_tokens: Annotated[int, Field(ge=3, le=512)]
    dev_examples: PositiveInt
    warmup_runs: NonNegativeInt
    runs: PositiveInt
    threads: SmallPositiveInt


class Quantization(ConfigModel):
    """INT8 models; `exclude` holds patterns (*, ?) of names of ONNX nodes that stay in float.

    The chosen variant's score may be at most `max_score_drop` below FP32's; None: any loss is accepted.
    """

    models: UniqueList[Name]
    method: Literal["smoothed", "published"]
    calibration: Calibration
    exclude: ListOf[NonEmptyStr]
    max_score_drop: Fraction | None
    latency: Latency

    def check(self) -> None:
        if self.exclude and self.method == "published":
            raise ValueError("exclude: method published takes all nodes; fix: [], or method smoothed")


class Params(ConfigModel):
    """All of params.yaml."""

    language: NonEmptyStr
    seed: Seed
    seeds: UniqueList[Seed]
    precision: Literal["float32", "bfloat16"]
    teacher: TeacherSettings
    masking: Masking
    optimizer: Optimizer
    corpus: Corpus
    filter: Filter
    tokenize: Tokenize
    students: Annotated[dict[Name, Student], Field(min_length=1)]
    general: Track
    domain: DomainTrack
    domain_evaluation: DomainEvaluation
    tasks: Tasks
    augmentation: Augmentation
    pruning: Pruning
    quantization: Quantization

    def check(self) -> None:
        for name in RESERVED_NAMES:
            if name in self.students:
                raise ValueError(f"students.{name}: the name is reserved; fix: rename this student")
        if self.seed not in self.seeds:
            raise ValueError(f"seeds: must contain seed {self.seed} (got {', '.join(map(str, self.seeds))})")
        self._check_names()
        self._check_language()
        if self.teacher.source == "synthetic":
            check_students(self.used_students, self.teacher.synthetic.architecture)
        self._check_stages()
        self._check_published()
        tasks = {name: self.tasks[name] for name in self.tasks.run}
        encoders = {f"tasks.{name}.teacher.encoder": task.teacher.encoder for name, task in tasks.items()}
        for key, encoder in {"tasks.teacher_encoder": self.tasks.teacher_encoder, **encoders}.items():
            if self.teacher.source == "synthetic" and encoder == "given":
                raise ValueError(f"{key}: a synthetic teacher starts from scratch (got given); allowed: pretrained")
        for name, task in tasks.items():
            if (ready := task.finetuned_teacher) and ready.predictions:
                key = f"tasks.{name}.finetuned_teacher.predictions"
                self.check_row_teacher(key, "files of predictions", ready.predictions.losses)
                if name == "mnli":
                    raise ValueError(f"{key}: mnli has two dev splits; allowed: tasks with one; fix: null")

    def check_row_teacher(self, key: str, teacher: str, losses: Collection[str]) -> None:
        """Checks that students and stages only read outputs for rows of a task teacher; UserError if one reads more.

        Args:
            key: That of the teacher.
            teacher: What it is, such as "a roberta with its own vocabulary".
            losses: Those that it can give targets for.
        """
        if "teacher" in self.quantization.models:
            problem = f"teacher cannot be exported: {key} names {teacher}"
            raise UserError(f"quantization.models: {problem}; allowed: students; fix: remove teacher from the list")
        for name in self.tasks.students:
            if self.students[name].init.per_task:
                problem = f"no layers to start from: {key} names {teacher} (got true)"
                raise UserError(f"students.{name}.init.per_task: {problem}; allowed: false; fix: a BERT as teacher")
            for stage in TASK_PHASES:
                section = self.students[name].stages.get(stage)
                if lacking := [loss for loss in section.active_losses if loss not in losses] if section else []:
                    problem = f"no targets for {lacking[0]}: {key} names {teacher} (got {lacking[0]})"
                    fix = f", or set students.{name}.intermediate to null" * (stage == "intermediate")
                    allowed = f"allowed: {', '.join(losses)}; fix: use these{fix}"
                    raise UserError(f"students.{name}.{stage}.losses: {problem}; {allowed}")

    def _check_language(self) -> None:
        """Synthetic texts, and the built-in data of augmentation that tasks use, are English."""
        if self.language == "en":
            return
        if not re.fullmatch("[a-z]{2,3}|multilingual", self.language):
            raise ValueError(f"language: no code (got {self.language}); allowed: two or three letters of ISO 639, "
                             f"such as en, or multilingual")  # fmt: skip
        sources = {"teacher": self.teacher.source} | ({"corpus": self.corpus.source} if self.reads_text else {})
        sources |= {"tasks": self.tasks.source} if set(self.tasks.run) & set(GLUE_TASKS) else {}
        sources |= {"domain_evaluation.quiz": self.domain_evaluation.quiz.source} if self.domain.students else {}
        for section, source in sources.items():
            if source == "synthetic":
                raise ValueError(f"{section}.source: synthetic texts are English (got language {self.language}); "
                                 f"allowed: your own; fix: bring some, or set language to en")  # fmt: skip
        if not self.augments:
            return
        found, augmentation = f"is for English (got language {self.language})", self.augmentation
        if augmentation.strategy == "substitution" and augmentation.substitution.stop_words == "english":
            fix = "allowed: off, or a file of words that are not replaced; fix: name one"
            raise ValueError(f"augmentation.substitution.stop_words: english {found}; {fix}")
        if augmentation.strategy == "sampling" and (tagger := augmentation.sampling.pos_tagger) != "off":
            fix = "allowed: off, which replaces no word; fix: set it, or take strategy substitution"
            raise ValueError(f"augmentation.sampling.pos_tagger: {tagger} {found}; {fix}")

    def _check_names(self) -> None:
        """Lists refer to existing students and tasks."""
        general, models = self.general.students, self.task_models
        for key, names, known in (
            ("general.students", general, tuple(self.students)),
            ("domain.students", self.domain.students, general),
            ("tasks.students", self.tasks.students, general),
            ("quantization.models", self.quantization.models, models),
        ):
            for name in names:
                if name not in known:
                    raise ValueError(f"{key}: {name} is unknown; allowed: {', '.join(known)}")
        for name in self.tasks.students:
            if models.count(name) > 1:
                raise ValueError(f"tasks.students: {name} is also the name of a pruned student; fix: rename it")

    def _check_stages(self) -> None:
        """Students have the sections of the stages that they are listed for."""
        listed = [("domain", "domain", name) for name in self.domain.students]
        listed += [("tasks", "prediction", name) for name in self.tasks.students]
        for track, stage, name in listed:
            if getattr(self.students[name], stage) is None:
                raise ValueError(f"{track}.students: {name} has no section students.{name}.{stage}; fix: add it")
            # DVC reads the key, so it may not be absent.
            if track == "tasks" and "intermediate" not in self.students[name].model_fields_set:
                raise ValueError(f"students.{name}.intermediate: missing; fix: add it, or null to skip that phase")
        least = min(self.pruning.sparsities_percent, default=100)
        for name in self.tasks.students:
            pruning = getattr(self.students[name].intermediate, "pruning", None)
            for task in self.tasks.run if pruning else ():
                if not training_of(self, name, "intermediate", task=task).epochs:
                    problem = f"{task} has 0 epochs of phase 1; fix: raise its epochs, or remove pruning"
                    raise ValueError(f"students.{name}.intermediate.pruning: {problem}")
            if pruning and least < pruning.percent:
                problem = f"below {name}'s {pruning.percent} in phase 1 (got {least}); allowed: that or more"
                raise ValueError(f"pruning.sparsities_percent: {problem}; fix: raise it, or prune less in phase 1")

    def _check_published(self) -> None:
        """ONNX Runtime's quantizer, method published, is for BERT only."""
        for model in self.quantization.models if self.quantization.method == "published" else ():
            name = model if model in self.students else model.rpartition("_pruned")[0]
            if model != "teacher" and self.students[name].architecture.kind == "bilstm":
                problem = f"published supports BERT only (got the BiLSTM {model}); allowed: smoothed"
                fix = f"use smoothed, or remove {model} from quantization.models"
                raise ValueError(f"quantization.method: {problem}; fix: {fix}")

    @property
    def augments(self) -> bool:
        """Whether a task has augmented rows."""
        return any(self.tasks[task].augmented_copies for task in self.tasks.run)

    @property
    def reads_text(self) -> bool:
        """Whether the tokenizer or a model that is used may depend on the corpus."""
        run = [settings for task in self.tasks.run if not (settings := self.tasks[task]).finetuned_teacher]
        starts = [settings.teacher.encoder or self.tasks.teacher_encoder for settings in run]
        used = self.used_students.values()
        copied = any(student.init.teacher and not student.init.per_task for student in used)
        students = self.domain.students or copied or any(student.general for student in used)
        return bool(self.teacher.source == "synthetic" or self.augments or students or "pretrained" in starts)

    @property
    def used_students(self) -> dict[str, Student]:
        """The students that are trained, by name."""
        return {name: self.students[name] for name in self.general.students}

    @property
    def task_models(self) -> tuple[str, ...]:
        """All models of a task: teacher, students, and the pruned ones, <student>_pruned<percent>."""
        students, percents = self.tasks.students, self.pruning.sparsities_percent
        return ("teacher", *students, *(f"{student}_pruned{percent}" for student in students for percent in percents))
