"""A layer map at work: a matrix of weights, student layers × teacher layers, whose rows sum to 1."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tinybert.pipeline.process import stream

# θ of a learnable row at the start: all alike, or (−1, …, −1, 1), which gives a block of three (.11, .11, .78).
STARTS = {"equal": lambda size: [0.0] * size, "last": lambda size: [-1.0] * (size - 1) + [1.0]}


class LayerWeights(nn.Module):
    """Weighs the teacher layers that each student layer imitates.

    layers: for each student layer the teacher layers (1-based) it may imitate, one or a block of them.
    kind: how a block is weighed: "mean" equally, "random" by one layer drawn anew at each step, "learnable" by
    softmax(θ), θ trained with the student. A single layer has the weight 1 whatever the kind. start: of θ, "equal"
    or "last". Source: the loss, map and weight study named in docs/paper_map.md.
    """

    def __init__(self, layers: list[list[int]], kind: str, *, start: str = "equal", seed: int = 0) -> None:
        super().__init__()
        self.layers, self.kind, self.seed = layers, kind, seed
        self.drawn = layers
        self.theta = nn.ParameterList()
        if kind == "learnable":
            self.theta.extend(nn.Parameter(torch.tensor(STARTS[start](len(block)))) for block in layers)
        self.redraw(0)

    @property
    def is_fixed(self) -> bool:
        """Whether the weights are the same in all steps."""
        return self.kind not in ("random", "learnable")

    def redraw(self, step: int) -> None:
        """A random map chooses its layers for a training step; the seed and the step alone decide."""
        if self.kind == "random":
            rng = stream(self.seed, "layer map", step)
            self.drawn = [[block[rng.integers(len(block))]] for block in self.layers]

    def block(self, student_layer: int) -> list[int]:
        """The teacher layers that `student_layer` (1-based) may read."""
        return self.layers[student_layer - 1]

    def read(self, student_layer: int) -> list[int]:
        """The teacher layers that `student_layer` (1-based) reads in this step."""
        return self.drawn[student_layer - 1]

    def row(self, student_layer: int) -> Tensor | list[float]:
        """The weights of those layers."""
        if self.theta:
            return self.theta[student_layer - 1].softmax(dim=0)
        count = len(self.read(student_layer))
        return [1.0 / count] * count

    def target(self, student_layer: int, teacher: Mapping[int, Tensor]) -> Tensor:
        """What a student layer imitates: Σ_j v_j·teacher layer j, of scores or hidden states alike.

        teacher: layer -> tensor. A single layer is handed out without a copy.
        """
        read = self.read(student_layer)
        if len(read) == 1:
            return teacher[read[0]]
        # Half precision is widened: a weight times it would stay as narrow.
        wide = (teacher[layer].to(torch.promote_types(teacher[layer].dtype, torch.float32)) for layer in read)
        return sum(weight * part for weight, part in zip(self.row(student_layer), wide, strict=True))

    def learnt(self) -> dict[str, float]:
        """The weights of a learnable map by name, map_<student layer>_<teacher layer>; empty for other kinds."""
        return {
            f"map_{number}_{layer}": float(weight.detach())
            for number, block in enumerate(self.layers, start=1)
            if self.theta
            for layer, weight in zip(block, self.row(number), strict=True)
        }
