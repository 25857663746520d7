"""The schema of params.yaml: every key, its type, its range, and what must fit together.

Each model below is frozen and refuses unknown keys. What the keys mean, with units and sources, is
said where users read it: in params.yaml itself.
"""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, model_validator

from tinybert.config.compatibility import Shape, refuse_misfits, refuse_repeats, refuse_strangers
from tinybert.config.fields import (
    AboveZero,
    Count,
    Few,
    Name,
    NonNegative,
    Positive,
    Real,
    Section,
    Share,
    Some,
    Text,
    TupleOf,
)
from tinybert.config.students import Architecture, HubModel, ModelSource, Student, Training

TaskName = Literal["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"]


class Optimizer(Section):
    """What all training runs share."""

    weight_decay: NonNegative
    max_gradient_norm: AboveZero
    warmup_fraction: Share


class Masking(Section):
    """Masked-LM corruption."""

    rate: Annotated[Real, Field(gt=0, le=1)]
    mask_share: Share
    random_share: Share

    @model_validator(mode="after")
    def _shares_fit(self) -> "Masking":
        if self.mask_share + self.random_share > 1:
            total = self.mask_share + self.random_share
            raise ValueError(f"mask_share + random_share is {total}; at most 1 is allowed")
        return self


class LocalFolder(Section):
    folder: Text


class EmbeddedTeacher(Section):
    vocabulary_size: Annotated[int, Field(ge=200, le=10**7)]
    architecture: Architecture


class Teacher(Section):
    """Where the masked-LM teacher comes from and how long it is (pre)trained."""

    source: Literal["embedded", "hub", "local"]
    hub: HubModel
    local: LocalFolder
    embedded: EmbeddedTeacher
    pretraining: Training

    @model_validator(mode="after")
    def _embedded_is_trained(self) -> "Teacher":
        if self.source == "embedded" and self.pretraining.epochs == 0:
            raise ValueError("pretraining.epochs is 0; an embedded teacher starts from scratch and needs at least 1")
        return self


class HubCorpus(Section):
    dataset: Text
    config: Text
    split: Text
    revision: Text


class LocalFiles(Section):
    files: Some[Text]


class Corpus(Section):
    """The general corpus."""

    source: Literal["embedded", "hub", "local"]
    unit: Literal["article", "paragraph"]
    max_documents: Positive | None
    heldout_every: Annotated[int, Field(ge=2)]
    hub: HubCorpus
    local: LocalFiles


class Filter(Section):
    """Which documents belong to the domain."""

    subjects: Annotated[dict[Name, Some[Text]], Field(min_length=1)]
    matching: Literal["whole_word", "substring"]
    ignore_case: bool
    min_hits: Positive
    min_hits_per_1000_words: NonNegative


class Tokenize(Section):
    """Blocks of word pieces."""

    block_tokens: Annotated[int, Field(ge=8, le=512)]
    packing: Literal["pack", "paragraphs", "truncate"]


class Track(Section):
    """The students of a track and how they are trained."""

    students: Some[Name]
    training: Training


class LocalFile(Section):
    file: Text


class Quiz(Section):
    source: Literal["embedded", "local"]
    local: LocalFile


class Examination(Section):
    """The domain track's examination."""

    heldout_blocks: Positive
    quiz: Quiz


class GlueTask(Section):
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
    def _have_steps(self) -> "GlueTask":
        if self.pruning.epochs == 0:
            raise ValueError("pruning.epochs is 0; pruning needs at least 1 epoch for its increments")
        if self.teacher.epochs == 0 and self.finetuned_teacher is None:
            raise ValueError("teacher.epochs is 0; give it at least 1, or name a finetuned_teacher")
        return self


class HubGlue(Section):
    dataset: Text
    revision: Text


class EmbeddedGlue(Section):
    train_examples: Positive
    dev_examples: Positive


class Glue(Section):
    """The task track."""

    tasks: Some[TaskName]
    students: Some[Name]
    source: Literal["embedded", "hub", "local"]
    hub: HubGlue
    local: LocalFolder
    embedded: EmbeddedGlue
    further_seeds: TupleOf[Annotated[int, Field(ge=0, lt=2**32)]]
    kept_answers_gb: NonNegative
    cola: GlueTask | None = None
    sst2: GlueTask | None = None
    mrpc: GlueTask | None = None
    stsb: GlueTask | None = None
    qqp: GlueTask | None = None
    mnli: GlueTask | None = None
    qnli: GlueTask | None = None
    rte: GlueTask | None = None
    wnli: GlueTask | None = None

    @model_validator(mode="after")
    def _listed_tasks_have_sections(self) -> "Glue":
        for task in self.tasks:
            if getattr(self, task) is None:
                raise ValueError(f"tasks lists {task}, which has no section; add glue.{task} or take it off the list")
        return self


class WordVectors(Section):
    source: Literal["corpus", "file"]
    file: Text
    dimensions: Positive
    window_words: Few
    max_words: Positive


class Substitution(Section):
    """Words in the place of others (Jiao, algorithm 1)."""

    probability: Share
    candidates: Positive
    second_segment: bool
    keep_word: bool
    keep_partner: bool
    word_vectors: WordVectors


class Sampling(Section):
    """Masking, POS-guided replacement and n-gram sampling (Tang et al. 2019, section 4.3)."""

    mask_probability: Share
    replacement_probability: Share
    ngram_probability: Share
    longest_ngram: Positive
    pos_tagger: Literal["rules", "nltk"]

    @model_validator(mode="after")
    def _probabilities_fit(self) -> "Sampling":
        total = self.mask_probability + self.replacement_probability
        if total > 1:
            raise ValueError(f"mask_probability + replacement_probability is {total}; at most 1 is allowed")
        return self


class Augmentation(Section):
    """How training rows are varied."""

    strategy: Literal["substitution", "sampling"]
    substitution: Substitution
    sampling: Sampling


class Pruning(Section):
    """Pruning of task students."""

    sparsities_percent: Some[Annotated[int, Field(ge=1, le=99)]]
    criterion: Literal["magnitude", "movement"]
    schedule: Literal["cubic", "linear"]
    ramp_share: Annotated[Real, Field(gt=0, le=1)]


class Calibration(Section):
    examples: Positive
    batch_size: Positive
    method: Literal["minmax", "entropy", "percentile"]
    percentile: Annotated[Real, Field(gt=50, le=100)]
    smoothing: Share


class Search(Section):
    """What is sensitive and stays in floating point."""

    tolerance: NonNegative
    examples: Positive


class Latency(Section):
    batch_sizes: Some[Positive]
    length_tokens: Annotated[int, Field(ge=3, le=512)]
    dev_examples: Positive
    warmup_runs: Count
    runs: Positive
    threads: Few


class Quantization(Section):
    """INT8 models and their measurement."""

    models: Some[Name]
    calibration: Calibration
    search: Search
    latency: Latency


class Params(Section):
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
    examination: Examination
    glue: Glue
    augmentation: Augmentation
    pruning: Pruning
    quantization: Quantization

    @model_validator(mode="after")
    def _lists_fit_recipes(self) -> "Params":
        for key, names in {"general.students": self.general.students, "domain.students": self.domain.students,
                           "glue.students": self.glue.students, "glue.tasks": self.glue.tasks,
                           "seed with glue.further_seeds": (self.seed, *self.glue.further_seeds),
                           "quantization.models": self.quantization.models,
                           "pruning.sparsities_percent": self.pruning.sparsities_percent,
                           "quantization.latency.batch_sizes": self.quantization.latency.batch_sizes,
                           "glue.students, with its pruned ones,": self.task_models}.items():  # fmt: skip
            refuse_repeats(key, names)
        refuse_strangers("general.students", self.general.students, self.students, "recipes")
        for key, names in {"domain.students": self.domain.students, "glue.students": self.glue.students}.items():
            refuse_strangers(key, names, self.general.students, "general.students")
        if "teacher" in self.students:
            raise ValueError("students.teacher: teacher is the name of the teacher's model; call the student otherwise")
        if self.teacher.source == "embedded":
            shape = self.teacher.embedded.architecture
            teacher = Shape(shape.layers, shape.width, shape.heads, shape.feed_forward)
            refuse_misfits(self.used_students, teacher)
        for name in self.domain.students:
            self._need_sections(name, "domain.students", ("domain",))
        for name in self.glue.students:
            self._need_sections(name, "glue.students", ("prediction",))
            if "intermediate" not in self.students[name].model_fields_set:
                raise ValueError(
                    f"glue.students lists {name}, which does not say what students.{name}.intermediate is; "
                    "add it, null where this student skips that phase"
                )
        refuse_strangers("quantization.models", self.quantization.models, self.task_models, "the task models")
        self._need_calibration_rows()
        return self

    def _need_calibration_rows(self) -> None:
        asked, made = self.quantization.calibration.examples, self.glue.embedded.train_examples
        if self.glue.source == "embedded" and asked > made:
            raise ValueError(
                f"quantization.calibration.examples is {asked}, glue.embedded.train_examples {made}; "
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
        return tuple(f"{student}_pruned{percent}" for student in self.glue.students for percent in percents)

    @property
    def task_models(self) -> tuple[str, ...]:
        """All models of a task, by the last part of their path: the teacher, the students, the pruned ones."""
        return ("teacher", *self.glue.students, *self.pruned_students)
