"""The schema of params.yaml: every key, its type, its range, and what must fit together.

Each model below is frozen and refuses unknown keys. What the keys mean, with units and sources, is
said where users read it: in params.yaml itself.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from tinybert.fitness import STAGES, refuse_misfits, refuse_repeats, refuse_strangers, refuse_unfit_losses
from tinybert.layer_map import NAMED_MAPS, ONE_LAYER_MAPS

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
LossName = Literal[
    "hard", "prediction", "logits", "attention", "attention_kl", "hidden", "embedding", "cosine", "cls",
    "query_key_relation", "value_relation",
]  # fmt: skip


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _tuple_of(item: Any, **limits: Any) -> Any:
    return Annotated[tuple[item, ...], BeforeValidator(_as_tuple), Field(**limits)]


class Section(BaseModel):
    """A part of the tree: frozen, no unknown keys, no silent conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def _map_choice(named: Iterable[str]) -> Any:
    """A validator of layer choices: a name, or a list of teacher layers; checked before the union of types would be,
    which tells each mistake twice."""

    def choice(value: Any) -> Any:
        if isinstance(value, str) and value in named:
            return value
        if isinstance(value, list) and value and all(type(layer) is int and layer >= 1 for layer in value):
            return tuple(value)
        hint = " ({learnable: {learning_rate: 1.0e-3, start: equal}})" if value == "learnable" else ""
        raise ValueError(f"must be {', '.join(named)} or a list: a teacher layer, from 1, for each student layer{hint}")

    return choice


class LearnableMap(Section):
    """How the weights v(m) = softmax(θ) of a learnable layer map start and move."""

    learning_rate: Annotated[Real, Field(gt=0)]
    start: Literal["equal", "last"]


class Learnable(Section):
    learnable: LearnableMap


def _map_form(value: Any) -> str:
    return "[learnable]" if isinstance(value, (dict, Learnable)) else "[named]"


FIXED_MAPS = tuple(name for name in NAMED_MAPS if name != "learnable")
LayerMap = Annotated[
    Annotated[str | tuple[int, ...], BeforeValidator(_map_choice(FIXED_MAPS)), Tag("[named]")]
    | Annotated[Learnable, Tag("[learnable]")],
    Discriminator(_map_form),
]


class Start(Section):
    """Where a student starts: teacher layers, a model folder, or, where neither is given, random weights."""

    teacher: Annotated[str | tuple[int, ...] | None, BeforeValidator(_map_choice(ONE_LAYER_MAPS))] = None
    folder: Text | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> "Start":
        if self.teacher and self.folder:
            raise ValueError("teacher and folder are both given; a student starts from one of them")
        return self


def _start(value: Any) -> Any:
    if value == "random":
        return Start()
    if isinstance(value, str) or value == {}:
        raise ValueError("must be random, {teacher: uniform | top | bottom | [layers]} or {folder: path}")
    return value


class Training(Section):
    """Length and speed of one training run."""

    epochs: Count
    max_steps: Positive | None
    batch_size: Positive
    learning_rate: AboveZero
    accumulation_steps: Positive = 1


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

    kind: Literal["bert"] = "bert"
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


class BiLstmArchitecture(Section):
    """The shape of a BiLSTM classifier; `width` is that of an LSTM direction."""

    kind: Literal["bilstm"]
    layers: Positive
    embedding: Positive
    width: Positive
    feed_forward: Positive
    dropout: Annotated[Real, Field(ge=0, lt=1)]


def _kind(value: Any) -> str:
    named = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return "[bilstm]" if named == "bilstm" else "[bert]"


StudentArchitecture = Annotated[
    Annotated[Architecture, Tag("[bert]")] | Annotated[BiLstmArchitecture, Tag("[bilstm]")], Discriminator(_kind)
]


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
    """What one distillation stage asks of a student: λ for each loss, and what the losses read."""

    losses: Annotated[dict[LossName, NonNegative], Field(min_length=1)]
    temperature: AboveZero | None = None
    alpha: Share = 0.5
    relation_heads: Positive | None = None

    @model_validator(mode="after")
    def _some_loss_and_its_settings(self) -> "StageLosses":
        if not any(self.losses.values()):
            raise ValueError("every λ of losses is 0; at least one must be above 0")
        if not any(self.weighted_losses.values()):
            raise ValueError(f"alpha {self.alpha} leaves no loss on; move it, or add another loss")
        if self.losses.get("prediction") and self.temperature is None:
            raise ValueError("temperature is missing; the prediction loss needs one, such as 2.0")
        if (self.losses.get("query_key_relation") or self.losses.get("value_relation")) and not self.relation_heads:
            raise ValueError("relation_heads is missing; the relation losses need a number that divides both widths")
        return self

    @property
    def weighted_losses(self) -> dict[str, float]:
        """λ after the trade-off 2α·hidden + 2(1 − α)·attention; the neutral α is 0.5."""
        factors = {"hidden": 2 * self.alpha, "attention": 2 - 2 * self.alpha, "attention_kl": 2 - 2 * self.alpha}
        return {name: weight * factors.get(name, 1.0) for name, weight in self.losses.items()}


class Student(Section):
    """A recipe: architecture, start, map, and what each stage imitates."""

    architecture: StudentArchitecture
    start: Annotated[Start, BeforeValidator(_start)]
    layer_map: LayerMap
    projection: Literal["shared", "per_layer"]
    general: StageLosses | None
    domain: StageLosses | None = None
    intermediate: StageLosses | None = None
    prediction: StageLosses | None = None

    @model_validator(mode="after")
    def _lists_fit_layers(self) -> "Student":
        for key, layers in (("layer_map", self.layer_map), ("start.teacher", self.start.teacher)):
            if isinstance(layers, tuple) and len(layers) != self.architecture.layers:
                raise ValueError(
                    f"{key} lists {len(layers)} teacher layers; "
                    f"one for each of the {self.architecture.layers} student layers is needed"
                )
        if self.architecture.kind == "bilstm" and self.start.folder:
            raise ValueError("start.folder: a BiLSTM starts at random or, {teacher: bottom}, from word embeddings")
        for stage in STAGES:
            if recipe := getattr(self, stage):
                refuse_unfit_losses(stage, recipe.weighted_losses, self.architecture)
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
            used = {name: self.students[name] for name in self.general.students}
            refuse_misfits(used, self.teacher.embedded.architecture)
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
