"""The schema of params.yaml: every key, its type, its range, and what must fit together.

Each model below is frozen and refuses unknown keys. What the keys mean, with units and sources, is
said where users read it: in params.yaml itself.
"""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, model_validator

from tinybert.config.compatibility import Shape, check_misfits, check_repeats, check_strangers
from tinybert.config.fields import (
    AboveZero,
    ConfigModel,
    Fraction,
    ListOf,
    Name,
    NonEmptyList,
    NonEmptyStr,
    NonNegative,
    NonNegativeInt,
    PositiveInt,
    Real,
    SmallPositiveInt,
)
from tinybert.config.students import Architecture, HubModel, ModelSource, Student, Training

TaskName = Literal["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"]


class Optimizer(ConfigModel):
    """What all training runs share."""

    weight_decay: NonNegative
    max_gradient_norm: AboveZero
    warmup_fraction: Fraction


class Masking(ConfigModel):
    """Masked-LM corruption."""

    rate: Annotated[Real, Field(gt=0, le=1)]
    mask_fraction: Fraction
    random_fraction: Fraction

    @model_validator(mode="after")
    def _shares_fit(self) -> "Masking":
        if self.mask_fraction + self.random_fraction > 1:
            total = self.mask_fraction + self.random_fraction
            raise ValueError(f"mask_fraction + random_fraction is {total}; at most 1 is allowed")
        return self


class LocalFolder(ConfigModel):
    folder: NonEmptyStr


class SyntheticTeacher(ConfigModel):
    vocabulary_size: Annotated[int, Field(ge=200, le=10**7)]
    architecture: Architecture


class Teacher(ConfigModel):
    """Where the masked-LM teacher comes from and how long it is (pre)trained."""

    source: Literal["synthetic", "hub", "local"]
    hub: HubModel
    local: LocalFolder
    synthetic: SyntheticTeacher
    pretraining: Training

    @model_validator(mode="after")
    def _embedded_is_trained(self) -> "Teacher":
        if self.source == "synthetic" and self.pretraining.epochs == 0:
            raise ValueError("pretraining.epochs is 0; an synthetic teacher starts from scratch and needs at least 1")
        return self


class HubCorpus(ConfigModel):
    dataset: NonEmptyStr
    config: NonEmptyStr
    split: NonEmptyStr
    revision: NonEmptyStr


class LocalFiles(ConfigModel):
    files: NonEmptyList[NonEmptyStr]


class Corpus(ConfigModel):
    """The general corpus."""

    source: Literal["synthetic", "hub", "local"]
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
    """Sequences of word pieces."""

    sequence_tokens: Annotated[int, Field(ge=8, le=512)]
    packing: Literal["pack", "paragraphs", "truncate"]


class Track(ConfigModel):
    """The students of a track and how they are trained."""

    students: NonEmptyList[Name]
    training: Training


class LocalFile(ConfigModel):
    file: NonEmptyStr


class Quiz(ConfigModel):
    source: Literal["synthetic", "local"]
    local: LocalFile


class DomainEvaluation(ConfigModel):
    """The domain track's domain_evaluation."""

    heldout_sequences: PositiveInt
    quiz: Quiz


class TaskSettings(ConfigModel):
    """The settings of one task."""

    max_length_tokens: Annotated[int, Field(ge=8, le=512)]
    augmented_copies: Annotated[int, Field(ge=0, le=1000)]
    train_fraction: Annotated[Real, Field(gt=0, le=1)]
    finetuned_teacher: ModelSource | None
    teacher: Training
    intermediate: Training
    prediction: Training
    pruning: Training

    @model_validator(mode="after")
    def _have_steps(self) -> "TaskSettings":
        if self.pruning.epochs == 0:
            raise ValueError("pruning.epochs is 0; pruning needs at least 1 epoch for its increments")
        if self.teacher.epochs == 0 and self.finetuned_teacher is None:
            raise ValueError("teacher.epochs is 0; give it at least 1, or name a finetuned_teacher")
        return self


class HubTasks(ConfigModel):
    dataset: NonEmptyStr
    revision: NonEmptyStr


class SyntheticTasks(ConfigModel):
    train_examples: PositiveInt
    dev_examples: PositiveInt


class Tasks(ConfigModel):
    """The task track."""

    run: NonEmptyList[TaskName]
    students: NonEmptyList[Name]
    source: Literal["synthetic", "hub", "local"]
    hub: HubTasks
    local: LocalFolder
    synthetic: SyntheticTasks
    further_seeds: ListOf[Annotated[int, Field(ge=0, lt=2**32)]]
    teacher_cache_gb: NonNegative
    cola: TaskSettings | None = None
    sst2: TaskSettings | None = None
    mrpc: TaskSettings | None = None
    stsb: TaskSettings | None = None
    qqp: TaskSettings | None = None
    mnli: TaskSettings | None = None
    qnli: TaskSettings | None = None
    rte: TaskSettings | None = None
    wnli: TaskSettings | None = None

    @model_validator(mode="after")
    def _listed_tasks_have_sections(self) -> "Tasks":
        for task in self.run:
            if getattr(self, task) is None:
                raise ValueError(f"run lists {task}, which has no section; add tasks.{task} or take it off the list")
        return self


class WordVectors(ConfigModel):
    source: Literal["corpus", "file"]
    file: NonEmptyStr
    dimensions: PositiveInt
    window_words: SmallPositiveInt
    max_words: PositiveInt


class Substitution(ConfigModel):
    """Words in the place of others (Jiao, algorithm 1)."""

    probability: Fraction
    candidates: PositiveInt
    second_segment: bool
    keep_word: bool
    keep_partner: bool
    word_vectors: WordVectors


class Sampling(ConfigModel):
    """Masking, POS-guided replacement and n-gram sampling (Tang et al. 2019, section 4.3)."""

    mask_probability: Fraction
    replacement_probability: Fraction
    ngram_probability: Fraction
    longest_ngram: PositiveInt
    pos_tagger: Literal["rules", "nltk"]

    @model_validator(mode="after")
    def _probabilities_fit(self) -> "Sampling":
        total = self.mask_probability + self.replacement_probability
        if total > 1:
            raise ValueError(f"mask_probability + replacement_probability is {total}; at most 1 is allowed")
        return self


class Augmentation(ConfigModel):
    """How training rows are varied."""

    strategy: Literal["substitution", "sampling"]
    substitution: Substitution
    sampling: Sampling


class Pruning(ConfigModel):
    """Pruning of task students."""

    sparsities_percent: NonEmptyList[Annotated[int, Field(ge=1, le=99)]]
    criterion: Literal["magnitude", "movement"]
    schedule: Literal["cubic", "linear"]
    ramp_fraction: Annotated[Real, Field(gt=0, le=1)]


class Calibration(ConfigModel):
    examples: PositiveInt
    batch_size: PositiveInt
    method: Literal["minmax", "entropy", "percentile"]
    percentile: Annotated[Real, Field(gt=50, le=100)]
    smoothing: Fraction


class Search(ConfigModel):
    """What is sensitive and stays in floating point."""

    tolerance: NonNegative
    examples: PositiveInt


class Latency(ConfigModel):
    batch_sizes: NonEmptyList[PositiveInt]
    length_tokens: Annotated[int, Field(ge=3, le=512)]
    dev_examples: PositiveInt
    warmup_runs: NonNegativeInt
    runs: PositiveInt
    threads: SmallPositiveInt


class Quantization(ConfigModel):
    """INT8 models and their measurement."""

    models: NonEmptyList[Name]
    calibration: Calibration
    search: Search
    latency: Latency


class Params(ConfigModel):
    """The whole params.yaml."""

    seed: Annotated[int, Field(ge=0, lt=2**32)]
    precision: Literal["float32", "bfloat16"]
    teacher: Teacher
    masking: Masking
    optimizer: Optimizer
    corpus: Corpus
    filter: Filter
    tokenize: Tokenize
    students: Annotated[dict[Name, Student], Field(min_length=1)]
    general: Track
    domain: Track
    domain_evaluation: DomainEvaluation
    tasks: Tasks
    augmentation: Augmentation
    pruning: Pruning
    quantization: Quantization

    @model_validator(mode="after")
    def _lists_fit_recipes(self) -> "Params":
        for key, names in {"general.students": self.general.students, "domain.students": self.domain.students,
                           "tasks.students": self.tasks.students, "tasks.run": self.tasks.run,
                           "seed with tasks.further_seeds": (self.seed, *self.tasks.further_seeds),
                           "quantization.models": self.quantization.models,
                           "pruning.sparsities_percent": self.pruning.sparsities_percent,
                           "quantization.latency.batch_sizes": self.quantization.latency.batch_sizes,
                           "tasks.students, with its pruned ones,": self.task_models}.items():  # fmt: skip
            check_repeats(key, names)
        check_strangers("general.students", self.general.students, self.students, "recipes")
        for key, names in {"domain.students": self.domain.students, "tasks.students": self.tasks.students}.items():
            check_strangers(key, names, self.general.students, "general.students")
        if "teacher" in self.students:
            raise ValueError("students.teacher: teacher is the name of the teacher's model; call the student otherwise")
        if self.teacher.source == "synthetic":
            shape = self.teacher.synthetic.architecture
            teacher = Shape(shape.layers, shape.width, shape.heads, shape.feed_forward)
            check_misfits(self.used_students, teacher)
        for name in self.domain.students:
            self._need_sections(name, "domain.students", ("domain",))
        for name in self.tasks.students:
            self._need_sections(name, "tasks.students", ("prediction",))
            if "intermediate" not in self.students[name].model_fields_set:
                raise ValueError(
                    f"tasks.students lists {name}, which does not say what students.{name}.intermediate is; "
                    "add it, null where this student skips that phase"
                )
        check_strangers("quantization.models", self.quantization.models, self.task_models, "the task models")
        self._need_calibration_rows()
        return self

    def _need_calibration_rows(self) -> None:
        asked, made = self.quantization.calibration.examples, self.tasks.synthetic.train_examples
        if self.tasks.source == "synthetic" and asked > made:
            raise ValueError(
                f"quantization.calibration.examples is {asked}, tasks.synthetic.train_examples {made}; "
                "lower the one or raise the other"
            )

    def _need_sections(self, student: str, key: str, sections: Iterable[str]) -> None:
        for section in sections:
            if getattr(self.students[student], section) is None:
                raise ValueError(f"{key} lists {student}, which has no section students.{student}.{section}; add it")

    @property
    def used_students(self) -> dict[str, Student]:
        """The recipes that are trained, by name."""
        return {name: self.students[name] for name in self.general.students}

    @property
    def pruned_students(self) -> tuple[str, ...]:
        """The names of the pruned task students: <student>_pruned<percent>."""
        percents = self.pruning.sparsities_percent
        return tuple(f"{student}_pruned{percent}" for student in self.tasks.students for percent in percents)

    @property
    def task_models(self) -> tuple[str, ...]:
        """All models of a task, by the last part of their path: the teacher, the students, the pruned ones."""
        return ("teacher", *self.tasks.students, *self.pruned_students)
