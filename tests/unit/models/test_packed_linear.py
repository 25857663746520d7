"""Linear maps for inference against float64, with oneDNN's operators and without."""

import platform
from math import erf

import numpy as np
import pytest
import torch
from torch import nn

from tinybert.models import packed_linear as inference
from tinybert.models.packed_linear import Linear, for_inference, has_onednn, linear, linear_float32, linear_gelu

CPU = torch.device("cpu")
RELATIVE_ERROR = {torch.float32: 2e-6, torch.bfloat16: 2**-6}  # two last places: F.gelu reads rounded sums


@pytest.fixture(params=["here", "without onednn"])
def operators(request, monkeypatch):
    """What this machine has, then none of it."""
    if request.param == "without onednn":
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
        assert not has_onednn(CPU)


def skip_without(dtype):
    """oneDNN packs bfloat16 weights only if the processor computes them."""
    if dtype == torch.bfloat16 and has_onednn(CPU) and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this machine has no bf16")


def expected(hidden, weight, bias, gelu):
    """In NumPy float64, from the same rounded numbers."""
    hidden, weight, bias = (part.detach().double().numpy() for part in (hidden, weight, bias))
    product = hidden @ weight.T + bias
    return product * 0.5 * (1 + np.vectorize(erf)(product / np.sqrt(2))) if gelu else product


@pytest.mark.usefixtures("operators")
@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "width_in", "width_out"), [(1, 5, 3), (70, 96, 130)])
def test_packed_and_plain_weights_give_the_same_as_float64(rows, width_in, width_out, dtype, gelu):
    skip_without(dtype)
    torch.manual_seed(5)
    exact = Linear(width_in, width_out)
    packed = for_inference(exact, dtype)
    packed_product = linear_gelu if gelu else Linear.forward
    hidden, weight, bias = torch.randn(rows, width_in).to(dtype), exact.weight.to(dtype), exact.bias.to(dtype)
    reference = expected(hidden, weight, bias, gelu)
    with torch.no_grad():
        for found in (packed_product(packed, hidden), linear(hidden, weight, bias, gelu=gelu)):
            assert found.dtype == dtype
            assert found.double().numpy() == pytest.approx(reference, rel=RELATIVE_ERROR[dtype], abs=1e-6)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="PyTorch's x86-64 builds have oneDNN")
def test_weights_are_packed_where_pytorch_has_the_operators():
    """A newer PyTorch that has renamed them would only be slower, and say nothing."""
    assert has_onednn(CPU)
    assert for_inference(Linear(5, 3), torch.float32).weight.is_mkldnn


def test_another_device_needs_no_onednn():
    assert not has_onednn(torch.device("meta"))
    hidden, weight, bias = (torch.empty(shape, device="meta") for shape in ((4, 5), (3, 5), (3,)))
    assert linear(hidden, weight, bias, gelu=True).shape == linear_float32(hidden, weight, bias).shape == (4, 3)


def test_missing_operators_are_no_error(monkeypatch):
    monkeypatch.setattr(inference.torch.ops, "mkldnn", object())
    assert not has_onednn(CPU)


@pytest.mark.usefixtures("operators")
def test_an_inference_copy_keeps_the_model():
    skip_without(torch.bfloat16)
    model = nn.Sequential(Linear(4, 4), nn.LayerNorm(4))
    rounded = for_inference(model, torch.bfloat16)
    assert not model[0].is_packed
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert {part.dtype for part in (*rounded.parameters(), *rounded.buffers())} == {torch.bfloat16}
    assert not any(parameter.requires_grad for parameter in rounded.parameters())


@pytest.mark.usefixtures("operators")
@pytest.mark.parametrize(
    ("rows", "width_in", "width_out"), [((1,), 256, 256), ((70,), 256, 300), ((70,), 96, 130), ((7, 10), 256, 300)]
)
def test_linear_float32_equals_float64_with_gradients(rows, width_in, width_out):
    torch.manual_seed(5)
    parts = torch.randn(*rows, width_in), torch.randn(width_out, width_in), torch.randn(width_out)
    scale = torch.randn(*rows, width_out)
    results = {}
    for dtype in (torch.float32, torch.float64):
        leaves = [part.to(dtype, copy=True).requires_grad_() for part in parts]
        product = linear_float32(*leaves)
        (product * scale.to(dtype)).sum().backward()
        results[dtype] = [product, *(leaf.grad for leaf in leaves)]
    for ours, exact in zip(results[torch.float32], results[torch.float64], strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("rows", [torch.ones(0, 5), torch.ones(2, 3, 5), torch.ones(2, 5, dtype=torch.float64)])
def test_what_onednn_is_not_asked_for_goes_to_torch(rows):
    layer = Linear(5, 3).to(rows.dtype)
    found = layer(rows)
    assert torch.equal(found, torch.nn.functional.linear(rows, layer.weight, layer.bias))
    found.sum().backward()
    assert layer.weight.grad is not None
    with torch.autocast("cpu", torch.bfloat16):
        assert layer.float()(rows.float()).dtype == torch.bfloat16


def test_a_layer_whose_input_needs_no_gradient_still_learns():
    layer = Linear(5, 3)
    layer(torch.ones(4, 5)).sum().backward()
    assert torch.equal(layer.weight.grad, torch.full((3, 5), 4.0))
    assert torch.equal(layer.bias.grad, torch.full((3,), 4.0))
