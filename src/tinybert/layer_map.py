"""Which teacher layers a student layer imitates, as a matrix."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tinybert.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor


def uniform(student_layers: int, teacher_layers: int) -> list[int]:
    """g(m) = ceil(m·N/M): 3, 6, 9, 12 for 12 to 4 (TinyBERT, sec. 3; rounded up where M does not divide N)."""
    return [-(-layer * teacher_layers // student_layers) for layer in range(1, student_layers + 1)]


def top(student_layers: int, teacher_layers: int) -> list[int]:
    """g(m) = m + N − M: the teacher's last layers (TinyBERT, sec. 4.5)."""
    return [layer + teacher_layers - student_layers for layer in range(1, student_layers + 1)]


def bottom(student_layers: int, teacher_layers: int) -> list[int]:
    """g(m) = m: the teacher's first layers (TinyBERT, sec. 4.5)."""
    return list(range(1, student_layers + 1))


STRATEGIES = {"uniform": uniform, "top": top, "bottom": bottom}


def mapped_layers(layer_map: str | tuple[int, ...], student_layers: int, teacher_layers: int) -> list[int]:
    """The teacher layer (1-based) of each student layer; UserError where the teacher lacks one."""
    if isinstance(layer_map, str):
        if student_layers > teacher_layers:
            raise UserError(
                f"layer_map: {layer_map} cannot map {student_layers} student layers to {teacher_layers} teacher "
                "layers; make the student shallower, or list a teacher layer for each student layer"
            )
        return STRATEGIES[layer_map](student_layers, teacher_layers)
    for layer in layer_map:
        if layer > teacher_layers:
            raise UserError(f"layer_map: {layer} is beyond the teacher's layers; choose from 1 to {teacher_layers}")
    return list(layer_map)


def matrix(layer_map: str | tuple[int, ...], student_layers: int, teacher_layers: int) -> "Tensor":
    """The map as weights (student layers, teacher layers) float32; each row sums to 1."""
    import torch  # here, for params are checked with the lists alone, in stages that need no torch

    weights = torch.zeros(student_layers, teacher_layers)
    for row, layer in enumerate(mapped_layers(layer_map, student_layers, teacher_layers)):
        weights[row, layer - 1] = 1.0
    return weights


def target(weights: "Tensor", teacher_layers: Mapping[int, "Tensor"]) -> "Tensor":
    """What one student layer imitates: Σ_j weights[j]·teacher layer j+1, over layers with a weight.

    weights: (teacher layers,), one row of the map. teacher_layers: layer -> tensor, hidden states or scores.
    """
    read = weights.nonzero().flatten().tolist()
    if len(read) == 1:  # a one-hot row, which sums to 1: the layer itself, without a copy
        return teacher_layers[read[0] + 1]
    return sum(weights[column] * teacher_layers[column + 1] for column in read)
