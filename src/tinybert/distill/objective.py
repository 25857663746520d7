"""The λ-weighted sum of losses that a student minimises, built from params."""

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tinybert.config.compatibility import check_losses
from tinybert.config.students import LOGIT_LOSSES, LOSSES, MAPPED_LOSSES, RELATION_LOSSES, SCORE_LOSSES, mapped_layers
from tinybert.distill import losses
from tinybert.distill.layer_map import LayerWeights
from tinybert.models.bert import BertConfig
from tinybert.models.checkpoints import Config, read_weights
from tinybert.models.outputs import Batch, DistillationTargets, ModelOutput, OutputSpec, RealTokens
from tinybert.pipeline.errors import UserError

LEARNT = "objective.safetensors"

# What each loss is a mean over (Batch.counts).
UNITS = {name: info.unit for name, info in LOSSES.items()}


@dataclass(frozen=True)
class DistillationConfig:
    """What to imitate: λ by loss name, and the settings the losses read.

    layer_map: a name of layer_map.NAMED_MAPS, or a teacher layer for each student layer. map_start and
    map_learning_rate: of a learnable map; map_is_new: it does not go on with an earlier stage's. projection: shared or
    per_layer. relation_heads: of the relation losses.
    """

    weights: dict[str, float]
    layer_map: str | tuple[int, ...] = "uniform"
    map_start: str = "equal"
    map_learning_rate: float | None = None
    map_is_new: bool = False
    projection: str = "shared"
    temperature: float = 1.0
    relation_heads: int = 1
    seed: int = 0

    @classmethod
    def of(cls, params, name: str, stage: str) -> "DistillationConfig":
        """From the recipe of student `name` for one of its stages; nothing to imitate where it skips that stage."""
        student = params.students[name]
        recipe = getattr(student, stage)
        if recipe is None:
            return cls({})
        layer_map = recipe.layer_map or student.layer_map
        learnable = getattr(layer_map, "learnable", None)
        return cls(
            weights={name: weight for name, weight in recipe.weighted_losses.items() if weight > 0},
            layer_map="learnable" if learnable else layer_map,
            map_start=learnable.init if learnable else "equal",
            map_learning_rate=learnable.learning_rate if learnable else None,
            map_is_new=recipe.layer_map is not None,
            projection=student.projection,
            temperature=recipe.temperature or 1.0,
            relation_heads=recipe.relation_heads or 1,
            seed=params.seed,
        )


class DistillationLoss(nn.Module):
    """L = Σ_k λ_k·L_k; the layer losses are sums over the student's layers (TinyBERT eq. 6 and 11).

    Holds what is trained beside the student: the projections W (student width -> teacher width, without bias, only
    where the widths differ and a loss reads them), and the weights of a learnable layer map. `student_spec` and
    `teacher_spec` say which activations its losses read at this step; nothing else needs computing.
    """

    def __init__(self, imitation: DistillationConfig, student: Config, teacher: Config | None = None) -> None:
        super().__init__()
        self.imitation, self.weights = imitation, imitation.weights
        self.layers = student.num_hidden_layers
        self.reads_teacher = bool(self.weights.keys() - {"hard"})
        self.map = LayerWeights([], "mean")
        self.projections = nn.ModuleDict()
        self.unused: dict[str, Tensor] = {}  # what an earlier stage learnt, kept for a later one
        if self.reads_teacher:
            assert teacher is not None  # who has such losses has a teacher
            _check_unfit(imitation, student, teacher)
            self.map = _layer_weights(imitation, self.layers, teacher.num_hidden_layers)
            if self._hidden_layers() and student.hidden_size != teacher.hidden_size:
                self._add_projections(student.hidden_size, teacher.hidden_size)

    def _add_projections(self, student_width: int, teacher_width: int) -> None:
        layers = self._hidden_layers()
        names = dict.fromkeys(self._projection_name(layer) for layer in sorted(layers))
        for name in names:
            self.projections[name] = nn.Linear(student_width, teacher_width, bias=False)

    def _projection_name(self, layer: int) -> str:
        if layer == 0:
            return "embedding"
        return "hidden" if self.imitation.projection == "shared" else f"hidden_{layer}"

    def _on(self, *names: str) -> bool:
        return any(name in self.weights for name in names)

    def _hidden_layers(self) -> set[int]:
        """The student layers whose hidden states a loss reads; 0 is the embedding output."""
        layers = {0} if self._on("embedding") else set()
        if self._on("hidden"):
            layers |= set(range(1, self.layers + 1))
        if self._on("pkd"):
            layers |= set(self._cls_layers)
        if self._on("cosine"):
            layers.add(self.layers)
        return layers

    @property
    def _cls_layers(self) -> range:
        """All but the last layer, whose [CLS] state the prediction loss takes care of (PKD)."""
        return range(1, self.layers)

    @property
    def student_spec(self) -> OutputSpec:
        """What the student must expose."""
        every = frozenset(range(1, self.layers + 1))
        return OutputSpec(
            hidden=frozenset(self._hidden_layers()),
            scores=every if self._on(*SCORE_LOSSES) else frozenset(),
            qkv=frozenset({self.layers}) if self._on(*RELATION_LOSSES) else frozenset(),
            logits=self.reads_predictions,
        )

    @property
    def reads_predictions(self) -> bool:
        """Whether a loss reads logits; on text only then are tokens masked, for others would predict nothing."""
        return self._on(*LOGIT_LOSSES)

    @property
    def teacher_spec(self) -> OutputSpec:
        """What the teacher must expose at this step; nothing where no loss reads a teacher."""
        return self._teacher_wants(self.map.read)

    @property
    def teacher_full_spec(self) -> OutputSpec:
        """What the teacher must expose for all steps: a random map may read any layer of its blocks."""
        return self._teacher_wants(self.map.block)

    def _teacher_wants(self, layers_of: Callable[[int], list[int]]) -> OutputSpec:
        def mapped(student_layers: frozenset[int]) -> frozenset[int]:
            """The embedding output is always mapped to itself."""
            read = {teacher for layer in student_layers if layer for teacher in layers_of(layer)}
            return frozenset(read | ({0} & student_layers))

        ours = self.student_spec
        logits = self._on("prediction", "logit_mse")
        return OutputSpec(mapped(ours.hidden), mapped(ours.scores), mapped(ours.qkv), logits)

    def targets(self, teacher: ModelOutput) -> DistillationTargets:
        """What the student imitates: hidden states and scores of the teacher, weighed by the layer map."""
        layers = self.student_spec
        hidden = {layer: self.map.target(layer, teacher.hidden) for layer in layers.hidden if layer}
        hidden |= {0: teacher.hidden[0]} if 0 in layers.hidden else {}
        scores = {layer: self.map.target(layer, teacher.scores) for layer in layers.scores}
        return DistillationTargets(hidden, scores, teacher.queries, teacher.keys, teacher.values, teacher.logits)

    def begin_step(self, step: int) -> None:
        """To be called before each training step: a random map draws its layers."""
        self.map.redraw(step)

    def observed(self) -> dict[str, float]:
        """What is worth a line in the loss curve beside the losses: the weights of a learnable map."""
        return self.map.learnt()

    def forward(self, student: ModelOutput, teacher: ModelOutput, batch: Batch) -> dict[str, Tensor]:
        """The unweighted loss terms by name, each a scalar. teacher: its activations, or targets made of them."""
        return self._terms(
            student, teacher if isinstance(teacher, DistillationTargets) else self.targets(teacher), batch
        )

    def _terms(self, student: ModelOutput, targets: DistillationTargets, batch: Batch) -> dict[str, Tensor]:
        terms = {
            "hard": lambda: losses.hard(student.required_logits, batch.gold),
            "prediction": lambda: losses.prediction(
                student.required_logits, targets.required_logits, temperature=self.imitation.temperature
            ),
            "logit_mse": lambda: losses.logit_mse(student.required_logits, targets.required_logits),
            "attention": lambda: self._scores(losses.attention, student, targets, batch.mask),
            "attention_kl": lambda: self._scores(losses.attention_kl, student, targets, batch.mask),
            "hidden": lambda: self._states(losses.hidden, range(1, self.layers + 1), student, targets),
            "embedding": lambda: losses.hidden(self._projected(student, 0), targets.hidden[0]),
            "cosine": lambda: self._states(losses.cosine, [self.layers], student, targets),
            "pkd": lambda: self._cls(student, targets, batch.real),
            "query_key_relation": lambda: self._relation("queries", "keys", student, targets, batch.real),
            "value_relation": lambda: self._relation("values", "values", student, targets, batch.real),
        }
        return {name: terms[name]() for name in self.weights}

    def total(self, terms: dict[str, Tensor]) -> Tensor:
        """Σ λ·term, the scalar to minimise."""
        return _sum(self.weights[name] * term for name, term in terms.items())

    def _scores(self, loss, student: ModelOutput, targets: DistillationTargets, mask: Tensor) -> Tensor:
        return _sum(loss(student.scores[layer], targets.scores[layer], mask) for layer in range(1, self.layers + 1))

    def _states(self, loss, layers: Iterable[int], student: ModelOutput, targets: DistillationTargets) -> Tensor:
        return _sum(loss(self._projected(student, layer), targets.hidden[layer]) for layer in layers)

    def _cls(self, student: ModelOutput, targets: DistillationTargets, real: RealTokens) -> Tensor:
        return _sum(
            losses.pkd(self._project(layer, real.first(student.hidden[layer])), real.first(targets.hidden[layer]))
            for layer in self._cls_layers
        )

    def _relation(
        self, left: str, right: str, student: ModelOutput, targets: DistillationTargets, real: RealTokens
    ) -> Tensor:
        """Of the top student layer and the teacher layer it is mapped to (MiniLM)."""
        top, heads = self.layers, self.imitation.relation_heads
        ours, theirs = (
            {layer: losses.relation_scores(
                real.pad(getattr(model, left)[layer]), real.pad(getattr(model, right)[layer]), heads=heads)
             for layer in layers}
            for model, layers in ((student, [top]), (targets, self.map.read(top)))
        )  # fmt: skip
        return losses.attention_kl(ours[top], self.map.target(top, theirs), real.mask)

    def _projected(self, student: ModelOutput, layer: int) -> Tensor:
        return self._project(layer, student.hidden[layer])

    def _project(self, layer: int, states: Tensor) -> Tensor:
        """Hidden states in the teacher's width, there already where the widths agree."""
        name = self._projection_name(layer)
        return self.projections[name](states) if name in self.projections else states

    def start_projections(self, weight: Tensor) -> None:
        """Starts every projection, of later stages too, from `weight`.

        (teacher width, student width) for all of them, or (1 + layers, ...) for the embeddings and each layer; a
        projection that the layers share then takes the last one.
        """
        of_layers = weight.expand(self.layers + 1, -1, -1)
        names = [self._projection_name(layer) for layer in range(self.layers + 1)]
        self._take({f"projections.{name}.weight": part for name, part in zip(names, of_layers, strict=True)})

    def save(self, folder: str | Path) -> None:
        """Writes projections and map weights beside the student's weights in `folder`, where there are any."""
        if tensors := self.unused | self.state_dict():
            tensors = {name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
                       for name, tensor in tensors.items()}  # fmt: skip
            save_file(tensors, Path(folder) / LEARNT)

    def load(self, folder: str | Path) -> None:
        """Goes on with what an earlier stage left in `folder`; what that one did not need starts anew."""
        path = Path(folder) / LEARNT
        if path.is_file():
            self._take(read_weights(path))

    def _take(self, tensors: dict[str, Tensor]) -> None:
        ours = self.state_dict()
        fitting = {name for name in ours.keys() & tensors.keys() if ours[name].shape == tensors[name].shape}
        if self.imitation.map_is_new:
            fitting = {name for name in fitting if not name.startswith("map.")}
        self.load_state_dict(ours | {name: tensors[name] for name in fitting})
        self.unused |= {name: tensor for name, tensor in tensors.items() if name not in ours}


def _sum(terms: Iterable[Tensor]) -> Tensor:
    """Of one term at least, in their order."""
    return reduce(operator.add, terms)


def _layer_weights(imitation: DistillationConfig, student_layers: int, teacher_layers: int) -> LayerWeights:
    """The layer map; where no loss reads mapped layers it is empty, and the depths need not fit."""
    if not imitation.weights.keys() & set(MAPPED_LOSSES):
        return LayerWeights([], "mean")
    layers = mapped_layers(imitation.layer_map, student_layers, teacher_layers)
    kind = imitation.layer_map if isinstance(imitation.layer_map, str) else "listed"
    return LayerWeights(layers, kind, start=imitation.map_start, seed=imitation.seed)


def _check_unfit(imitation: DistillationConfig, student: Config, teacher: Config) -> None:
    """UserError where student and teacher cannot be compared by the losses that are on."""
    if student.vocab_size != teacher.vocab_size:
        raise UserError(
            f"vocabulary: the student has {student.vocab_size} word pieces, the teacher {teacher.vocab_size}; "
            "both must use one tokenizer: start the student at random or from a folder with the teacher's vocabulary"
        )
    if isinstance(student, BertConfig) and isinstance(teacher, BertConfig):  # a BiLSTM has no such losses
        check_losses(imitation.weights, imitation.relation_heads, student.shape, teacher.shape)
