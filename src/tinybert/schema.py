"""The schema of params.yaml: every key, its type, its range, and what must fit together.

Each model below is frozen and refuses unknown keys. What the keys mean, with units and sources, is
said where users read it: in params.yaml itself.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from tinybert.fitness import refuse_misfits, refuse_repeats, refuse_strangers

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Real = Annotated[float, Field(allow_inf_nan=False)]
NonNegative = Annotated[Real, Field(ge=0)]
AboveZero = Annotated[Real, Field(gt=0)]
Share = Annotated[Real, Field(ge=0, le=1)]
Text = Annotated[str, Field(min_length=1)]
# A name becomes part of stage names and paths.
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
TaskName = Literal["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"]
LAYER_MAPS = ("uniform", "top", "bottom")
LossName = Literal["hard", "prediction", "attention", "hidden", "embedding"]


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _tuple_of(item: Any, **limits: Any) -> Any:
    return Annotated[tuple[item, ...], BeforeValidator(_as_tuple), Field(**limits)]


def _layer_map(value: Any) -> str | tuple[int, ...]:
    """Checked before the union of types, which would tell each mistake twice."""
    if value in LAYER_MAPS:
        return value
    if isinstance(value, list) and value and all(type(layer) is int and layer >= 1 for layer in value):
        return tuple(value)
    raise ValueError(f"must be {', '.join(LAYER_MAPS)} or a list: a teacher layer, from 1, for each student layer")


class Section(BaseModel):
    """A part of the tree: frozen, no unknown keys, no silent conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Training(Section):
    """Length and speed of one training run."""

    epochs: Count
    max_steps: Positive | None
    batch_size: Positive
    learning_rate: AboveZero


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


class Architecture(Section):
    """The shape of a BERT."""

    layers: Positive
    width: Positive
    heads: Positive
    feed_forward: Positive
    dropout: Annotated[Real, Field(ge=0, lt=1)]

    @model_validator(mode="after")
    def _heads_divide_width(self) -> "Architecture":
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is no multiple of {self.heads} heads; change width or heads")
        return self


class HubModel(Section):
    model: Text
    revision: Text


class LocalFolder(Section):
    folder: Text


class EmbeddedTeacher(Section):
    vocabulary_size: Annotated[int, Field(ge=200)]
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
    files: _tuple_of(Text, min_length=1)


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

    subjects: Annotated[dict[Name, _tuple_of(Text, min_length=1)], Field(min_length=1)]
    matching: Literal["whole_word", "substring"]
    ignore_case: bool
    min_hits: Positive
    min_hits_per_1000_words: NonNegative


class Tokenize(Section):
    """Blocks of word pieces."""

    block_tokens: Annotated[int, Field(ge=8, le=512)]
    packing: Literal["pack", "paragraphs", "truncate"]


class StageLosses(Section):
    """What one distillation stage asks of a student: λ for each loss."""

    losses: Annotated[dict[LossName, NonNegative], Field(min_length=1)]
    temperature: AboveZero | None = None

    @model_validator(mode="after")
    def _some_loss_and_its_temperature(self) -> "StageLosses":
        if not any(self.losses.values()):
            raise ValueError("every λ of losses is 0; at least one must be above 0")
        if self.losses.get("prediction") and self.temperature is None:
            raise ValueError("temperature is missing; the prediction loss needs one, such as 2.0")
        return self


class Student(Section):
    """A recipe: architecture, start, map, and what each stage imitates."""

    architecture: Architecture
    start: Text
    layer_map: Annotated[str | tuple[int, ...], BeforeValidator(_layer_map)]
    projection: Literal["shared", "per_layer"]
    general: StageLosses
    domain: StageLosses | None = None
    intermediate: StageLosses | None = None
    prediction: StageLosses | None = None

    @model_validator(mode="after")
    def _map_fits_layers(self) -> "Student":
        if isinstance(self.layer_map, tuple) and len(self.layer_map) != self.architecture.layers:
            raise ValueError(
                f"layer_map lists {len(self.layer_map)} teacher layers; "
                f"one for each of the {self.architecture.layers} student layers is needed"
            )
        return self


class Track(Section):
    """The students of a track and how they are trained."""

    students: _tuple_of(Name, min_length=1)
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
    augmented_copies: Count
    teacher: Training
    intermediate: Training
    prediction: Training
    pruning: Training

    @model_validator(mode="after")
    def _pruning_has_steps(self) -> "GlueTask":
        if self.pruning.epochs == 0:
            raise ValueError("pruning.epochs is 0; pruning needs at least 1 epoch for its increments")
        return self


class HubGlue(Section):
    dataset: Text
    revision: Text


class EmbeddedGlue(Section):
    train_examples: Positive
    dev_examples: Positive


class Glue(Section):
    """The task track."""

    tasks: _tuple_of(TaskName, min_length=1)
    students: _tuple_of(Name, min_length=1)
    source: Literal["embedded", "hub", "local"]
    hub: HubGlue
    local: LocalFolder
    embedded: EmbeddedGlue
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
    window_words: Positive
    max_words: Positive


class Augmentation(Section):
    """Data augmentation (Jiao, algorithm 1)."""

    probability: Share
    candidates: Positive
    second_segment: bool
    word_vectors: WordVectors


class Pruning(Section):
    """Pruning of task students."""

    sparsities_percent: _tuple_of(Annotated[int, Field(ge=1, le=99)], min_length=1)
    schedule: Literal["cubic", "linear"]
    ramp_share: Annotated[Real, Field(gt=0, le=1)]


class Calibration(Section):
    examples: Positive
    batch_size: Positive
    method: Literal["minmax", "entropy", "percentile"]
    percentile: Annotated[Real, Field(gt=50, le=100)]


class Latency(Section):
    batch_sizes: _tuple_of(Positive, min_length=1)
    length_tokens: Annotated[int, Field(ge=3, le=512)]
    warmup_runs: Count
    runs: Positive
    threads: Positive


class Quantization(Section):
    """INT8 models and their measurement."""

    models: _tuple_of(Name, min_length=1)
    calibration: Calibration
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
                           "quantization.models": self.quantization.models,
                           "pruning.sparsities_percent": self.pruning.sparsities_percent}.items():  # fmt: skip
            refuse_repeats(key, names)
        refuse_strangers("general.students", self.general.students, self.students, "recipes")
        for key, track in {"domain.students": self.domain, "glue.students": self.glue}.items():
            refuse_strangers(key, track.students, self.general.students, "general.students")
        if "teacher" in self.students:
            raise ValueError("students.teacher: teacher is the name of the teacher's model; call the student otherwise")
        if self.teacher.source == "embedded":
            refuse_misfits(self.students, self.teacher.embedded.architecture)
        for name in self.domain.students:
            self._need_sections(name, "domain.students", ("domain",))
        for name in self.glue.students:
            self._need_sections(name, "glue.students", ("intermediate", "prediction"))
        refuse_strangers("quantization.models", self.quantization.models, self.task_models, "the task models")
        return self

    def _need_sections(self, student: str, key: str, sections: Iterable[str]) -> None:
        for section in sections:
            if getattr(self.students[student], section) is None:
                raise ValueError(f"{key} lists {student}, which has no section students.{student}.{section}; add it")

    @property
    def pruned_students(self) -> tuple[str, ...]:
        """The names of the pruned task students: <student>_pruned<percent>."""
        percents = self.pruning.sparsities_percent
        return tuple(f"{student}_pruned{percent}" for student in self.glue.students for percent in percents)

    @property
    def task_models(self) -> tuple[str, ...]:
        """All models of a task, by the last part of their path: the teacher, the students, the pruned ones."""
        return ("teacher", *self.glue.students, *self.pruned_students)
