from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

from tests.support.builders import batch, classifier
from tinybert.compress.calibration import Activation
from tinybert.compress.export import export_onnx, feeds_of
from tinybert.compress.graph import Product, quantizable, read_graph, replace_parts
from tinybert.compress.quantization import Plan, plan_int8, write_int8
from tinybert.compress.serving import OnnxClassifier, session_of
from tinybert.compress.smoothing import folded

VALUES, OUTPUT = (f"/model/bert/layer.0/{name}/MatMul" for name in ("value", "output/dense"))
FEEDS = [feeds_of(batch(seed=seed)) for seed in range(4)]


@pytest.fixture(scope="module")
def fp32(tmp_path_factory):
    """A classifier one channel of whose attention is 1,000 times larger than the others."""
    model = classifier()
    with torch.no_grad():
        attention = model.bert.encoder.layers[0].attention
        attention.output.dense.weight *= 100.0  # so that attention counts
        attention.self.value.weight[3] *= 1000.0
        attention.output.dense.weight[:, 3] /= 1000.0
        attention.self.value.bias.uniform_(-1, 1)
    path = tmp_path_factory.mktemp("folded") / "fp32.onnx"
    export_onnx(model, path)
    return path


def planned(fp32, **changes) -> Plan:
    settings = {"method": "minmax", "percentile": 100.0, "smoothing": 0.9, "tolerance": 1e9, "search_examples": 1}
    return plan_int8(fp32, FEEDS, **(settings | changes))


def products(fp32) -> dict:
    return {part.name: part for part in quantizable(read_graph(fp32))}


def test_the_factors_move_from_attentions_output_to_its_values(fp32):
    before = products(fp32)
    context = before[OUTPUT].input
    factors = np.linspace(0.5, 2.0, 12, dtype=np.float32)
    parts = list(before.values())
    activations = {part.input: Activation(-1.0, 2.0, factors if part.input == context else None) for part in parts}
    found, changed = folded(read_graph(fp32), parts, activations)
    after = {part.name: part for part in found}
    np.testing.assert_allclose(after[VALUES].weight * factors, before[VALUES].weight, rtol=1e-6)
    np.testing.assert_allclose(after[VALUES].bias * factors, before[VALUES].bias, rtol=1e-6)
    np.testing.assert_allclose(after[OUTPUT].weight, factors[:, None] * before[OUTPUT].weight, rtol=1e-6)
    assert changed[context] == Activation(-1.0, 2.0, None)  # the range is that of the divided values already
    untouched = [name for name in before if name not in (VALUES, OUTPUT)]
    assert all(after[name] is before[name] for name in untouched) and list(after) == list(before)


def test_the_model_computes_the_same_in_float_with_padding_too(fp32):
    """Every attention output of both layers divided by factors of its own, and nothing multiplied back."""
    model, rng = read_graph(fp32), np.random.default_rng(0)
    contexts = [node.output[0] for node in model.graph.node if node.op_type == "Attention"]
    parts = [part for part in quantizable(model) if isinstance(part, Product)]
    activations = {part.input: Activation(-1.0, 1.0) for part in parts}
    activations |= {name: Activation(-1.0, 1.0, rng.uniform(0.1, 10, 12).astype(np.float32)) for name in contexts}
    found, _ = folded(model, parts, activations)
    assert sum(new is not old for new, old in zip(found, parts, strict=True)) == 4 == 2 * len(contexts)
    replace_parts(model, found, lambda part: float_product(model, part))
    for feeds in FEEDS:
        expected = OnnxClassifier(fp32, 1).logits(feeds)
        np.testing.assert_allclose(session_of(model).run(["logits"], feeds)[0], expected, atol=1e-5)


def float_product(model, part: Product) -> list[onnx.NodeProto]:
    """The part with its weights as they are."""
    names = [f"{part.name}_{kind}" for kind in ("weight", "bias")]
    constants = zip(names, (part.weight, part.bias), strict=True)
    model.graph.initializer.extend(
        numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in constants
    )
    product = f"{part.name}_product"
    return [
        helper.make_node("MatMul", [part.input, names[0]], [product]),
        helper.make_node("Add", [product, names[1]], [part.output]),
    ]


@pytest.mark.parametrize("kept", [VALUES, OUTPUT])
def test_nothing_moves_into_or_from_a_product_that_stays_in_float(fp32, kept):
    plan = planned(fp32)
    parts = [part for name, part in products(fp32).items() if name != kept]
    found, activations = folded(read_graph(fp32), parts, plan.activations)
    other = next(part for part in parts if part.name in (VALUES, OUTPUT))
    assert any(part is other for part in found)
    context = products(fp32)[OUTPUT].input
    assert activations[context].factors is not None


@pytest.mark.parametrize("form", ["dynamic", "qdq", "qoperator"])
def test_attentions_output_is_smoothed_without_an_operator(fp32, tmp_path, form):
    """Of products that are nothing without smoothing; all others stay in float."""
    expected = OnnxClassifier(fp32, 1).logits(FEEDS[0])
    difference, others = {}, tuple(name for name in products(fp32) if name not in (VALUES, OUTPUT))
    for smoothing in (0.0, 0.9):
        path = tmp_path / f"{smoothing}.onnx"
        write_int8(fp32, path, form=form, plan=replace(planned(fp32, smoothing=smoothing), in_float=others))
        difference[smoothing] = np.abs(OnnxClassifier(path, 1).logits(FEEDS[0]) - expected).max()
    assert difference[0.9] < 0.4 * difference[0.0]
    context = products(fp32)[OUTPUT].input
    readers = [node.op_type for node in onnx.load(path).graph.node if context in node.input]
    assert readers == ["DynamicQuantizeLinear" if form == "dynamic" else "QuantizeLinear"]
