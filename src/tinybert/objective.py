"""The λ-weighted sum of losses that a student minimises, built from params."""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tinybert import layer_map, losses
from tinybert.errors import UserError
from tinybert.models.activations import Activations, Batch, Wanted
from tinybert.models.bert import BertConfig

PROJECTIONS = "projections.safetensors"
LAYER_LOSSES = ("attention", "hidden", "embedding")  # read inner layers; the others read logits


@dataclass(frozen=True)
class Imitation:
    """What to imitate: λ by loss name, and the settings the losses read.

    layer_map: uniform, top, bottom or a list. projection: shared or per_layer.
    """

    weights: dict[str, float]
    layer_map: str | tuple[int, ...] = "uniform"
    projection: str = "shared"
    temperature: float = 1.0

    @classmethod
    def of(cls, student, stage: str) -> "Imitation":
        """From a student's recipe in params and the name of its stage."""
        recipe = getattr(student, stage)
        weights = {name: weight for name, weight in recipe.losses.items() if weight > 0}
        return cls(weights, student.layer_map, student.projection, recipe.temperature or 1.0)


class Objective(nn.Module):
    """L = Σ_k λ_k·L_k; the layer losses are sums over the student's layers (TinyBERT eq. 6 and 11).

    Holds the learned projections W_h and W_e (student width -> teacher width, without bias, only where
    the widths differ and a loss reads them) and the layer map. `student_wants` and `teacher_wants` say
    which activations its losses read; nothing else needs computing.
    """

    def __init__(self, imitation: Imitation, student: BertConfig, teacher: BertConfig | None = None) -> None:
        super().__init__()
        self.weights, self.temperature = imitation.weights, imitation.temperature
        self.layers = student.num_hidden_layers
        reads_teacher = self._on(*LAYER_LOSSES, "prediction")
        if reads_teacher:
            _refuse_unfit(imitation, student, teacher)
        self.register_buffer("map", _map(imitation, student, teacher) if reads_teacher else None, persistent=False)
        self.projections = nn.ModuleDict()
        if teacher and student.hidden_size != teacher.hidden_size:
            self._add_projections(imitation.projection, student.hidden_size, teacher.hidden_size)

    def _on(self, *names: str) -> bool:
        return any(name in self.weights for name in names)

    def _add_projections(self, kind: str, student_width: int, teacher_width: int) -> None:
        names = ["embedding"] if self._on("embedding") else []
        if self._on("hidden"):
            names += ["hidden"] if kind == "shared" else [f"hidden_{layer}" for layer in range(1, self.layers + 1)]
        for name in names:
            self.projections[name] = nn.Linear(student_width, teacher_width, bias=False)

    @property
    def student_wants(self) -> Wanted:
        """What the student must expose."""
        return self._wants(frozenset(range(1, self.layers + 1)), logits=self.reads_predictions)

    @property
    def reads_predictions(self) -> bool:
        """Whether a loss reads logits; on text only then are tokens masked, for others would predict nothing."""
        return self._on("hard", "prediction")

    @property
    def teacher_wants(self) -> Wanted | None:
        """What the teacher must expose; None where no loss reads a teacher."""
        if self.map is None:
            return None
        mapped = frozenset((self.map.any(dim=0).nonzero().flatten() + 1).tolist())
        return self._wants(mapped, logits=self._on("prediction"))

    def _wants(self, layers: frozenset[int], *, logits: bool) -> Wanted:
        embedding = frozenset({0} if self._on("embedding") else ())
        hidden = layers if self._on("hidden") else frozenset()
        return Wanted(embedding | hidden, layers if self._on("attention") else frozenset(), logits)

    def forward(self, student: Activations, teacher: Activations | None, batch: Batch) -> dict[str, Tensor]:
        """The unweighted loss terms by name, each a scalar."""
        terms = {
            "hard": lambda: losses.hard(student.logits, batch.labels),
            "prediction": lambda: losses.prediction(student.logits, teacher.logits, temperature=self.temperature),
            "attention": lambda: self._attention(student, teacher, batch.mask),
            "hidden": lambda: self._hidden(student, teacher, batch.mask),
            "embedding": lambda: losses.hidden(
                self._project("embedding", student.hidden[0]), teacher.hidden[0], batch.mask
            ),
        }
        return {name: terms[name]() for name in self.weights}

    def total(self, terms: dict[str, Tensor]) -> Tensor:
        """Σ λ·term, the scalar to minimise."""
        return sum(self.weights[name] * term for name, term in terms.items())

    def _attention(self, student: Activations, teacher: Activations, mask: Tensor) -> Tensor:
        return sum(
            losses.attention(student.scores[layer], layer_map.target(self.map[layer - 1], teacher.scores), mask)
            for layer in range(1, self.layers + 1)
        )

    def _hidden(self, student: Activations, teacher: Activations, mask: Tensor) -> Tensor:
        total = 0.0
        for layer in range(1, self.layers + 1):
            name = "hidden" if "hidden" in self.projections else f"hidden_{layer}"
            projected = self._project(name, student.hidden[layer])
            total = total + losses.hidden(projected, layer_map.target(self.map[layer - 1], teacher.hidden), mask)
        return total

    def save_projections(self, folder: str | Path) -> None:
        """Writes the projections, if there are any, beside the student's weights in `folder`."""
        if tensors := self.projections.state_dict():
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, Path(folder) / PROJECTIONS)

    def load_projections(self, folder: str | Path) -> None:
        """Goes on with the projections that an earlier stage left in `folder`; what it did not need starts anew."""
        path = Path(folder) / PROJECTIONS
        if path.is_file():
            ours, stored = self.projections.state_dict(), load_file(path)
            self.projections.load_state_dict(ours | {name: stored[name] for name in ours.keys() & stored.keys()})

    def _project(self, name: str, states: Tensor) -> Tensor:
        """Into the teacher's width; there already where the widths agree."""
        return self.projections[name](states) if name in self.projections else states


def _map(imitation: Imitation, student: BertConfig, teacher: BertConfig) -> Tensor:
    """The layer map; where only logits are imitated it is empty, and the depths need not fit."""
    if not set(imitation.weights) & {"attention", "hidden"}:
        return torch.zeros(student.num_hidden_layers, teacher.num_hidden_layers)
    return layer_map.matrix(imitation.layer_map, student.num_hidden_layers, teacher.num_hidden_layers)


def _refuse_unfit(imitation: Imitation, student: BertConfig, teacher: BertConfig) -> None:
    """UserError where student and teacher cannot be compared by the losses that are on."""
    if student.vocab_size != teacher.vocab_size:
        raise UserError(
            f"vocabulary: the student has {student.vocab_size} word pieces, the teacher {teacher.vocab_size}; "
            "both must use one tokenizer: start the student at random or from a folder with the teacher's vocabulary"
        )
    heads = student.num_attention_heads, teacher.num_attention_heads
    if "attention" in imitation.weights and heads[0] != heads[1]:
        raise UserError(
            f"losses.attention: the student has {heads[0]} heads, the teacher {heads[1]}; "
            f"that loss needs equal numbers: set architecture.heads to {heads[1]} or use the hidden loss instead"
        )
