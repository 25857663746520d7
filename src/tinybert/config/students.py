"""A student's config: architecture, initialization, layer map, the losses of each stage, and whether a teacher fits.

Pure Python: params are checked on machines and in processes that never import torch.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Discriminator, Field, Tag

from tinybert.config.fields import (
    AboveZero,
    Architecture,
    ConfigModel,
    Fraction,
    ModelSource,
    Name,
    NonNegative,
    Percent,
    PositiveFraction,
    PositiveInt,
    Real,
    StudentArchitecture,
    Training,
)
from tinybert.pipeline.errors import UserError

TASK_PHASES = ("intermediate", "prediction")
STAGES = ("general", "domain", *TASK_PHASES)


class LossInfo(NamedTuple):
    """What a loss reads and what its mean is over.

    Attributes:
        unit: What the loss is a mean over, by whose share micro-batches are weighted: predictions (rows of a task,
            masked tokens of text), rows, tokens, or (query, key) pairs.
        layers: The student layers whose output it reads; None: it reads logits.
    """

    unit: Literal["predictions", "rows", "tokens", "pairs"]
    reads: Literal["logits", "hidden", "scores"]
    layers: Literal["embedding", "all", "all_but_last", "last"] | None = None
    reads_teacher: bool = True

    @property
    def needs_map(self) -> bool:
        """Whether it compares layers that a layer map pairs; the embedding output is always paired with itself."""
        return self.layers not in (None, "embedding")

    def student_layers(self, depth: int) -> range:
        """The layers, of a student that has `depth` of them, whose output it reads; 0 is the embedding output."""
        spans = {"embedding": (0, 0), "all": (1, depth), "all_but_last": (1, depth - 1), "last": (depth, depth)}
        first, last = spans[self.layers] if self.layers else (0, -1)
        return range(first, last + 1)


# Every loss, declared here and nowhere else; distill/losses.py has a function for each.
LOSSES = {
    "hard": LossInfo("predictions", "logits", reads_teacher=False),
    "prediction": LossInfo("predictions", "logits"),
    "logit_mse": LossInfo("predictions", "logits"),
    "attention": LossInfo("pairs", "scores", "all"),
    "attention_kl": LossInfo("tokens", "scores", "all"),
    "hidden": LossInfo("tokens", "hidden", "all"),
    "embedding": LossInfo("tokens", "hidden", "embedding"),
    "cosine": LossInfo("tokens", "hidden", "last"),
    "pkd": LossInfo("rows", "hidden", "all_but_last"),
}
LOGIT_LOSSES = tuple(name for name, info in LOSSES.items() if info.reads == "logits")
PUBLISHED_REDUCTIONS = ("hard", "prediction", "attention", "attention_kl", "hidden", "embedding")
MAPPED_LOSSES = tuple(name for name, info in LOSSES.items() if info.needs_map)
# Losses that compare rows, not tokens: the teacher may have another vocabulary.
ROW_LOSSES = tuple(name for name, info in LOSSES.items() if info.unit in ("predictions", "rows"))


# Layer maps: g(m), the teacher layer (1 = lowest) that student layer m imitates, of M student and N teacher layers.
ONE_LAYER_MAPS: dict[str, Callable[[int, int, int], int]] = {
    "uniform": lambda m, M, N: -(-m * N // M),  # ceil(m·N/M): 3, 6, 9, 12 for N = 12, M = 4 (TinyBERT, section 3)
    "top": lambda m, M, N: m + N - M,  # the teacher's last layers (TinyBERT, section 4.5)
    "bottom": lambda m, M, N: m,  # its first layers (the same)
}
FIXED_MAPS = (*ONE_LAYER_MAPS, "mean", "random")


def mapped_layers(
    layer_map: "str | tuple[int, ...] | Learnable", student_layers: int, teacher_layers: int, *, key: str = "layer_map"
) -> list[list[int]]:
    """The teacher layers, counted from 1, that each student layer may imitate: one, or a group of them.

    Groups are consecutive teacher layers; each group ends at the layer that the uniform map selects.

    Args:
        layer_map: A name of FIXED_MAPS, a learnable map, or a teacher layer for each student layer.
        key: The key that the error for a teacher with too few layers names.
    """
    layer_map = "learnable" if isinstance(layer_map, Learnable) else layer_map
    if isinstance(layer_map, tuple):
        if max(layer_map) > teacher_layers:
            raise UserError(f"{key}: {max(layer_map)} is beyond the teacher's layers; allowed: 1 to {teacher_layers}")
        return [[layer] for layer in layer_map]
    if student_layers > teacher_layers:
        problem = f"{layer_map} cannot map {student_layers} student layers to {teacher_layers} teacher layers"
        raise UserError(f"{key}: {problem}; fix: use fewer student layers, or list a teacher layer for each")
    place = ONE_LAYER_MAPS.get(layer_map, ONE_LAYER_MAPS["uniform"])
    ends = [place(layer, student_layers, teacher_layers) for layer in range(1, student_layers + 1)]
    if layer_map in ONE_LAYER_MAPS:
        return [[end] for end in ends]
    return [list(range(before + 1, end + 1)) for before, end in zip([0, *ends], ends, strict=False)]


def _check_map(named: Iterable[str], value: Any) -> Any:
    """A map's name or list, checked before pydantic's union would report each mistake twice."""
    if isinstance(value, str) and value in named:
        return value
    if isinstance(value, list | tuple) and value and all(type(one) is int and 1 <= one <= 1000 for one in value):
        return tuple(value)
    hint = "; a learnable map is {learnable: {learning_rate: 1.0e-3, init: equal}}" if value == "learnable" else ""
    raise ValueError(f"must be {', '.join(named)}, or a list of one teacher layer for each student layer{hint}")


class LearnableMap(ConfigModel):
    """The weights softmax(θ) of a learnable map: θ's learning rate, and its initial value: equal or last."""

    learning_rate: AboveZero
    init: Literal["equal", "last"]


class Learnable(ConfigModel):
    """A layer map whose weights are trained with the student."""

    learnable: LearnableMap


LayerMap = Annotated[
    Annotated[str | tuple[int, ...], BeforeValidator(partial(_check_map, FIXED_MAPS)), Tag("[named]")]
    | Annotated[Learnable, Tag("[learnable]")],
    Discriminator(lambda value: "[learnable]" if isinstance(value, (dict, Learnable)) else "[named]"),
]


class Init(ModelSource):
    """Where a student's first weights come from: teacher layers, a third-party model, or random (none given).

    Attributes:
        per_task: Phase 1 of each task starts from the layers of the task's teacher.
    """

    teacher: Annotated[str | tuple[int, ...] | None, BeforeValidator(partial(_check_map, ONE_LAYER_MAPS))] = None
    per_task: bool = False

    def check(self) -> None:
        given = [key for key in ("teacher", "folder", "hub") if getattr(self, key)]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are both given; fix: keep one of them")
        if self.per_task and not self.teacher:
            raise ValueError("per_task: no layers to start from; fix: set teacher, for example to uniform")


def _read_init(value: Any) -> Any:
    if value == "random":
        return Init()
    if isinstance(value, str) or value == {}:
        models = "{teacher: uniform | top | bottom | [layers]}, {folder: path} or {hub: {model, revision}}"
        raise ValueError(f"must be random, {models}")
    return value


class GradualPruning(ConfigModel):
    """Unstructured pruning during phase 1, where the published run prunes; by equal increments of all weights."""

    percent: Percent  # of all Linear and LSTM weights
    ramp_fraction: PositiveFraction
    increments: PositiveInt


class StageLosses(ConfigModel):
    """What a student imitates in one stage, and how long it trains.

    Attributes:
        losses: λ by loss name; a loss that is not named is off.
        temperature: T of the prediction loss.
        reduction: Losses are means over real tokens, or over what the published code divides by, padding included.
        layer_map: In place of the student's own.
        training: In place of the track's or the task's.
        pruning: Of the intermediate stage; the prediction stage keeps pruned weights at zero.
    """

    losses: Annotated[dict[Name, NonNegative], Field(min_length=1)]
    temperature: Annotated[Real, Field(ge=0.01, le=1000)] | None = None
    alpha: Fraction = 0.5
    reduction: Literal["real_tokens", "published"] = "real_tokens"
    layer_map: LayerMap | None = None
    training: Training | None = None
    pruning: GradualPruning | None = None

    def check(self) -> None:
        on = self.active_losses
        for name in self.losses:
            if name not in LOSSES:
                raise ValueError(f"losses.{name}: is not a loss; allowed: {', '.join(LOSSES)}")
        if not any(self.losses.values()):
            raise ValueError("losses: every λ is 0; fix: set at least one above 0")
        if not on:
            raise ValueError(f"alpha: no loss is left on (got {self.alpha}); fix: change alpha, or add another loss")
        if self.losses.get("prediction") and self.temperature is None:
            raise ValueError("temperature: missing; the prediction loss needs one, such as 2.0")
        unpublished = [name for name in on if name not in PUBLISHED_REDUCTIONS]
        if self.reduction == "published" and unpublished:
            allowed = ", ".join(PUBLISHED_REDUCTIONS)
            raise ValueError(f"reduction: published does not define {unpublished[0]}; allowed with it: {allowed}")
        if self.layer_map and not any(name in MAPPED_LOSSES for name in on):
            raise ValueError("layer_map: no loss of this stage reads it; fix: remove it, or add one such as attention")

    @property
    def active_losses(self) -> dict[str, float]:
        """The losses that are on, with λ after the trade-off 2α·hidden + 2(1 − α)·attention; the neutral α is 0.5."""
        factors = {"hidden": 2 * self.alpha, "attention": 2 - 2 * self.alpha, "attention_kl": 2 - 2 * self.alpha}
        weighted = {name: weight * factors.get(name, 1.0) for name, weight in self.losses.items()}
        return {name: weight for name, weight in weighted.items() if weight > 0}


class Student(ConfigModel):
    """A student: its shape, initial weights, layer map, and the losses of each stage; None: it skips that stage."""

    architecture: StudentArchitecture
    init: Annotated[Init, BeforeValidator(_read_init)]
    layer_map: LayerMap
    projection: Literal["shared", "per_layer"]
    general: StageLosses | None
    domain: StageLosses | None = None
    intermediate: StageLosses | None = None
    prediction: StageLosses | None = None

    @property
    def stages(self) -> dict[str, StageLosses]:
        """The stages that it does not skip."""
        return {stage: losses for stage in STAGES if (losses := getattr(self, stage))}

    def check(self) -> None:
        lists = {"layer_map": self.layer_map, "init.teacher": self.init.teacher}
        lists |= {f"{stage}.layer_map": losses.layer_map for stage, losses in self.stages.items()}
        depth = self.architecture.layers
        for key, layers in lists.items():
            if isinstance(layers, tuple) and len(layers) != depth:
                raise ValueError(f"{key}: must list {depth} teacher layers, one a student layer (got {len(layers)})")
        if self.init.per_task and (self.general or self.domain or self.architecture.kind == "bilstm"):
            problem = "init.per_task: each task has its own start, without general or domain distillation"
            raise ValueError(f"{problem}; fix: set general and domain to null, for a student of kind bert")
        if self.architecture.kind == "bilstm":
            self._check_bilstm()
        for stage, losses in self.stages.items():
            if losses.pruning and stage != "intermediate":
                raise ValueError(f"{stage}.pruning: only phase 1 prunes; fix: move it to intermediate, or remove it")
            if depth == 1 and losses.active_losses.get("pkd"):
                raise ValueError(f"{stage}.losses.pkd: reads all layers but the last (got 1 layer); fix: hidden")

    def _check_bilstm(self) -> None:
        """A BiLSTM has neither a masked-LM head nor layers to compare with a BERT's."""
        if self.init.folder or self.init.hub:
            key = "folder" if self.init.folder else "hub"
            raise ValueError(f"init.{key}: a BiLSTM starts at random or, {{teacher: bottom}}, from word embeddings")
        for stage, losses in self.stages.items():
            if stage in ("general", "domain"):
                raise ValueError(f"{stage}: a BiLSTM has no masked-LM head to learn from text; fix: set it to null")
            for name in losses.active_losses:
                if name not in LOGIT_LOSSES:
                    allowed = ", ".join(LOGIT_LOSSES)
                    raise ValueError(f"{stage}.losses.{name}: a BiLSTM has no layers to compare; allowed: {allowed}")


def training_of(params: Any, student: str, stage: str, *, task: str | None = None) -> Training:
    """How a student is trained in a stage of STAGES: as its own config says, else as its track's or its task's does.

    `params` are all of params.yaml or the part that a pipeline stage declares.
    """
    losses = getattr(params.students[student], stage)
    if losses and losses.training:
        return losses.training
    return getattr(params.tasks[task], stage) if task else getattr(params, stage).training


def check_students(students: Mapping[str, Student], teacher: Architecture, stages: Collection[str] = STAGES) -> None:
    """Checks that the initialization and losses of these stages fit the teacher; UserError for the first mismatch."""
    for name, student in students.items():
        key, shape = f"students.{name}.", student.architecture
        if student.init.teacher and ("general" in stages or student.init.per_task):
            if shape.kind == "bert":
                mapped_layers(student.init.teacher, shape.layers, teacher.layers, key=f"{key}init.teacher")
            check_subclone(shape, teacher, key=f"{key}architecture.")
        for stage, losses in student.stages.items():
            if stage not in stages:
                continue
            if losses.active_losses.keys() & set(MAPPED_LOSSES):
                layer_map = losses.layer_map or student.layer_map
                owner = f"{key}{stage}." if losses.layer_map else key
                mapped_layers(layer_map, shape.layers, teacher.layers, key=f"{owner}layer_map")
            check_losses(losses.active_losses, shape, teacher, key=f"{key}{stage}.")


def check_losses(losses: Collection[str], student: StudentArchitecture, teacher: Architecture, key: str) -> None:
    """Checks the heads that the losses compare; a BiLSTM has no such losses."""
    for name in sorted(losses):
        if LOSSES[name].reads == "scores" and student.kind == "bert" and student.heads != teacher.heads:
            problem = f"the student has {student.heads} heads, the teacher {teacher.heads}"
            raise UserError(f"{key}losses.{name}: {problem}; fix: set architecture.heads to {teacher.heads}")


def check_subclone(student: StudentArchitecture, teacher: Architecture, *, key: str = "architecture.") -> None:
    """Raises UserError if a student, or a BiLSTM's embedding, is larger than the teacher; `key` precedes the size."""
    widest, start = teacher.width // teacher.heads, ", or set init to random" * key.startswith("students")
    of_bert = {"width": teacher.width, "feed_forward": teacher.feed_forward}
    for name, most in (of_bert if student.kind == "bert" else {"embedding": teacher.width}).items():
        if (size := getattr(student, name)) > most:
            problem = f"larger than the teacher's, from which it is cut (got {size})"
            raise UserError(f"{key}{name}: {problem}; allowed: {most} or less; fix: lower it{start}")
    if student.kind == "bert" and (student.heads > teacher.heads or student.width // student.heads > widest):
        problem = f"width {student.width} does not fit {teacher.heads} heads of {widest} (got {student.heads} heads)"
        fitting = [n for n in range(1, teacher.heads + 1) if student.width % n == 0 and student.width // n <= widest]
        allowed = ", ".join(map(str, fitting)) or "none for this width"
        raise UserError(f"{key}heads: {problem}; allowed: {allowed}; fix: change heads or width{start}")
