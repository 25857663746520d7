"""Dropout from few random bits: on a CPU PyTorch's own takes a fifth of a small student's step."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEVELS = 2**16  # on a CPU probabilities are multiples of 1/65536: four draws to a 64-bit random number


class Dropout(nn.Module):
    """nn.Dropout by the function below."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, values: Tensor) -> Tensor:
        """The values, in training with some set to 0 and the others grown by as much as keeps the mean."""
        return dropout(values, self.probability) if self.training else values


def dropout(values: Tensor, probability: float) -> Tensor:
    """F.dropout on values of any shape, 0 <= probability < 1.

    On a CPU the probability is rounded to a multiple of 1/65536, and PyTorch's global generator gives four values at a
    time.
    """
    dropped = min(round(probability * LEVELS), LEVELS - 1)
    if values.device.type != "cpu":
        return F.dropout(values, probability)
    if dropped == 0:
        return values
    count = values.numel()
    draws = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)[:count]
    kept = (draws >= dropped - LEVELS // 2).view(values.shape)
    return values * kept.to(values.dtype).mul_(LEVELS / (LEVELS - dropped))
