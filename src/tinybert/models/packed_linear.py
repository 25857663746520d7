"""Linear maps on oneDNN's operators.

In bfloat16 they take four fifths of F.linear's time at inference. In float32 F.linear calls MKL, which takes 1.3 to 7
times as long for a single product on AMD processors, forward and backward.
"""

import copy
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

AnyModule = TypeVar("AnyModule", bound=nn.Module)
# Below this size both libraries are equally fast on idle cores, and oneDNN loses more when the cores are busy.
LEAST_WEIGHTS = 2**16


class Linear(nn.Linear):
    """nn.Linear by `linear_float32`, or by `linear` once its weight is packed."""

    is_packed = False

    def forward(self, input: Tensor) -> Tensor:
        """(…, width in) -> (…, width out)."""
        return (linear if self.is_packed else linear_float32)(input, self.weight, self.bias)


@torch.no_grad()
def for_inference(model: AnyModule, dtype: torch.dtype) -> AnyModule:
    """A copy in `dtype` whose Linear weights are laid out for the hardware once; without gradients."""
    # Copied in `dtype`: a second copy in float32 would take as much memory as the model.
    memo = {id(weight): nn.Parameter(weight.to(dtype), requires_grad=False) for weight in model.parameters()}
    model = copy.deepcopy(model, memo)
    for module in model.modules():
        if isinstance(module, Linear):
            module.is_packed = True
            if has_onednn(module.weight.device):
                packed = torch.ops.mkldnn._reorder_linear_weight(module.weight)
                module.weight = nn.Parameter(packed, requires_grad=False)
    return model


def linear_gelu(layer: Linear, hidden: Tensor) -> Tensor:
    """GELU of a linear map, in one operator if the map is packed: (…, width in) -> (…, width out)."""
    return linear(hidden, layer.weight, layer.bias, gelu=True) if layer.is_packed else F.gelu(layer(hidden))


def linear(hidden: Tensor, weight: Tensor, bias: Tensor, *, gelu: bool = False) -> Tensor:
    """F.linear without gradients, of a packed weight or a plain one, followed by F.gelu if `gelu`."""
    if has_onednn(hidden.device):
        activation = "gelu" if gelu else "none"  # the last "none": exact GELU, not its tanh approximation
        return torch.ops.mkldnn._linear_pointwise(hidden, weight, bias, activation, [], "none")
    product = F.linear(hidden, weight, bias)
    return F.gelu(product) if gelu else product


def linear_float32(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.linear with gradients, by oneDNN if it is a product of float32 matrices on a CPU; equal up to rounding."""
    if torch.onnx.is_in_onnx_export() or torch.compiler.is_compiling():
        return F.linear(hidden, weight, bias)  # an exporter may not be asked for numbers of rows
    if hidden.ndim == 3:
        return linear_float32(hidden.flatten(0, 1), weight, bias).unflatten(0, hidden.shape[:2])
    is_float32 = hidden.dtype == weight.dtype == torch.float32
    is_large = hidden.ndim == 2 and hidden.numel() > 0 and weight.numel() >= LEAST_WEIGHTS
    if is_float32 and is_large and has_onednn(hidden.device) and not torch.is_autocast_enabled(hidden.device.type):
        return _OneDnnLinear.apply(hidden, weight, bias)
    return F.linear(hidden, weight, bias)


class _OneDnnLinear(torch.autograd.Function):
    """The three products of a linear map; oneDNN reads transposed matrices without a copy."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        return torch.ops.mkldnn._linear_pointwise(hidden, weight, bias, "none", [], "none")

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight = ctx.saved_tensors
        product = torch.ops.mkldnn._linear_pointwise  # of left and right: left · rightᵀ
        of_hidden, of_weight, of_bias = ctx.needs_input_grad
        return (
            product(gradient, weight.t(), None, "none", [], "none") if of_hidden else None,
            product(gradient.t(), hidden.t(), None, "none", [], "none") if of_weight else None,
            gradient.sum(dim=0) if of_bias else None,
        )


def matrix_flops(module: nn.Module) -> int:
    """FLOPs of one vector's products with all matrices of a module, 2 per multiply-add."""
    return 2 * sum(weight.numel() for weight in module.parameters() if weight.ndim == 2)


def has_onednn(device: torch.device) -> bool:
    """Whether the operators exist for the device: PyTorch has them for its compiler and may rename them."""
    known = (hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise"))
    return device.type == "cpu" and torch.backends.mkldnn.is_available() and all(known)
