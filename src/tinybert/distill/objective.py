"""The λ-weighted sum of losses that a student minimizes, and the layer map that pairs layers."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tinybert.config.students import LOSSES, Learnable, Student, check_losses, mapped_layers
from tinybert.config.tasks import MULTILABEL
from tinybert.distill import losses
from tinybert.models.bert import BertConfig
from tinybert.models.bilstm import BiLstmConfig
from tinybert.models.foreign import ForeignConfig
from tinybert.models.model_folders import OBJECTIVE_FILE, read_weights
from tinybert.models.outputs import Batch, DistillationTargets, ModelOutput, OutputSpec
from tinybert.models.packed_linear import Linear
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.process import stream

Config = BertConfig | BiLstmConfig | ForeignConfig
# Initial θ of a learnable row: all equal, or (−1, …, −1, 1), which weighs a group of three by (.11, .11, .78).
INITIAL_THETA = {"equal": lambda size: [0.0] * size, "last": lambda size: [-1.0] * (size - 1) + [1.0]}


@dataclass(frozen=True)
class DistillationConfig:
    """What a student imitates.

    Attributes:
        weights: λ by loss name; without any, nothing is trained.
        layer_map: A named map, a teacher layer for each student layer, or a learnable map.
        map_is_new: Whether a learnable map starts again instead of continuing from the stage before.
        projection: "shared" by all layers, or "per_layer".
        padded_tokens: The length that rows are padded to under `reduction: published`; None: real tokens only.
        seed: Of a random map.
    """

    weights: dict[str, float]
    layer_map: str | tuple[int, ...] | Learnable = "uniform"
    map_is_new: bool = False
    projection: str = "shared"
    temperature: float = 1.0
    padded_tokens: int | None = None
    seed: int = 0

    @classmethod
    def of(cls, student: Student, stage: str, *, seed: int, length_tokens: int) -> "DistillationConfig":
        """The config of one of the student's stages; without losses if the student skips the stage.

        length_tokens: of the longest row that params.yaml allows in the stage.
        """
        stage_losses = getattr(student, stage)
        if stage_losses is None:
            return cls({})
        return cls(
            weights=stage_losses.active_losses,
            layer_map=stage_losses.layer_map or student.layer_map,
            map_is_new=stage_losses.layer_map is not None,
            projection=student.projection,
            temperature=stage_losses.temperature or 1.0,
            padded_tokens=length_tokens if stage_losses.reduction == "published" else None,
            seed=seed,
        )


class LayerWeights(nn.Module):
    """The weights of the teacher layers that each student layer imitates; they sum to 1.

    Source: the loss, map and weight study named in docs/paper_map.md.

    Args:
        layers: For each student layer the group of teacher layers (1-based) that it may imitate, at least one.
        layer_map: How a group is weighted: "random" by one layer drawn at each step, a learnable map by softmax(θ) with
            θ trained with the student, any other map equally. A group of one has the weight 1 for any map.
        seed: Of the layers that a random map draws.
    """

    def __init__(self, layers: list[list[int]], layer_map: str | tuple[int, ...] | Learnable, *, seed: int = 0) -> None:
        super().__init__()
        self.layers, self.is_random, self.seed = layers, layer_map == "random", seed
        self.is_fixed = not (self.is_random or isinstance(layer_map, Learnable))  # the same weights at all steps
        self.drawn = layers
        self.theta = nn.ParameterList()
        if isinstance(layer_map, Learnable):
            initial = INITIAL_THETA[layer_map.learnable.init]
            self.theta.extend(nn.Parameter(torch.tensor(initial(len(group)))) for group in layers)
        self.redraw(0)

    def redraw(self, step: int) -> None:
        """Draws the layers of a random map for a training step; they depend on the seed and the step only."""
        if self.is_random:
            rng = stream(self.seed, "layer map", step)
            self.drawn = [[group[rng.integers(len(group))]] for group in self.layers]

    def read(self, student_layer: int, *, at_any_step: bool = False) -> list[int]:
        """The teacher layers that `student_layer` reads at this step, or at any; the embedding output (0) reads 0."""
        return (self.layers if at_any_step else self.drawn)[student_layer - 1] if student_layer else [0]

    def target(self, student_layer: int, teacher: Mapping[int, Tensor]) -> Tensor:
        """Σ_j v_j·(teacher layer j), of scores or hidden states by layer; a single layer is returned without a copy."""
        read = self.read(student_layer)
        if len(read) == 1:
            return teacher[read[0]]
        weights = self.theta[student_layer - 1].softmax(dim=0) if self.theta else [1.0 / len(read)] * len(read)
        # Converted first, because a Python number times float16 stays float16, and the sum needs float32.
        return sum(weight * losses.wide(teacher[layer]) for weight, layer in zip(weights, read, strict=True))

    def learned(self) -> dict[str, float]:
        """The weights of a learnable map as map_<student layer>_<teacher layer>; empty for other maps."""
        return {
            f"map_{number}_{layer}": weight
            for number, (group, theta) in enumerate(zip(self.layers, self.theta, strict=False), start=1)
            for layer, weight in zip(group, theta.softmax(dim=0).tolist(), strict=True)
        }


class DistillationLoss(nn.Module):
    """L = Σ_k λ_k·L_k; losses of layers are sums over student layers (TinyBERT eq. 6 and 11).

    Holds what is trained beside the student: projections W (student width -> teacher width, without bias, only if the
    widths differ and a loss reads them) and the weights of a learnable layer map. Losses that read a teacher need its
    config; UserError if a loss cannot compare the two models.
    """

    def __init__(self, config: DistillationConfig, student: Config, teacher: Config | None = None) -> None:
        super().__init__()
        self.config, self.weights = config, config.weights
        self.infos = {name: LOSSES[name] for name in config.weights}
        self.depth = student.num_hidden_layers
        self.is_multilabel = student.problem_type == MULTILABEL
        self.reads_teacher = any(info.reads_teacher for info in self.infos.values())
        # Of states and scores, for which a BERT teacher must read the student's tokens.
        self.compares_tokens = any(info.reads != "logits" for info in self.infos.values())
        # What the student exposes; nothing else is computed.
        reads_logits = any(info.reads == "logits" for info in self.infos.values())
        self.student_spec = OutputSpec(self._layers("hidden"), self._layers("scores"), reads_logits)
        # The length to which all rows are padded; 0 if the models skip padding.
        self.padded_tokens = (config.padded_tokens or 0) if self.student_spec.hidden or self.student_spec.scores else 0
        self.map = LayerWeights([], "mean")
        self.projections = nn.ModuleDict()
        self.unused: dict[str, Tensor] = {}  # learned by an earlier stage, kept for a later one
        if self.reads_teacher:
            assert teacher is not None
            _check_pair(config, student, teacher)
            # Without a loss that reads mapped layers the depths need not fit.
            if any(info.needs_map for info in self.infos.values()):
                groups = mapped_layers(config.layer_map, self.depth, teacher.num_hidden_layers)
                self.map = LayerWeights(groups, config.layer_map, seed=config.seed)
            if student.hidden_size != teacher.hidden_size:
                for name in dict.fromkeys(map(self._projection_name, sorted(self.student_spec.hidden))):
                    self.projections[name] = Linear(student.hidden_size, teacher.hidden_size, bias=False)

    def _layers(self, output: str) -> frozenset[int]:
        """The student layers of which losses read an output; 0 is the embedding output."""
        infos = (info for info in self.infos.values() if info.reads == output)
        return frozenset(layer for info in infos for layer in info.student_layers(self.depth))

    def _projection_name(self, layer: int) -> str:
        return "embedding" if layer == 0 else "hidden" if self.config.projection == "shared" else f"hidden_{layer}"

    def prepare(self, batch: Batch) -> Batch:
        """The batch as student and teacher compute it: with padding if losses are means over it."""
        return batch.padded_to(self.padded_tokens) if self.padded_tokens else batch

    def unit(self, name: str) -> str:
        """What a loss is a mean over; rows, if all are padded to one length."""
        unit = self.infos[name].unit
        return "rows" if self.config.padded_tokens and unit in ("tokens", "pairs") else unit

    def teacher_spec(self, *, at_any_step: bool = False) -> OutputSpec:
        """What the teacher exposes at this step, or at any step: a random map reads one layer of each group."""
        spec = self.student_spec
        logits = any(info.reads == "logits" and info.reads_teacher for info in self.infos.values())

        def read(layers: frozenset[int]) -> frozenset[int]:
            return frozenset().union(*(self.map.read(layer, at_any_step=at_any_step) for layer in layers))

        return OutputSpec(read(spec.hidden), read(spec.scores), logits)

    def targets(self, teacher: ModelOutput) -> DistillationTargets:
        """What the student imitates: the teacher's hidden states and scores, weighted by the layer map."""
        spec = self.student_spec
        hidden = {layer: self.map.target(layer, teacher.hidden) for layer in spec.hidden}
        scores = {layer: self.map.target(layer, teacher.scores) for layer in spec.scores}
        return DistillationTargets(hidden, scores, teacher.logits)

    def forward(self, student: ModelOutput, teacher: ModelOutput, batch: Batch) -> dict[str, Tensor]:
        """The unweighted loss terms of a batch, a scalar by loss name.

        Args:
            student: The outputs of `student_spec`.
            teacher: The outputs of `teacher_spec`, or targets made from them.
            batch: The batch that both computed, with labels if a loss reads them.
        """
        targets = teacher if isinstance(teacher, DistillationTargets) else self.targets(teacher)
        return {name: self._term(name, student, targets, batch) for name in self.weights}

    def total(self, terms: dict[str, Tensor]) -> Tensor:
        """Σ λ·term, the scalar to minimize."""
        return reduce(add, (self.weights[name] * term for name, term in terms.items()))

    def _term(self, name: str, student: ModelOutput, targets: DistillationTargets, batch: Batch) -> Tensor:
        function: Callable[..., Tensor] = getattr(losses, name)
        if self.is_multilabel and name == "prediction":  # no published code distills such tasks
            function = losses.multilabel_prediction
        elif self.config.padded_tokens:
            function = getattr(losses, f"published_{name}", function)
        settings = {"temperature": self.config.temperature} if name == "prediction" else {}
        compared = self._compared(name, student, targets, batch)
        return reduce(add, (function(*arguments, **settings) for arguments in compared))

    def _compared(
        self, name: str, student: ModelOutput, targets: DistillationTargets, batch: Batch
    ) -> Iterator[tuple[Tensor, ...]]:
        """The arguments of a loss function: what the student exposes and what it imitates, for each layer it reads."""
        info = self.infos[name]
        if info.reads == "logits":
            yield student.required_logits, batch.gold if name == "hard" else targets.required_logits
        for layer in info.student_layers(self.depth):
            if info.reads == "scores":
                yield student.scores[layer], targets.scores[layer], batch.mask
            else:
                both = student.hidden[layer], targets.hidden[layer]
                # A loss that is a mean over rows compares [CLS], the first token of each row.
                states, target = map(batch.real.first, both) if info.unit == "rows" else both
                projection = self._projection_name(layer)  # none if the widths are equal
                yield self.projections[projection](states) if projection in self.projections else states, target

    def start_projections(self, weight: Tensor | None) -> None:
        """Sets every projection, of later stages too.

        Args:
            weight: (teacher width, student width) for all, or (1 + layers, teacher width, student width) for the
                embeddings and each layer; a shared projection takes the last layer's. None: they stay random.
        """
        if weight is None:
            return
        of_layers = weight.expand(self.depth + 1, -1, -1)
        names = map(self._projection_name, range(self.depth + 1))
        self.take({f"projections.{name}.weight": part for name, part in zip(names, of_layers, strict=True)})

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Projections and map weights, with those of earlier stages that this one does not use."""
        return self.unused | self.state_dict()

    def save(self, folder: str | Path) -> None:
        """Writes `tensors`, if there are any, into the existing `folder`."""
        if tensors := self.tensors:
            copies = {name: tensor.cpu().clone().contiguous() for name, tensor in tensors.items()}
            save_file(copies, Path(folder) / OBJECTIVE_FILE)

    def load(self, folder: str | Path) -> None:
        """Continues with what an earlier stage left in `folder`; what it did not need keeps its initial values."""
        if (path := Path(folder) / OBJECTIVE_FILE).is_file():
            self.take(read_weights(path))

    def take(self, tensors: dict[str, Tensor]) -> None:
        """Continues with the `tensors` of an earlier stage, where their shapes fit."""
        own = self.state_dict()
        fitting = {name for name in own.keys() & tensors.keys() if own[name].shape == tensors[name].shape}
        if self.config.map_is_new:
            fitting = {name for name in fitting if not name.startswith("map.")}
        self.load_state_dict(own | {name: tensors[name] for name in fitting})
        self.unused |= {name: tensor for name, tensor in tensors.items() if name not in own}


def _check_pair(config: DistillationConfig, student: Config, teacher: Config) -> None:
    depth, listed = student.num_hidden_layers, config.layer_map
    if isinstance(listed, tuple) and len(listed) != depth:
        raise UserError(f"layer_map: one layer for each of the student's (got {len(listed)}); allowed: {depth}")
    is_bert = isinstance(student, BertConfig)
    known = LOSSES.items()
    possible = [name for name, loss in known if loss.reads == "logits" or (is_bert and loss.student_layers(depth))]
    for name in config.weights:
        if name not in possible:
            allowed = ", ".join(possible)
            raise UserError(f"losses: {name} compares layers that this student does not have; allowed: {allowed}")
        if isinstance(teacher, ForeignConfig) and name not in teacher.losses:
            raise UserError(f"losses: no targets for {name} from this teacher; allowed: {', '.join(teacher.losses)}")
    if isinstance(student, BertConfig) and isinstance(teacher, BertConfig):
        check_losses(config.weights, student.shape, teacher.shape, key="")
