"""Global unstructured magnitude pruning of all Linear weights, raised step by step while the model trains.

One ranking over all Linear weights together (biases, embeddings and layer norms are never pruned); the
sparsity follows a schedule, cubic being that of Zhu & Gupta (2017), eq. 1.
"""

import torch
from torch import Tensor, nn

from tinybert.errors import UserError

# progress in 0..1 -> share of the target in 0..1
SCHEDULES = {
    "cubic": lambda progress: 1.0 - (1.0 - progress) ** 3,
    "linear": lambda progress: progress,
}


class Pruner:
    """Holds the smallest Linear weights of a model at exactly zero, ever more of them, up to a target.

    target: share of ALL Linear weights that ends as zero, 0..1. Every increment counts from all weights,
    not from those left, so that increments do not compound to less than the target.
    ramp_steps: optimizer steps until the target is reached; every one of them raises the masks. The published
    run raises them once an epoch, 5 or 6 times in all.

    The masks are the zeros of the weights: a Pruner built on a restored model takes up its zeros, so a
    checkpoint of the weights and the number of the step is all the state there is. To be built when the
    model is on its device. UserError when an argument is out of range.
    """

    def __init__(self, model: nn.Module, *, target: float, schedule: str, ramp_steps: int) -> None:
        if not 0.0 <= target <= 1.0:
            raise UserError(f"pruning target {target}: a share of all Linear weights is expected, 0 to 1")
        if schedule not in SCHEDULES:
            raise UserError(f"pruning schedule {schedule!r}: one of {', '.join(SCHEDULES)} is expected")
        if ramp_steps < 1:
            raise UserError(f"pruning ramp of {ramp_steps} steps: at least 1 is needed; train longer")
        self.weights = _linear_weights(model)
        self.pruned = [weight.detach() == 0 for weight in self.weights]
        self.count = _count_true(self.pruned)
        self.target = target
        self.schedule = SCHEDULES[schedule]
        self.ramp_steps = ramp_steps

    def scheduled_sparsity(self, step: int) -> float:
        """The share of all weights that is zero after optimizer step `step`, counted from 0."""
        return self.target * self.schedule(min((step + 1) / self.ramp_steps, 1.0))

    @torch.no_grad()
    def before_step(self, step: int) -> None:
        """Raises the masks when that is due and zeroes the gradients of pruned weights.

        To be called between the backward pass and the optimizer step `step` (from 0), before gradients
        are clipped, so that pruned weights have no part in the norm.
        """
        count = round(self.scheduled_sparsity(step) * _total(self.weights))
        if count > self.count:
            self.count = count
            self.pruned = _smallest(self.weights, self.pruned, count)
        for weight, pruned in zip(self.weights, self.pruned, strict=True):
            if weight.grad is not None:
                weight.grad.masked_fill_(pruned, 0.0)

    @torch.no_grad()
    def after_step(self) -> None:
        """Sets pruned weights back to zero: momentum from before the pruning still moves them."""
        for weight, pruned in zip(self.weights, self.pruned, strict=True):
            weight.masked_fill_(pruned, 0.0)


def linear_sparsity(model: nn.Module) -> float:
    """Share of exact zeros over all Linear weights of `model`."""
    weights = _linear_weights(model)
    return _count_true([weight.detach() == 0 for weight in weights]) / _total(weights)


def _linear_weights(model: nn.Module) -> list[nn.Parameter]:
    """The weights of all Linear modules, in module order; UserError when there is none."""
    weights = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    if not weights:
        raise UserError(f"{type(model).__name__} has no Linear layer; pruning needs at least one")
    return weights


def _smallest(weights: list[Tensor], pruned: list[Tensor], count: int) -> list[Tensor]:
    """Masks of exactly `count` weights: those already pruned, then the smallest; equal ones in module order.

    count must be at least the number already pruned. Returns one bool tensor a weight, True where pruned.
    """
    magnitudes = torch.cat(
        [weight.detach().abs().masked_fill(mask, -1.0).flatten() for weight, mask in zip(weights, pruned, strict=True)]
    )
    threshold = magnitudes.kthvalue(count).values
    chosen = magnitudes < threshold
    tied = (magnitudes == threshold).nonzero().squeeze(1)
    chosen[tied[: count - int(chosen.sum())]] = True
    parts = chosen.split([weight.numel() for weight in weights])
    return [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]


def _total(tensors: list[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _count_true(masks: list[Tensor]) -> int:
    return sum(int(mask.sum()) for mask in masks)
