"""The schema of a student's recipe: architecture, start, layer map, and what each stage imitates and how long."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from tinybert.config.compatibility import STAGES, UNMAPPED_LOSSES, check_unfit_losses
from tinybert.config.fields import (
    AboveZero,
    ConfigModel,
    Fraction,
    NonEmptyStr,
    NonNegative,
    NonNegativeInt,
    PositiveInt,
    Real,
    SmallPositiveInt,
    Width,
)
from tinybert.config.teacher_layers import NAMED_MAPS, ONE_LAYER_MAPS

LossName = Literal[
    "hard", "prediction", "logit_mse", "attention", "attention_kl", "hidden", "embedding", "cosine", "pkd",
    "query_key_relation", "value_relation",
]  # fmt: skip


def _map_choice(named: Iterable[str]) -> Any:
    """A validator of layer choices: a name, or a list of teacher layers; checked before the union of types would be,
    which tells each mistake twice."""

    def choice(value: Any) -> Any:
        if isinstance(value, str) and value in named:
            return value
        if isinstance(value, list) and value and all(type(layer) is int and 1 <= layer <= 1000 for layer in value):
            return tuple(value)
        hint = " ({learnable: {learning_rate: 1.0e-3, init: equal}})" if value == "learnable" else ""
        raise ValueError(f"must be {', '.join(named)} or a list: a teacher layer, from 1, for each student layer{hint}")

    return choice


class LearnableMap(ConfigModel):
    """How the weights v(m) = softmax(θ) of a learnable layer map start and move."""

    learning_rate: Annotated[Real, Field(gt=0)]
    init: Literal["equal", "last"]


class Learnable(ConfigModel):
    learnable: LearnableMap


def _map_form(value: Any) -> str:
    return "[learnable]" if isinstance(value, (dict, Learnable)) else "[named]"


FIXED_MAPS = tuple(name for name in NAMED_MAPS if name != "learnable")
LayerMap = Annotated[
    Annotated[str | tuple[int, ...], BeforeValidator(_map_choice(FIXED_MAPS)), Tag("[named]")]
    | Annotated[Learnable, Tag("[learnable]")],
    Discriminator(_map_form),
]


class Training(ConfigModel):
    """Length and speed of one training run."""

    epochs: NonNegativeInt
    max_steps: PositiveInt | None
    batch_size: PositiveInt
    learning_rate: AboveZero
    accumulation_steps: PositiveInt = 1


class HubModel(ConfigModel):
    """A model on the Hub; its revision is a commit, a tag or a branch."""

    model: NonEmptyStr
    revision: NonEmptyStr


class ModelSource(ConfigModel):
    """A model of others: in a folder, or on the Hub."""

    folder: NonEmptyStr | None = None
    hub: HubModel | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> "ModelSource":
        if (self.folder is None) == (self.hub is None):
            raise ValueError("must be {folder: path} or {hub: {model: name, revision: commit}}")
        return self


class Init(ConfigModel):
    """Where a student starts: teacher layers, a model of others, or, where none is given, random weights."""

    teacher: Annotated[str | tuple[int, ...] | None, BeforeValidator(_map_choice(ONE_LAYER_MAPS))] = None
    folder: NonEmptyStr | None = None
    hub: HubModel | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> "Init":
        given = [key for key in ("teacher", "folder", "hub") if getattr(self, key)]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are both given; a student starts from one of them")
        return self


def _init(value: Any) -> Any:
    if value == "random":
        return Init()
    if isinstance(value, str) or value == {}:
        raise ValueError(
            "must be random, {teacher: uniform | top | bottom | [layers]}, {folder: path} or {hub: {model, revision}}"
        )
    return value


class Architecture(ConfigModel):
    """The shape of a BERT."""

    kind: Literal["bert"] = "bert"
    layers: SmallPositiveInt
    width: Width
    heads: SmallPositiveInt
    feed_forward: Width
    dropout: Annotated[Real, Field(ge=0, lt=1)]

    @model_validator(mode="after")
    def _heads_divide_width(self) -> "Architecture":
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is no multiple of {self.heads} heads; change width or heads")
        return self


class BiLstmArchitecture(ConfigModel):
    """The shape of a BiLSTM classifier; `width` is that of an LSTM direction."""

    kind: Literal["bilstm"]
    layers: SmallPositiveInt
    embedding: Width
    width: Width
    feed_forward: Width
    dropout: Annotated[Real, Field(ge=0, lt=1)]


def _kind(value: Any) -> str:
    named = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return "[bilstm]" if named == "bilstm" else "[bert]"


StudentArchitecture = Annotated[
    Annotated[Architecture, Tag("[bert]")] | Annotated[BiLstmArchitecture, Tag("[bilstm]")], Discriminator(_kind)
]


class StageLosses(ConfigModel):
    """What one distillation stage asks of a student: λ for each loss, what the losses read, how long it trains.

    layer_map, training: where given, in place of the student's map and of the track's or task's training.
    """

    losses: Annotated[dict[LossName, NonNegative], Field(min_length=1)]
    temperature: Annotated[Real, Field(ge=0.01, le=1000)] | None = None
    alpha: Fraction = 0.5
    relation_heads: SmallPositiveInt | None = None
    layer_map: LayerMap | None = None
    training: Training | None = None

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

    @model_validator(mode="after")
    def _some_loss_reads_the_map(self) -> "StageLosses":
        reads = any(weight for name, weight in self.weighted_losses.items() if name not in UNMAPPED_LOSSES)
        if self.layer_map and not reads:
            raise ValueError("layer_map is read by no loss of this stage; remove it, or add one such as attention")
        return self

    @property
    def weighted_losses(self) -> dict[str, float]:
        """λ after the trade-off 2α·hidden + 2(1 − α)·attention; the neutral α is 0.5."""
        factors = {"hidden": 2 * self.alpha, "attention": 2 - 2 * self.alpha, "attention_kl": 2 - 2 * self.alpha}
        return {name: weight * factors.get(name, 1.0) for name, weight in self.losses.items()}


class Student(ConfigModel):
    """A recipe: architecture, start, map, and what each stage imitates."""

    architecture: StudentArchitecture
    init: Annotated[Init, BeforeValidator(_init)]
    layer_map: LayerMap
    projection: Literal["shared", "per_layer"]
    general: StageLosses | None
    domain: StageLosses | None = None
    intermediate: StageLosses | None = None
    prediction: StageLosses | None = None

    @model_validator(mode="after")
    def _lists_fit_layers(self) -> "Student":
        recipes = {stage: recipe for stage in STAGES if (recipe := getattr(self, stage))}
        lists = {"layer_map": self.layer_map, "init.teacher": self.init.teacher}
        lists |= {f"{stage}.layer_map": recipe.layer_map for stage, recipe in recipes.items()}
        for key, layers in lists.items():
            if isinstance(layers, tuple) and len(layers) != self.architecture.layers:
                raise ValueError(
                    f"{key} lists {len(layers)} teacher layers; "
                    f"one for each of the {self.architecture.layers} student layers is needed"
                )
        if self.architecture.kind == "bilstm" and (self.init.folder or self.init.hub):
            key = "folder" if self.init.folder else "hub"
            raise ValueError(f"init.{key}: a BiLSTM starts at random or, {{teacher: bottom}}, from word embeddings")
        for stage, recipe in recipes.items():
            check_unfit_losses(stage, recipe.weighted_losses, self.architecture)
        return self


def training_of(params, student: str, stage: str, *, task: str | None = None) -> Training:
    """How a student is trained in a stage: as its recipe says, else as its track, or its `task`, does.

    params: the checked params, or what a stage declares of them.
    """
    recipe = getattr(params.students[student], stage)
    if recipe and recipe.training:
        return recipe.training
    return getattr(getattr(params.tasks, task), stage) if task else getattr(params, stage).training
