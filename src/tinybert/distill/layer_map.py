"""A layer map applied: weights of teacher layers for each student layer, every row summing to 1."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tinybert.pipeline.process import stream

# Initial θ of a learnable row: all equal, or (−1, …, −1, 1), which weighs a group of three by (.11, .11, .78).
INITIAL_THETA = {"equal": lambda size: [0.0] * size, "last": lambda size: [-1.0] * (size - 1) + [1.0]}


class LayerWeights(nn.Module):
    """The weights of the teacher layers that each student layer imitates.

    Source: the loss, map and weight study named in docs/paper_map.md.

    Args:
        layers: For each student layer the group of teacher layers (1-based) that it may imitate, at least one.
        kind: How a group is weighted: "mean" equally, "random" by one layer drawn at each step, "learnable" by
            softmax(θ) with θ trained with the student. A group of one has the weight 1 for any kind.
        init: Initial θ, a key of INITIAL_THETA.
        seed: Of the layers that a random map draws.
    """

    def __init__(self, layers: list[list[int]], kind: str, *, init: str = "equal", seed: int = 0) -> None:
        super().__init__()
        self.layers, self.kind, self.seed = layers, kind, seed
        self.is_fixed = kind not in ("random", "learnable")  # the weights are the same at all steps
        self.drawn = layers
        self.theta = nn.ParameterList()
        if kind == "learnable":
            self.theta.extend(nn.Parameter(torch.tensor(INITIAL_THETA[init](len(group)))) for group in layers)
        self.redraw(0)

    def redraw(self, step: int) -> None:
        """Draws the layers of a random map for a training step; they depend on the seed and the step only."""
        if self.kind == "random":
            rng = stream(self.seed, "layer map", step)
            self.drawn = [[group[rng.integers(len(group))]] for group in self.layers]

    def read(self, student_layer: int, *, at_any_step: bool = False) -> list[int]:
        """The teacher layers that `student_layer` (1-based) reads at this step, or may read."""
        return (self.layers if at_any_step else self.drawn)[student_layer - 1]

    def row(self, student_layer: int) -> Tensor | list[float]:
        """The weights of the layers that are read."""
        if self.theta:
            return self.theta[student_layer - 1].softmax(dim=0)
        count = len(self.read(student_layer))
        return [1.0 / count] * count

    def target(self, student_layer: int, teacher: Mapping[int, Tensor]) -> Tensor:
        """Σ_j v_j·(teacher layer j), of scores or hidden states; a single layer is returned without a copy.

        Args:
            student_layer: 1-based.
            teacher: Teacher layer -> tensor.
        """
        read = self.read(student_layer)
        if len(read) == 1:
            return teacher[read[0]]
        # A Python number times float16 stays float16, so that the sum is taken in float32.
        wide = (teacher[layer].to(torch.promote_types(teacher[layer].dtype, torch.float32)) for layer in read)
        return sum(weight * part for weight, part in zip(self.row(student_layer), wide, strict=True))

    def learnt(self) -> dict[str, float]:
        """The weights of a learnable map as map_<student layer>_<teacher layer>; empty for other kinds."""
        return {
            f"map_{number}_{layer}": float(weight.detach())
            for number, group in enumerate(self.layers, start=1)
            if self.theta
            for layer, weight in zip(group, self.row(number), strict=True)
        }
