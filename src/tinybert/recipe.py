"""The schema of a student's recipe: architecture, start, layer map, and what each stage imitates."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from tinybert.fitness import STAGES, refuse_unfit_losses
from tinybert.layer_map import NAMED_MAPS, ONE_LAYER_MAPS
from tinybert.schema_fields import AboveZero, NonNegative, Positive, Real, Section, Share, Text

LossName = Literal[
    "hard", "prediction", "logits", "attention", "attention_kl", "hidden", "embedding", "cosine", "cls",
    "query_key_relation", "value_relation",
]  # fmt: skip


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
