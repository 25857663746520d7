"""The λ-weighted sum of losses that a student minimizes."""

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor, nn

from tinybert.config.compatibility import check_losses
from tinybert.config.students import LOSSES, Learnable, Student, mapped_layers
from tinybert.distill import losses
from tinybert.distill.layer_map import LayerWeights
from tinybert.models.bert import BertConfig
from tinybert.models.checkpoints import Config, read_weights
from tinybert.models.outputs import Batch, DistillationTargets, ModelOutput, OutputSpec, RealTokens
from tinybert.models.packed_linear import Linear
from tinybert.pipeline.errors import UserError

FILE = "objective.safetensors"


@dataclass(frozen=True)
class DistillationConfig:
    """What a student imitates.

    Attributes:
        weights: λ by loss name; without any, nothing is trained.
        layer_map: A named map, or a teacher layer for each student layer.
        map_init: Initial weights of a learnable map: "equal" or "last".
        map_is_new: Whether a learnable map starts again instead of continuing from the stage before.
        projection: "shared" by all layers, or "per_layer".
        relation_heads: Into how many heads the relation losses cut the widths.
        seed: Of a random map.
    """

    weights: dict[str, float]
    layer_map: str | tuple[int, ...] = "uniform"
    map_init: str = "equal"
    map_learning_rate: float | None = None
    map_is_new: bool = False
    projection: str = "shared"
    temperature: float = 1.0
    relation_heads: int = 1
    seed: int = 0

    @classmethod
    def of(cls, student: Student, stage: str, *, seed: int) -> "DistillationConfig":
        """The config of one of the student's stages; without losses if the student skips the stage."""
        stage_losses = getattr(student, stage)
        if stage_losses is None:
            return cls({})
        layer_map = stage_losses.layer_map or student.layer_map
        learnable = layer_map.learnable if isinstance(layer_map, Learnable) else None
        return cls(
            weights=stage_losses.active_losses,
            layer_map="learnable" if isinstance(layer_map, Learnable) else layer_map,
            map_init=learnable.init if learnable else "equal",
            map_learning_rate=learnable.learning_rate if learnable else None,
            map_is_new=stage_losses.layer_map is not None,
            projection=student.projection,
            temperature=stage_losses.temperature or 1.0,
            relation_heads=stage_losses.relation_heads or 1,
            seed=seed,
        )


class DistillationLoss(nn.Module):
    """L = Σ_k λ_k·L_k; losses of layers are sums over student layers (TinyBERT eq. 6 and 11).

    Holds what is trained beside the student: projections W (student width -> teacher width, without bias, only if the
    widths differ and a loss reads them) and the weights of a learnable layer map.

    Args:
        config: What to imitate.
        student: The student's model config.
        teacher: The teacher's; needed if a loss reads a teacher.

    Raises:
        UserError: A loss cannot compare the two models.
    """

    def __init__(self, config: DistillationConfig, student: Config, teacher: Config | None = None) -> None:
        super().__init__()
        self.config, self.weights = config, config.weights
        self.infos = {name: LOSSES[name] for name in config.weights}
        self.depth = student.num_hidden_layers
        self.reads_teacher = any(info.reads_teacher for info in self.infos.values())
        self.reads_predictions = any(info.reads == "logits" for info in self.infos.values())
        # What the student exposes; nothing else is computed.
        self.student_spec = OutputSpec(
            self._layers("hidden"), self._layers("scores"), self._layers("relations"), self.reads_predictions
        )
        self.map = LayerWeights([], "mean")
        self.projections = nn.ModuleDict()
        self.unused: dict[str, Tensor] = {}  # learned by an earlier stage, kept for a later one
        if self.reads_teacher:
            assert teacher is not None
            _check_pair(config, student, teacher)
            # Without a loss that reads mapped layers the depths need not fit.
            if any(info.needs_map for info in self.infos.values()):
                layers = mapped_layers(config.layer_map, self.depth, teacher.num_hidden_layers)
                kind = config.layer_map if isinstance(config.layer_map, str) else "listed"
                self.map = LayerWeights(layers, kind, init=config.map_init, seed=config.seed)
            if student.hidden_size != teacher.hidden_size:
                for name in dict.fromkeys(map(self._projection_name, sorted(self._layers("hidden")))):
                    self.projections[name] = Linear(student.hidden_size, teacher.hidden_size, bias=False)

    def _layers(self, output: str) -> frozenset[int]:
        """The student layers of which losses read an output; 0 is the embedding output."""
        infos = (info for info in self.infos.values() if info.reads == output)
        return frozenset(layer for info in infos for layer in info.student_layers(self.depth))

    def _projection_name(self, layer: int) -> str:
        if layer == 0:
            return "embedding"
        return "hidden" if self.config.projection == "shared" else f"hidden_{layer}"

    def teacher_spec(self, *, at_any_step: bool = False) -> OutputSpec:
        """What the teacher exposes at this step, or at any: a random map reads one layer of each group."""
        spec = self.student_spec
        mapped = []
        for layers in (spec.hidden, spec.scores, spec.qkv):
            read = (self.map.read(layer, at_any_step=at_any_step) for layer in layers if layer)
            mapped.append(frozenset({0} & layers).union(*read))  # the embedding output is mapped to itself
        logits = any(info.reads == "logits" and info.reads_teacher for info in self.infos.values())
        hidden, scores, qkv = mapped
        return OutputSpec(hidden, scores, qkv, logits)

    def targets(self, teacher: ModelOutput) -> DistillationTargets:
        """What the student imitates: the teacher's hidden states and scores, weighted by the layer map."""
        spec = self.student_spec
        hidden = {layer: self.map.target(layer, teacher.hidden) for layer in spec.hidden if layer}
        hidden |= {0: teacher.hidden[0]} if 0 in spec.hidden else {}
        scores = {layer: self.map.target(layer, teacher.scores) for layer in spec.scores}
        return DistillationTargets(hidden, scores, teacher.queries, teacher.keys, teacher.values, teacher.logits)

    def forward(self, student: ModelOutput, teacher: ModelOutput, batch: Batch) -> dict[str, Tensor]:
        """The unweighted loss terms of a batch.

        Args:
            student: The outputs of `student_spec`.
            teacher: The outputs of `teacher_spec`, or targets made from them.
            batch: What both computed, with labels if a loss reads them.

        Returns:
            A scalar by loss name.
        """
        targets = teacher if isinstance(teacher, DistillationTargets) else self.targets(teacher)
        return {name: self._term(name, student, targets, batch) for name in self.weights}

    def total(self, terms: dict[str, Tensor]) -> Tensor:
        """Σ λ·term, the scalar to minimize."""
        return _sum(self.weights[name] * term for name, term in terms.items())

    def _term(self, name: str, student: ModelOutput, targets: DistillationTargets, batch: Batch) -> Tensor:
        info, function = self.infos[name], losses.FUNCTIONS[name]
        layers = info.student_layers(self.depth)
        if name == "hard":
            return function(student.required_logits, batch.gold)
        if info.reads == "logits":
            settings = {"temperature": self.config.temperature} if name == "prediction" else {}
            return function(student.required_logits, targets.required_logits, **settings)
        if info.reads == "scores":
            return _sum(function(student.scores[layer], targets.scores[layer], batch.mask) for layer in layers)
        if info.reads == "relations":
            fields = ("queries", "keys") if name == "query_key_relation" else ("values", "values")
            return function(*self._relations(fields, student, targets, batch.real), batch.mask)
        # A loss that is a mean over rows compares [CLS], the first token of each row.
        chosen = batch.real.first if info.unit == "rows" else lambda states: states
        pairs = ((layer, chosen(student.hidden[layer]), chosen(targets.hidden[layer])) for layer in layers)
        return _sum(function(self._projected(layer, ours), theirs) for layer, ours, theirs in pairs)

    def _relations(
        self, fields: tuple[str, str], student: ModelOutput, targets: DistillationTargets, real: RealTokens
    ) -> tuple[Tensor, Tensor]:
        """Relations of the student's last layer and of the teacher layers that it is mapped to (MiniLM)."""

        def scores(outputs: ModelOutput, layer: int) -> Tensor:
            left, right = (real.pad(getattr(outputs, field)[layer]) for field in fields)
            return losses.relation_scores(left, right, heads=self.config.relation_heads)

        # The map mixes relation scores: the axes of queries and keys differ from layer to layer.
        theirs = {layer: scores(targets, layer) for layer in self.map.read(self.depth)}
        return scores(student, self.depth), self.map.target(self.depth, theirs)

    def _projected(self, layer: int, states: Tensor) -> Tensor:
        """Student states in the teacher's width; unchanged if the widths are equal."""
        name = self._projection_name(layer)
        return self.projections[name](states) if name in self.projections else states

    def start_projections(self, weight: Tensor) -> None:
        """Sets every projection, of later stages too.

        Args:
            weight: (teacher width, student width) for all, or (1 + layers, teacher width, student width) for the
                embeddings and each layer; a projection shared by the layers then takes the last one.
        """
        of_layers = weight.expand(self.depth + 1, -1, -1)
        names = map(self._projection_name, range(self.depth + 1))
        self._take({f"projections.{name}.weight": part for name, part in zip(names, of_layers, strict=True)})

    def save(self, folder: str | Path) -> None:
        """Writes projections and map weights, if there are any, into the existing `folder`."""
        if tensors := self.unused | self.state_dict():
            copies = {name: tensor.cpu().clone().contiguous() for name, tensor in tensors.items()}
            save_file(copies, Path(folder) / FILE)

    def load(self, folder: str | Path) -> None:
        """Continues with what an earlier stage left in `folder`; what it did not need keeps its initial values."""
        if (path := Path(folder) / FILE).is_file():
            self._take(read_weights(path))

    def _take(self, tensors: dict[str, Tensor]) -> None:
        own = self.state_dict()
        fitting = {name for name in own.keys() & tensors.keys() if own[name].shape == tensors[name].shape}
        if self.config.map_is_new:
            fitting = {name for name in fitting if not name.startswith("map.")}
        self.load_state_dict(own | {name: tensors[name] for name in fitting})
        self.unused |= {name: tensor for name, tensor in tensors.items() if name not in own}


def _sum(terms: Iterable[Tensor]) -> Tensor:
    return reduce(operator.add, terms)


def _check_pair(config: DistillationConfig, student: Config, teacher: Config) -> None:
    if student.vocab_size != teacher.vocab_size:
        raise UserError(
            f"vocabulary: the student has {student.vocab_size} word pieces, the teacher {teacher.vocab_size}; "
            "fix: start the student at random or from a folder with the teacher's vocabulary"
        )
    if isinstance(student, BertConfig) and isinstance(teacher, BertConfig):  # a BiLSTM has logit losses only
        check_losses(config.weights, config.relation_heads, student.shape, teacher.shape)
