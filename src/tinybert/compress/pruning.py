"""Global unstructured pruning of all Linear and LSTM weights, raised step by step while the model trains.

One ranking over all these weights together (biases, embeddings and layer norms are never pruned); the sparsity
follows a schedule, cubic being that of Zhu & Gupta (2017), eq. 1. What ranks them is the criterion: their magnitude
(L1), or which way training moves them (Sanh et al. 2020, "Movement pruning").
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from tinybert.pipeline.errors import UserError

# progress in 0..1 -> share of the target in 0..1
SCHEDULES = {
    "cubic": lambda progress: 1.0 - (1.0 - progress) ** 3,
    "linear": lambda progress: progress,
}
PREFIX = "pruner."  # of its tensors in a checkpoint
STATE = ("scores", "kept", "pruned")  # names of what a movement pruner keeps there


class Pruner(ABC):
    """Holds the least important Linear and LSTM weights of a model at exactly zero, ever more of them, up to a target.

    target: share of ALL these weights that ends as zero, 0..1. Every increment counts from all weights, not from
    those left, so that increments do not compound to less than the target.
    ramp_steps: optimizer steps until the target is reached; every one of them raises the masks, which then stay. The
    published run raises them once an epoch, 5 or 6 times in all.

    To be built when the model is on its device. UserError when an argument is out of range, or the model has nothing
    to prune.
    """

    def __init__(self, model: nn.Module, *, target: float, schedule: str, ramp_steps: int) -> None:
        if not 0.0 <= target <= 1.0:
            raise UserError(f"pruning target {target}: a share of all Linear weights is expected, 0 to 1")
        if schedule not in SCHEDULES:
            raise UserError(f"pruning schedule {schedule!r}: one of {', '.join(SCHEDULES)} is expected")
        if ramp_steps < 1:
            raise UserError(f"pruning ramp of {ramp_steps} steps: at least 1 is needed; train longer")
        self.weights = _linear_weights(model)
        self.pruned = _zeros(self.weights)
        self.target = target
        self.schedule = SCHEDULES[schedule]
        self.ramp_steps = ramp_steps

    def scheduled_sparsity(self, step: int) -> float:
        """The share of all weights that is zero after optimizer step `step`, counted from 0."""
        return self.target * self.schedule(min((step + 1) / self.ramp_steps, 1.0))

    @torch.no_grad()
    def before_step(self, step: int) -> None:
        """Raises the masks while that is due and zeroes the gradients of pruned weights.

        To be called between the backward pass and the optimizer step `step` (from 0), before gradients
        are clipped, so that pruned weights have no part in the norm.
        """
        if step < self.ramp_steps:
            self._raise_masks(round(self.scheduled_sparsity(step) * _total(self.weights)))
        self._mask_gradients()

    @torch.no_grad()
    def after_step(self) -> None:
        """Sets pruned weights back to zero: momentum from before the pruning still moves them."""
        for weight, pruned in zip(self.weights, self.pruned, strict=True):
            weight.masked_fill_(pruned, 0.0)

    @abstractmethod
    def _raise_masks(self, count: int) -> None:
        """Chooses the `count` weights to be pruned from now on; gradients are those of this step, not yet masked."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps beside the model's weights."""

    @abstractmethod
    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Goes on where `tensors`, of a checkpoint, were taken; the model's weights are those of then already."""

    def _mask_gradients(self) -> None:
        for weight, pruned in zip(self.weights, self.pruned, strict=True):
            if weight.grad is not None:
                weight.grad.masked_fill_(pruned, 0.0)


class MagnitudePruner(Pruner):
    """Prunes the weights of smallest magnitude; what is pruned stays so. Its masks are the zeros of the weights."""

    def _raise_masks(self, count: int) -> None:
        if count > _count_true(self.pruned):
            masked = zip(self.weights, self.pruned, strict=True)
            self.pruned = _lowest([weight.abs().masked_fill(pruned, -1.0) for weight, pruned in masked], count)

    def tensors(self) -> dict[str, Tensor]:
        """Nothing: the weights are all the state there is."""
        return {}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Takes up the zeros of the restored weights."""
        self.pruned = _zeros(self.weights)


class MovementPruner(Pruner):
    """Prunes the weights that training moves towards zero: those of lowest S = −Σ_t (∂L/∂W')_t · W_t (sec. 4).

    The forward pass reads the masked weight W' = M ⊙ W, which is what the model holds; the values of pruned weights are
    kept here. The mask passes gradients straight through to the scores: while the ramp lasts, the score of a pruned
    weight goes on with the gradient of its W' (which is 0) times its kept value. That value itself has no gradient, as
    in the paper, nor is it decayed: a weight whose score recovers comes back as it went. At the end of the ramp the
    masks are final. The paper's constant learning rate of S changes no ranking and is left out; gradients are
    those of the whole batch, before clipping.
    """

    def __init__(self, model: nn.Module, *, target: float, schedule: str, ramp_steps: int) -> None:
        super().__init__(model, target=target, schedule=schedule, ramp_steps=ramp_steps)
        self.scores = [torch.zeros_like(weight.detach()) for weight in self.weights]
        self.kept = [torch.zeros_like(weight.detach()) for weight in self.weights]  # 0 where not pruned

    def _raise_masks(self, count: int) -> None:
        # One of the two summands is 0 everywhere: the sum is exact.
        dense = [weight + kept for weight, kept in zip(self.weights, self.kept, strict=True)]
        for weight, score, value in zip(self.weights, self.scores, dense, strict=True):
            if weight.grad is not None:
                score.addcmul_(weight.grad, value, value=-1.0)
        self._mask_gradients()  # by the masks of this forward pass: what comes back moves from the next step on
        self.pruned = _lowest(self.scores, count)
        for weight, kept, value, pruned in zip(self.weights, self.kept, dense, self.pruned, strict=True):
            weight.copy_(value.masked_fill(pruned, 0.0))
            kept.copy_(value.masked_fill(~pruned, 0.0))

    def tensors(self) -> dict[str, Tensor]:
        """Scores, kept values and masks, by the number of the weight."""
        groups = zip(STATE, (self.scores, self.kept, self.pruned), strict=True)
        return {f"{PREFIX}{name}.{index}": part for name, group in groups for index, part in enumerate(group)}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Puts back what `tensors` gave."""
        self.scores, self.kept, self.pruned = (
            [tensors[f"{PREFIX}{name}.{index}"].to(weight.device) for index, weight in enumerate(self.weights)]
            for name in STATE
        )


PRUNERS: dict[str, type[MagnitudePruner | MovementPruner]] = {
    "magnitude": MagnitudePruner,
    "movement": MovementPruner,
}  # by criterion


def linear_sparsity(model: nn.Module) -> float:
    """Share of exact zeros over all Linear and LSTM weights of `model`."""
    weights = _linear_weights(model)
    return _count_true(_zeros(weights)) / _total(weights)


def _linear_weights(model: nn.Module) -> list[nn.Parameter]:
    """The weights of all Linear modules and LSTMs, in module order; UserError when there is none.

    An LSTM's input and recurrent weights are the Linear weights of its four gates.
    """
    weights = [
        parameter
        for module in model.modules()
        if isinstance(module, (nn.Linear, nn.LSTM))
        for name, parameter in module.named_parameters(recurse=False)
        if name.startswith("weight")
    ]
    if not weights:
        raise UserError(f"{type(model).__name__} has no Linear layer; pruning needs at least one")
    return weights


def _lowest(scores: list[Tensor], count: int) -> list[Tensor]:
    """Masks of exactly the `count` lowest scores of all tensors together; equal ones in order.

    Returns one bool tensor for each of scores, True where chosen.
    """
    if count == 0:
        return [torch.zeros_like(part, dtype=torch.bool) for part in scores]
    ranked = torch.cat([part.flatten() for part in scores])
    # By NumPy: on a CPU ten times as fast as kthvalue, and this is done at every step of the ramp.
    threshold = float(np.partition(ranked.numpy(force=True), count - 1)[count - 1])
    chosen = ranked < threshold
    tied = (ranked == threshold).nonzero().squeeze(1)
    chosen[tied[: count - int(chosen.sum())]] = True
    parts = chosen.split([part.numel() for part in scores])
    return [part.view_as(score) for part, score in zip(parts, scores, strict=True)]


def _zeros(weights: Sequence[Tensor]) -> list[Tensor]:
    return [weight.detach() == 0 for weight in weights]


def _total(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _count_true(masks: list[Tensor]) -> int:
    return sum(int(mask.sum()) for mask in masks)
