"""Linear maps for inference on oneDNN's operators, which F.linear calls for some products only.

On two cores with AVX-512 bfloat16 they take four fifths of F.linear's time, and less than half in float32 where
F.linear calls MKL.
"""

import copy
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Model = TypeVar("Model", bound=nn.Module)


@torch.no_grad()
def for_inference(model: Model, dtype: torch.dtype) -> Model:
    """A copy in `dtype` whose nn.Linear are PackedLinear; it can be neither copied nor cast."""
    # deepcopy keeps what it finds in its memo, so that the replaced weights are never copied.
    memo: dict[int, object] = {}
    for module in model.modules():
        if isinstance(module, nn.Linear):
            memo[id(module)] = PackedLinear(module.weight.to(dtype), module.bias.to(dtype))
        else:
            own = module.parameters(recurse=False)
            memo |= {id(weight): nn.Parameter(weight.to(dtype), False) for weight in own}
    return copy.deepcopy(model, memo)


class PackedLinear(nn.Module):
    """A linear map whose weight (width out, width in) is laid out for the hardware once, not at each call."""

    weight: Tensor
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        packed = torch.ops.mkldnn._reorder_linear_weight(weight) if has_onednn(weight.device) else weight
        self.register_buffer("weight", packed)
        self.register_buffer("bias", bias)

    def forward(self, hidden: Tensor, *, gelu: bool = False) -> Tensor:
        """(rows, width in) -> (rows, width out), after GELU if `gelu`."""
        return linear(hidden, self.weight, self.bias, gelu=gelu)


def linear_gelu(module: nn.Module, hidden: Tensor) -> Tensor:
    """GELU of a linear map, in one operator if the map is packed: (…, width in) -> (…, width out)."""
    return module(hidden, gelu=True) if isinstance(module, PackedLinear) else F.gelu(module(hidden))


def linear(hidden: Tensor, weight: Tensor, bias: Tensor, *, gelu: bool = False) -> Tensor:
    """F.linear without gradients, of a packed weight or a plain one, followed by F.gelu if `gelu`."""
    if has_onednn(hidden.device):
        activation = "gelu" if gelu else "none"  # the last "none": exact GELU, not its tanh approximation
        return torch.ops.mkldnn._linear_pointwise(hidden, weight, bias, activation, [], "none")
    product = F.linear(hidden, weight, bias)
    return F.gelu(product) if gelu else product


def has_onednn(device: torch.device) -> bool:
    """Whether the operators exist for the device: PyTorch has them for its compiler and may rename them."""
    names = ("_reorder_linear_weight", "_linear_pointwise")
    return (
        device.type == "cpu"
        and torch.backends.mkldnn.is_available()
        and all(hasattr(torch.ops.mkldnn, name) for name in names)
    )
