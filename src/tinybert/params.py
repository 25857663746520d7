"""The schema of params.yaml: every key, its type and range; one line for each mistake.

Each model below is frozen and refuses unknown keys. What the keys mean, with units and sources, is
said where users read it: in params.yaml itself.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tinybert.errors import UserError


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


def _known_layer_map(value: Any) -> Any:
    if isinstance(value, str) and value not in LAYER_MAPS:
        raise ValueError(f"must be {', '.join(LAYER_MAPS)} or a list with a teacher layer for each student layer")
    return _as_tuple(value)


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
            raise ValueError(f"mask_share + random_share is {self.mask_share + self.random_share}; at most 1 is allowed")
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
    packing: Literal["pack", "truncate"]


class Imitation(Section):
    """What one distillation stage asks of a student: λ for each loss."""

    losses: Annotated[dict[LossName, NonNegative], Field(min_length=1)]
    temperature: AboveZero | None = None

    @model_validator(mode="after")
    def _some_loss_and_its_temperature(self) -> "Imitation":
        if not any(self.losses.values()):
            raise ValueError("every λ of losses is 0; at least one must be above 0")
        if self.losses.get("prediction") and self.temperature is None:
            raise ValueError("temperature is missing; the prediction loss needs one, such as 2.0")
        return self


class Student(Section):
    """A recipe: architecture, start, map, and what each stage imitates."""

    architecture: Architecture
    start: Text
    layer_map: Annotated[str | tuple[Positive, ...], BeforeValidator(_known_layer_map)]
    projection: Literal["shared", "per_layer"]
    general: Imitation
    domain: Imitation | None = None
    intermediate: Imitation | None = None
    prediction: Imitation | None = None

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
            _refuse_repeats(key, names)
        _refuse_strangers("general.students", self.general.students, self.students, "recipes")
        for key, track in {"domain.students": self.domain, "glue.students": self.glue}.items():
            _refuse_strangers(key, track.students, self.general.students, "general.students")
        for name in self.domain.students:
            self._need_sections(name, "domain.students", ("domain",))
        for name in self.glue.students:
            self._need_sections(name, "glue.students", ("intermediate", "prediction"))
        _refuse_strangers("quantization.models", self.quantization.models, self.task_models, "the task models")
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


def _refuse_repeats(key: str, names: tuple) -> None:
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{key} lists {repeated[0]} twice; once is enough")


def _refuse_strangers(key: str, names: Iterable[str], known: Iterable[str], where: str) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"{key} lists {name}, which is not among {where}: {', '.join(known)}")


def load_params(path: str | Path = "params.yaml") -> Params:
    """Reads and checks a whole params file; UserError with one line for each mistake."""
    try:
        tree = YAML(typ="safe").load(Path(path))  # YAML 1.2, as DVC reads it: 5e-5 is a number
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except YAMLError as error:
        raise UserError(f"{path}: no valid YAML: {' '.join(str(error).split())}") from None
    return check_params(tree, path)


def check_params(tree: Any, path: str | Path = "params.yaml") -> Params:
    """The checked form of a plain tree; UserError with one line for each mistake."""
    if not isinstance(tree, dict):
        raise UserError(f"{path}: must be a mapping of keys to values")
    try:
        return Params.model_validate(tree)
    except ValidationError as error:
        raise UserError("\n".join(dict.fromkeys(f"{path}: {_line(item)}" for item in error.errors()))) from None


def _line(item: dict) -> str:
    """One mistake as one line: key path, value, what is allowed."""
    key = ".".join(str(part) for part in item["loc"] if not _is_type_tag(part))
    message = item["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if item["type"] == "extra_forbidden":
        return f"{key}: unknown key; check its spelling, or remove it"
    if item["type"] == "missing":
        return f"{key}: missing; add it (params.yaml of the default shows its place)"
    if item["type"] == "value_error" and isinstance(item["input"], (dict, BaseModel)):
        return f"{key}: {message}" if key else message
    return f"{key}: {item['input']!r} {PLAIN_MESSAGES.get(item['type'], message)}"


PLAIN_MESSAGES = {
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping of keys to values",
    "model_type": "must be a mapping of keys to values",
    "string_pattern_mismatch": "must be lower-case letters, digits and _, a letter first",
}


def _is_type_tag(part: Any) -> bool:
    """Pydantic puts the tried type of a union and "[key]" of a mapping into the path; people need neither."""
    return isinstance(part, str) and ("[" in part or part == "str")


class Declared:
    """Read access to those parts of checked params that a stage declares, by the same dotted paths.

    What is not declared in dvc.yaml raises UserError: DVC would not rerun the stage when it changes.
    """

    def __init__(self, node: Any, declared: Iterable[str], path: tuple[str, ...] = ()) -> None:
        self._node, self._path = node, path
        self._declared = [tuple(key.split(".")) if isinstance(key, str) else key for key in declared]

    def __getitem__(self, key: str) -> Any:
        path = (*self._path, key)
        value = self._node[key] if isinstance(self._node, dict) else getattr(self._node, key)
        if any(path[: len(known)] == known for known in self._declared):
            return value
        if any(known[: len(path)] == path for known in self._declared):
            return Declared(value, self._declared, path)
        raise UserError(f"dvc.yaml: the stage reads {'.'.join(path)}, which its params do not declare; add it there")

    def __getattr__(self, key: str) -> Any:
        if key.startswith("_"):
            raise AttributeError(key)
        return self[key]
