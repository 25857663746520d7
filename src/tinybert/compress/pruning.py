"""Global unstructured pruning of Linear and LSTM weights while the model trains.

All these weights are ranked together by magnitude (L1); biases, embeddings and layer norms are never pruned. Sparsity
rises along a cubic ramp, or in equal increments. Movement pruning scored lower (docs/log.md).
"""

import numpy as np
import torch
from torch import Tensor, nn


class Pruner:
    """Holds the weights of smallest magnitude at exactly zero, more of them with each step up to a target.

    Pruned weights stay pruned; the masks are the zeros of the weights. `target` (0 to 1) is a share of ALL Linear and
    LSTM weights, and so is each increment: shares of the remaining weights would compound to less. Sparsity rises
    in the first `ramp_fraction` (above 0, at most 1) of the steps, along a cubic curve or, with `increments`, by equal
    shares at equal intervals, the first at step 0. With a target of 0, weights that are zero stay zero. The training
    loop calls `begin` at its start or when it resumes, then `before_step` and `after_step` around each optimizer step.
    """

    def __init__(self, model: nn.Module, target: float, ramp_fraction: float, increments: int | None = None) -> None:
        self.weights = _linear_weights(model)
        self.target, self.ramp_fraction, self.increments = target, ramp_fraction, increments

    def begin(self, steps: int) -> None:
        """Derives the masks from the weights, on their device, and sets the length of the ramp among `steps` steps."""
        self.pruned = [weight.detach() == 0 for weight in self.weights]
        self.ramp_steps = max(1, round(self.ramp_fraction * steps))

    def scheduled_sparsity(self, step: int) -> float:
        """The share of all weights that is zero after optimizer step `step`, from 0 (Zhu & Gupta 2017, eq. 1)."""
        done = min(step + 1, self.ramp_steps)
        if self.increments:
            return self.target * -(-done * self.increments // self.ramp_steps) / self.increments
        return self.target * (1.0 - (1.0 - done / self.ramp_steps) ** 3)

    @torch.no_grad()
    def before_step(self, step: int) -> None:
        """Raises the masks, if `step` (from 0) is on the ramp, and zeroes the gradients of pruned weights."""
        count = round(self.scheduled_sparsity(step) * sum(weight.numel() for weight in self.weights))
        if step < self.ramp_steps and count > sum(int(pruned.sum()) for pruned in self.pruned):
            masked = zip(self.weights, self.pruned, strict=True)
            # -1 ranks pruned weights below all others, even below a weight that happens to be 0.
            self.pruned = _lowest([weight.abs().masked_fill(pruned, -1.0) for weight, pruned in masked], count)
        for weight, pruned in zip(self.weights, self.pruned, strict=True):
            if weight.grad is not None:
                weight.grad.masked_fill_(pruned, 0.0)

    @torch.no_grad()
    def after_step(self) -> None:
        """Sets pruned weights back to zero, because momentum from before they were pruned still moves them."""
        for weight, pruned in zip(self.weights, self.pruned, strict=True):
            weight.masked_fill_(pruned, 0.0)


def linear_sparsity(model: nn.Module) -> float:
    """The share of exact zeros among all Linear and LSTM weights."""
    weights = _linear_weights(model)
    return sum(int((weight == 0).sum()) for weight in weights) / sum(weight.numel() for weight in weights)


def _linear_weights(model: nn.Module) -> list[nn.Parameter]:
    """All Linear weights in module order; an LSTM's are the Linear weights of its four gates."""
    linear = [module for module in model.modules() if isinstance(module, (nn.Linear, nn.LSTM))]
    named = (pair for module in linear for pair in module.named_parameters(recurse=False))
    return [weight for name, weight in named if name.startswith("weight")]


def _lowest(scores: list[Tensor], count: int) -> list[Tensor]:
    """Masks of the `count` (at least 1) lowest scores of all tensors, equal ones in order: True where chosen."""
    ranked = torch.cat([part.flatten() for part in scores])
    # NumPy's partition is ten times as fast as kthvalue on a CPU, and every step of the ramp needs one.
    threshold = float(np.partition(ranked.numpy(force=True), count - 1)[count - 1])
    chosen = ranked < threshold
    tied = (ranked == threshold).nonzero().squeeze(1)
    chosen[tied[: count - int(chosen.sum())]] = True
    parts = chosen.split([part.numel() for part in scores])
    return [part.view_as(score) for part, score in zip(parts, scores, strict=True)]
