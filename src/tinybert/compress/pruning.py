"""Global unstructured pruning of Linear and LSTM weights while the model trains.

All these weights are ranked together (biases, embeddings and layer norms are never pruned), by magnitude (L1) or by the
direction in which training moves them. Sparsity rises along a cubic ramp.
"""

import numpy as np
import torch
from torch import Tensor, nn


class Pruner:
    """Holds the weights of smallest magnitude at exactly zero, more of them with each step up to a target.

    Pruned weights stay pruned; the masks are the zeros of the weights. `target` (0 to 1) is a share of ALL Linear and
    LSTM weights, and so is each increment: increments of the remaining weights would compound to less. Sparsity rises
    in the first `ramp_fraction` (above 0, at most 1) of the steps. The training loop calls `begin` once, then
    `before_step` and `after_step` around each optimizer step.
    """

    state: tuple[str, ...] = ("pruned",)  # what a checkpoint stores: a tensor for each weight

    def __init__(self, model: nn.Module, target: float, ramp_fraction: float) -> None:
        self.weights = _linear_weights(model)
        self.target = target
        self.ramp_fraction = ramp_fraction

    def begin(self, steps: int) -> None:
        """Derives the masks from the weights, on their device, and sets the length of the ramp among `steps` steps."""
        self.pruned = [weight.detach() == 0 for weight in self.weights]
        self.ramp_steps = max(1, round(self.ramp_fraction * steps))

    def scheduled_sparsity(self, step: int) -> float:
        """The share of all weights that is zero after optimizer step `step`, from 0 (Zhu & Gupta 2017, eq. 1)."""
        progress = min((step + 1) / self.ramp_steps, 1.0)
        return self.target * (1.0 - (1.0 - progress) ** 3)

    @torch.no_grad()
    def before_step(self, step: int) -> None:
        """Raises the masks during the ramp, and zeroes the gradients of pruned weights.

        `step` counts from 0; gradients are clipped afterwards, so that pruned weights do not count in the norm.
        """
        if step < self.ramp_steps:
            self._raise_masks(round(self.scheduled_sparsity(step) * sum(weight.numel() for weight in self.weights)))
        self._mask_gradients()

    @torch.no_grad()
    def after_step(self) -> None:
        """Sets pruned weights back to zero, because momentum from before they were pruned still moves them."""
        for weight, pruned in zip(self.weights, self.pruned, strict=True):
            weight.masked_fill_(pruned, 0.0)

    def state_dict(self) -> dict[str, list[Tensor]]:
        """What a checkpoint stores beside the model's weights."""
        return {name: getattr(self, name) for name in self.state}

    def load_state_dict(self, state: dict[str, list[Tensor]]) -> None:
        """Takes over the state of a checkpoint; the model's weights are restored already."""
        for name, parts in state.items():
            setattr(self, name, [part.to(weight.device) for part, weight in zip(parts, self.weights, strict=True)])

    def _raise_masks(self, count: int) -> None:
        """Chooses the `count` weights to prune from now on; gradients are those of this step, not masked yet."""
        if count > sum(int(pruned.sum()) for pruned in self.pruned):
            masked = zip(self.weights, self.pruned, strict=True)
            # -1 ranks pruned weights below all others, even below a weight that happens to be 0.
            self.pruned = _lowest([weight.abs().masked_fill(pruned, -1.0) for weight, pruned in masked], count)

    def _mask_gradients(self) -> None:
        for weight, pruned in zip(self.weights, self.pruned, strict=True):
            if weight.grad is not None:
                weight.grad.masked_fill_(pruned, 0.0)


class MovementPruner(Pruner):
    """Prunes the weights that training moves toward zero: those of lowest S = -Σ_t (∂L/∂W')_t · W_t.

    Sanh et al. 2020, section 4. The model holds the masked weights W' = M ⊙ W that the forward pass reads; the values
    of pruned weights are kept here. During the ramp the mask passes gradients straight through to the scores: the score
    of a pruned weight continues with the gradient at its W' (0) times its kept value. The value itself gets no gradient
    (as in the paper) and no weight decay, so a weight whose score recovers returns as it was. After the ramp the masks
    are final. The paper's constant learning rate of S changes no ranking and is left out. Gradients are those of the
    full batch before clipping.
    """

    state = ("scores", "kept", "pruned")

    def begin(self, steps: int) -> None:
        """The same, with scores of 0."""
        super().begin(steps)
        self.scores = [torch.zeros_like(weight.detach()) for weight in self.weights]
        self.kept = [torch.zeros_like(weight.detach()) for weight in self.weights]  # 0 where not pruned

    def _raise_masks(self, count: int) -> None:
        # One of the two summands is 0 everywhere, so the sum is exact.
        dense = [weight + kept for weight, kept in zip(self.weights, self.kept, strict=True)]
        for weight, score, value in zip(self.weights, self.scores, dense, strict=True):
            if weight.grad is not None:
                score.addcmul_(weight.grad, value, value=-1.0)
        # Masked by this forward pass: a weight that returns now moves from the next step on.
        self._mask_gradients()
        self.pruned = _lowest(self.scores, count)
        for weight, kept, value, pruned in zip(self.weights, self.kept, dense, self.pruned, strict=True):
            weight.copy_(value.masked_fill(pruned, 0.0))
            kept.copy_(value.masked_fill(~pruned, 0.0))


PRUNERS: dict[str, type[Pruner]] = {"magnitude": Pruner, "movement": MovementPruner}  # by criterion


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
    """Masks of exactly the `count` lowest scores of all tensors together, equal ones in order: True where chosen."""
    if count == 0:
        return [torch.zeros_like(part, dtype=torch.bool) for part in scores]
    ranked = torch.cat([part.flatten() for part in scores])
    # NumPy's partition is ten times as fast as kthvalue on a CPU, and every step of the ramp needs one.
    threshold = float(np.partition(ranked.numpy(force=True), count - 1)[count - 1])
    chosen = ranked < threshold
    tied = (ranked == threshold).nonzero().squeeze(1)
    chosen[tied[: count - int(chosen.sum())]] = True
    parts = chosen.split([part.numel() for part in scores])
    return [part.view_as(score) for part, score in zip(parts, scores, strict=True)]
