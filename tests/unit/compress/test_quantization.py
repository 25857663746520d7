"""INT8 files of trained and made-up models: what becomes integers, what the answers are, what smoothing helps."""

import warnings
from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper

from tests.support.builders import batch, classifier
from tinybert.compress.onnx_files import OnnxClassifier, export_onnx, feeds_of, session_of
from tinybert.compress.quantization import (
    ActivationRange,
    Int8Layer,
    Int8Plan,
    fold_smoothing,
    plan_int8,
    quantizable_layers,
    quantize_symmetric,
    replace_layers,
    scale_and_zero_point,
    smoothing_factors,
    write_int8,
    write_published_int8,
)
from tinybert.models.bert import BertConfig, SequenceClassifier
from tinybert.models.bilstm import BiLstmClassifier, BiLstmConfig
from tinybert.models.outputs import Batch
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.paths import INT8_VARIANTS

CONFIG = BertConfig(200, 32, 2, 4, 64, max_position_embeddings=16)


def examples(count: int, seed: int) -> Batch:
    """Padded rows of 4 to 12 tokens; label 1 where the first token's number is above that of the last."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 200, (count, 12), generator=generator)
    lengths = torch.randint(4, 13, (count,), generator=generator)
    mask = torch.arange(12) < lengths[:, None]
    last = ids.gather(1, lengths[:, None] - 1)[:, 0]
    return Batch(input_ids=ids * mask, mask=mask, token_type_ids=0 * ids, labels=(ids[:, 0] > last).long())


def trained() -> SequenceClassifier:
    torch.manual_seed(0)
    model = SequenceClassifier(CONFIG, ("no", "yes"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(200):
        batch = examples(64, seed=step)
        optimizer.zero_grad()
        F.cross_entropy(model(batch).logits, batch.labels).backward()
        optimizer.step()
    return model.eval()


def planned(fp32, smoothing: float = 0.9, exclude: tuple[str, ...] = ()) -> Int8Plan:
    batches = [feeds_of(examples(8, seed=1000 + number)) for number in range(8)]
    return plan_int8(fp32, batches, smoothing=smoothing, exclude=exclude)


def quantize(fp32, path, variant):
    write_int8(planned(fp32), path, variant)


@pytest.mark.parametrize(
    ("variant", "operators", "taken"),
    [
        (
            "int8-dynamic",
            {"MatMulInteger", "DynamicQuantizeLinear"},
            0,
        ),  # ONNX Runtime's default: constant weights only
        ("int8-qdq", {"QuantizeLinear", "DequantizeLinear"}, 2),
        ("int8-qoperator", {"QLinearMatMul", "QLinearAdd"}, 2),
    ],
)
def test_published_static_int8_takes_attention_products(models, tmp_path, variant, operators, taken):
    batches = [feeds_of(examples(8, seed=1000 + number)) for number in range(8)]
    write_published_int8(models["fp32"], batches, tmp_path / "out.onnx", variant)
    assert [path.name for path in tmp_path.iterdir()] == ["out.onnx"]
    graph = onnx.load(tmp_path / "out.onnx").graph
    assert operators <= {node.op_type for node in graph.node}
    assert integer_products_of_activations(graph) == taken * CONFIG.num_hidden_layers
    if variant == "int8-qoperator":
        assert "MatMul" not in {node.op_type for node in graph.node}
    if variant == "int8-qdq":
        zero_points = {node.input[2] for node in graph.node if node.op_type == "QuantizeLinear"}
        assert {tensor.data_type for tensor in graph.initializer if tensor.name in zero_points} == {TensorProto.INT8}
    feeds = feeds_of(examples(8, seed=1))
    files = (tmp_path / "out.onnx", models[variant], models["fp32"])
    published, ours, exact = (OnnxClassifier(path, 1).logits(feeds) for path in files)
    assert np.isfinite(published).all()
    if variant == "int8-dynamic":  # scales fit each batch, and attention stays in float: as good as ours
        assert 0 < np.abs(published - exact).mean() < 0.02 * np.abs(exact).mean()
    else:
        assert np.abs(published - exact).mean() > 2 * np.abs(ours - exact).mean()


def integer_products_of_activations(graph) -> int:
    """How many matrix products read two quantized activations, so none of them a weight."""
    made_by = {name: node for node in graph.node for name in node.output}
    inputs = {"MatMulInteger": (0, 1), "QLinearMatMul": (0, 3), "MatMul": (0, 1)}
    found = 0
    for node in graph.node:
        sources = [made_by.get(node.input[place]) for place in inputs.get(node.op_type, ())]
        if node.op_type == "MatMul":  # in a QDQ graph: of dequantized values, whose integers are no constants
            dequantized = [source and source.op_type == "DequantizeLinear" for source in sources]
            sources = [made_by.get(source.input[0]) for source in sources] if all(dequantized) else []
        found += bool(sources) and all(sources)
    return found


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Paths of one trained classifier: fp32 and the three INT8 variants."""
    folder = tmp_path_factory.mktemp("int8")
    paths = {variant: folder / f"{variant}.onnx" for variant in ("fp32", *INT8_VARIANTS)}
    export_onnx(trained(), paths["fp32"])
    for variant in INT8_VARIANTS:
        quantize(paths["fp32"], paths[variant], variant)
    return paths


def answers(path, seed: int = 5000) -> np.ndarray:
    return OnnxClassifier(path, 1).logits(feeds_of(examples(1000, seed))).argmax(1)


def constants(path) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}


def operators(path) -> Counter:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def test_the_classifier_has_learned_its_rule(models):
    assert (answers(models["fp32"]) == examples(1000, 5000).labels.numpy()).mean() > 0.85


@pytest.mark.parametrize("variant", INT8_VARIANTS)
def test_int8_answers_as_fp32_does_and_is_smaller(models, variant):
    assert (answers(models[variant]) == answers(models["fp32"])).mean() >= 0.98
    assert models[variant].stat().st_size < 0.75 * models["fp32"].stat().st_size


# Each layer has 6 Linear products and attention, the pooler is 1 more, the classifier 1 (a Gemm in float).
def test_dynamic_has_integer_products_and_scales_at_run_time(models):
    found = operators(models["int8-dynamic"])
    assert found["MatMulIntegerToFloat"] == 13 and found["DynamicQuantizeLinear"] == 10
    assert found["MatMul"] == found["QuantizeLinear"] == 0 and found["Gemm"] == 1


def test_qdq_wraps_float_products(models):
    found = operators(models["int8-qdq"])
    # Query, key and value share an input, but the last layer's query reads the [CLS] row alone.
    assert found["MatMul"] == 13 and found["QuantizeLinear"] == 2 * 4 + 1 + 1
    assert found["DequantizeLinear"] == 2 * 13 and found["Gemm"] == 1
    assert found["MatMulIntegerToFloat"] == 0


def test_qoperator_has_integer_products(models):
    found = operators(models["int8-qoperator"])
    assert found["MatMulIntegerToFloat"] == 13 and found["QuantizeLinear"] == 10
    assert found["MatMul"] == found["DequantizeLinear"] == 0 and found["Gemm"] == 1


def test_the_runtime_fuses_all_products_of_qdq_but_the_poolers(models, tmp_path):
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(models["int8-qdq"]), options, providers=["CPUExecutionProvider"])
    found = operators(tmp_path / "optimized.onnx")
    # Of a product of matrices, one row an example, it makes a Gemm; all others have a row for each token.
    assert found["MatMulIntegerToFloat"] == 12 and found["FusedGemm"] == 1
    assert found["MatMul"] == 0 and found["DequantizeLinear"] == 2


@pytest.mark.parametrize("variant", INT8_VARIANTS)
def test_embeddings_are_int8_with_a_scale_per_row(models, variant):
    tensors = constants(models[variant])
    tables = {name: value for name, value in tensors.items() if name.endswith("Gather_quantized")}
    assert sorted(value.shape for value in tables.values()) == [(2, 32), (16, 32), (200, 32)]
    for name, value in tables.items():
        assert value.dtype == np.int8
        assert tensors[name.replace("_quantized", "_scale")].shape == (len(value), 1)


@pytest.mark.parametrize("variant", INT8_VARIANTS)
def test_no_float_copy_of_a_weight_is_left(models, variant):
    large = [value for value in constants(models[variant]).values() if value.dtype == np.float32 and value.ndim == 2]
    assert sorted(value.shape for value in large if value.shape[1] > 1) == [(2, 32)]  # the classifier


@pytest.mark.parametrize("variant", INT8_VARIANTS)
def test_weights_are_int8_with_a_scale_per_output_channel(models, variant):
    tensors = constants(models[variant])
    matrices = {name: value for name, value in tensors.items() if name.endswith(("MatMul_quantized", "Gemm_quantized"))}
    assert len(matrices) == 13
    for name, value in matrices.items():
        assert value.dtype == np.int8
        assert tensors[name.replace("_quantized", "_scale")].shape == (value.shape[1],)  # (in, out)


@pytest.mark.parametrize("variant", ["int8-qdq", "int8-qoperator"])
def test_activations_are_uint8(models, variant):
    graph = onnx.load(models[variant]).graph
    points = {tensor.name: numpy_helper.to_array(tensor).dtype for tensor in graph.initializer}
    assert {points[node.input[2]] for node in graph.node if node.op_type == "QuantizeLinear"} == {np.dtype(np.uint8)}


def test_both_static_variants_give_the_same_logits(models):
    feeds = feeds_of(examples(50, 3))
    found = [OnnxClassifier(models[variant], 1).logits(feeds) for variant in ("int8-qdq", "int8-qoperator")]
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)


def test_integers_by_hand():
    integers, scales = quantize_symmetric(np.array([[1.27, 0.0], [-0.635, 0.0]], np.float32), axis=0)
    assert integers.tolist() == [[127, 0], [-64, 0]]  # -63.5 to even
    np.testing.assert_allclose(scales, [0.01, 1.0], rtol=1e-6)
    integers, scales = quantize_symmetric(np.array([[1.27, 0.5], [0.0, 0.0]], np.float32), axis=1)
    assert integers.tolist() == [[127, 50], [0, 0]]
    np.testing.assert_allclose(scales, [0.01, 1.0], rtol=1e-6)
    scale, zero_point = scale_and_zero_point(ActivationRange(-0.5, 2.05))
    assert (float(scale), int(zero_point)) == (pytest.approx(0.01), 50)


@pytest.mark.parametrize("variant", INT8_VARIANTS)
def test_excluded_nodes_stay_in_float(models, tmp_path, variant):
    plan = planned(models["fp32"], exclude=("*/layer.1/*", "*word_embeddings*"))
    assert len(plan.layers) == len(quantizable_layers(plan.model)) - 6 - 1
    write_int8(plan, tmp_path / "int8.onnx", variant)
    names = [name for name in constants(tmp_path / "int8.onnx") if name.endswith("_quantized")]
    assert len(names) == 16 - 7
    assert not [name for name in names if "layer.1" in name or "word_embeddings" in name]
    assert (answers(tmp_path / "int8.onnx") == answers(models["fp32"])).mean() >= 0.98


def test_excluding_every_node_is_an_error(models):
    expected = r"^quantization\.exclude \(--exclude\): .*got \['\*'\] for 16 nodes.*fix: remove patterns"
    with pytest.raises(UserError, match=expected) as error:
        planned(models["fp32"], exclude=("*",))
    assert "\n" not in str(error.value)


def test_a_pattern_without_a_node_is_reported(tmp_path, capsys):
    export_onnx(trained(), tmp_path / "fp32.onnx")
    planned(tmp_path / "fp32.onnx", exclude=("*/query/*", "*attention*"))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: quantization.exclude (--exclude): no node that becomes INT8 matches (got *att")


def test_a_silent_channel_counts_as_a_thousandth_of_the_largest():
    found = smoothing_factors(np.array([-512.0, 0.0]), np.array([300.0, 0.0]), np.array([[0.01], [1.0]]), 1.0)
    np.testing.assert_allclose(found, [1000**0.5, 1000**-0.5], rtol=1e-5)


def test_smoothing_helps_a_channel_far_larger_than_the_rest(tmp_path):
    model = trained()
    with torch.no_grad():
        norm, inner = model.bert.encoder.layer[0].attention.output.LayerNorm, model.bert.encoder.layer[0]
        norm.weight[3] *= 100.0
        inner.intermediate.dense.weight[:, 3] /= 100.0
    fp32, part = tmp_path / "fp32.onnx", "/model/bert/layer.0/dense/MatMul"
    export_onnx(model, fp32)
    feeds, difference = feeds_of(examples(100, 0)), {}
    for smoothing in (0.0, 0.9):
        others = tuple(name for name in layers_of(fp32) if name != part)
        write_int8(planned(fp32, smoothing, others), tmp_path / "int8.onnx", "int8-qoperator")
        expected, found = (OnnxClassifier(path, 1).logits(feeds) for path in (fp32, tmp_path / "int8.onnx"))
        difference[smoothing] = np.square(found - expected).mean()
    assert difference[0.9] < 0.25 * difference[0.0]


def layers_of(fp32) -> dict[str, Int8Layer]:
    return {layer.name: layer for layer in quantizable_layers(onnx.load(fp32))}


@pytest.mark.parametrize("variant", INT8_VARIANTS)
@pytest.mark.parametrize("pair", [False, True])
def test_a_bilstm_is_quantized_but_for_its_lstm(tmp_path, variant, pair):
    torch.manual_seed(0)
    export_onnx(BiLstmClassifier(BiLstmConfig(200, 8, 6, 1, 7), ("a", "b"), pair=pair).eval(), tmp_path / "fp32.onnx")
    quantize(tmp_path / "fp32.onnx", tmp_path / "int8.onnx", variant)
    found = operators(tmp_path / "int8.onnx")
    assert found["LSTM"] == 2
    assert found["MatMulIntegerToFloat"] + found["MatMul"] == 1
    feeds = feeds_of(examples(20, 0))
    expected, answer = (OnnxClassifier(tmp_path / name, 1).logits(feeds) for name in ("fp32.onnx", "int8.onnx"))
    np.testing.assert_allclose(answer, expected, atol=0.02)


@pytest.mark.parametrize("variant", INT8_VARIANTS)
def test_the_same_model_gives_the_same_bytes_and_no_output(models, tmp_path, capfd, caplog, variant):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quantize(models["fp32"], tmp_path / "again.onnx", variant)
    assert capfd.readouterr() == ("", "") and caplog.text == ""
    assert (tmp_path / "again.onnx").read_bytes() == models[variant].read_bytes()
    assert [entry.name for entry in tmp_path.iterdir()] == ["again.onnx"]


@pytest.mark.parametrize("variant", ["int8-qdq", "int8-qoperator"])
@pytest.mark.parametrize("level", [0.0, 0.7])
def test_constant_activations_are_represented_exactly(tmp_path, variant, level):
    torch.manual_seed(0)
    model = SequenceClassifier(CONFIG, ("no", "yes"))
    torch.nn.init.zeros_(model.bert.embeddings.LayerNorm.weight)  # every hidden state that enters is `level`
    torch.nn.init.constant_(model.bert.embeddings.LayerNorm.bias, level)
    export_onnx(model, tmp_path / "fp32.onnx")
    quantize(tmp_path / "fp32.onnx", tmp_path / "int8.onnx", variant)
    feeds = feeds_of(examples(20, 0))
    expected, found = (OnnxClassifier(tmp_path / name, 1).logits(feeds) for name in ("fp32.onnx", "int8.onnx"))
    assert np.abs(expected).max() > 0.01 or level == 0.0
    np.testing.assert_allclose(found, expected, atol=0.01)


VALUES, OUTPUT = (f"/model/bert/layer.0/{name}/MatMul" for name in ("value", "output/dense"))
BATCHES = [feeds_of(batch(seed=seed)) for seed in range(4)]


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    """A classifier one channel of whose attention is 1,000 times larger than the others."""
    model = classifier()
    with torch.no_grad():
        attention = model.bert.encoder.layer[0].attention
        attention.output.dense.weight *= 100.0  # so that attention counts
        attention.self.value.weight[3] *= 1000.0
        attention.output.dense.weight[:, 3] /= 1000.0
        attention.self.value.bias.uniform_(-1, 1)
    path = tmp_path_factory.mktemp("folded") / "fp32.onnx"
    export_onnx(model, path)
    return path


def test_the_factors_move_from_attentions_output_to_its_values(uneven):
    before = layers_of(uneven)
    context = before[OUTPUT].input
    factors = np.linspace(0.5, 2.0, 12, dtype=np.float32)
    layers = list(before.values())
    ranges = {layer.input: ActivationRange(-1.0, 2.0, factors if layer.input == context else None) for layer in layers}
    found, changed = fold_smoothing(onnx.load(uneven), layers, ranges)
    after = {layer.name: layer for layer in found}
    np.testing.assert_allclose(after[VALUES].weight * factors, before[VALUES].weight, rtol=1e-6)
    np.testing.assert_allclose(after[VALUES].bias * factors, before[VALUES].bias, rtol=1e-6)
    np.testing.assert_allclose(after[OUTPUT].weight, factors[:, None] * before[OUTPUT].weight, rtol=1e-6)
    assert changed[context] == ActivationRange(-1.0, 2.0, None)  # the range is that of the divided values already
    untouched = [name for name in before if name not in (VALUES, OUTPUT)]
    assert all(after[name] is before[name] for name in untouched) and list(after) == list(before)


def test_the_model_computes_the_same_in_float_with_padding_too(uneven):
    """Every attention output of both layers divided by factors of its own, and nothing multiplied back."""
    model, rng = onnx.load(uneven), np.random.default_rng(0)
    contexts = [node.output[0] for node in model.graph.node if node.op_type == "Attention"]
    layers = [layer for layer in quantizable_layers(model) if layer.bias is not None]
    ranges = {layer.input: ActivationRange(-1.0, 1.0) for layer in layers}
    ranges |= {name: ActivationRange(-1.0, 1.0, rng.uniform(0.1, 10, 12).astype(np.float32)) for name in contexts}
    found, _ = fold_smoothing(model, layers, ranges)
    assert sum(new is not old for new, old in zip(found, layers, strict=True)) == 4 == 2 * len(contexts)
    replace_layers(model, found, lambda layer: float_product(model, layer))
    for feeds in BATCHES:
        expected = OnnxClassifier(uneven, 1).logits(feeds)
        np.testing.assert_allclose(session_of(model.SerializeToString()).run(["logits"], feeds)[0], expected, atol=1e-5)


def float_product(model, layer: Int8Layer) -> list[onnx.NodeProto]:
    """The layer with its weights as they are."""
    names = [f"{layer.name}_{kind}" for kind in ("weight", "bias")]
    constants = zip(names, (layer.weight, layer.bias), strict=True)
    model.graph.initializer.extend(
        numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in constants
    )
    product = f"{layer.name}_product"
    return [
        helper.make_node("MatMul", [layer.input, names[0]], [product]),
        helper.make_node("Add", [product, names[1]], [layer.output]),
    ]


@pytest.mark.parametrize("kept", [VALUES, OUTPUT])
def test_nothing_moves_into_or_from_an_excluded_product(uneven, kept):
    plan = plan_int8(uneven, BATCHES, smoothing=0.9)
    layers = [layer for name, layer in layers_of(uneven).items() if name != kept]
    found, ranges = fold_smoothing(plan.model, layers, plan.ranges)
    other = next(layer for layer in layers if layer.name in (VALUES, OUTPUT))
    assert any(layer is other for layer in found)
    context = layers_of(uneven)[OUTPUT].input
    assert ranges[context].factors is not None


@pytest.mark.parametrize("variant", INT8_VARIANTS)
def test_attentions_output_is_smoothed_without_an_operator(uneven, tmp_path, variant):
    """Of products that are nothing without smoothing; all others stay in float."""
    expected = OnnxClassifier(uneven, 1).logits(BATCHES[0])
    difference, others = {}, tuple(name for name in layers_of(uneven) if name not in (VALUES, OUTPUT))
    for smoothing in (0.0, 0.9):
        path = tmp_path / f"{smoothing}.onnx"
        write_int8(plan_int8(uneven, BATCHES, smoothing=smoothing, exclude=others), path, variant)
        difference[smoothing] = np.abs(OnnxClassifier(path, 1).logits(BATCHES[0]) - expected).max()
    assert difference[0.9] < 0.4 * difference[0.0]
    context = layers_of(uneven)[OUTPUT].input
    readers = [node.op_type for node in onnx.load(path).graph.node if context in node.input]
    assert readers == ["DynamicQuantizeLinear" if variant == "int8-dynamic" else "QuantizeLinear"]
