import warnings
from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper

from tinybert.compress.calibration import Activation, _factors, calibration_feeds
from tinybert.compress.export import export_onnx, feeds_of
from tinybert.compress.graph import quantizable, read_graph
from tinybert.compress.integers import quantized_rows, quantized_weight, scale_and_zero_point
from tinybert.compress.quantization import Plan, plan_int8, write_int8
from tinybert.compress.sensitivity import SWITCHES, left_in_float, relative_move, switchable
from tinybert.compress.serving import OnnxClassifier, session_of
from tinybert.data.encoding import Encoded
from tinybert.models.bert import BertConfig, SequenceClassifier
from tinybert.models.bilstm import BiLstmClassifier, BiLstmConfig
from tinybert.models.outputs import Batch
from tinybert.pipeline.errors import UserError

CONFIG = BertConfig(200, 32, 2, 4, 64, max_position_embeddings=16)
FORMS = ("dynamic", "qdq", "qoperator")


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


def planned(fp32, **changes) -> Plan:
    batches = [feeds_of(examples(8, seed=1000 + number)) for number in range(8)]
    settings = {"method": "minmax", "percentile": 99.9, "smoothing": 0.9, "tolerance": 1.0, "search_examples": 16}
    settings |= {"calibration": batches} | changes
    return plan_int8(fp32, settings.pop("calibration"), **settings)


def quantize(fp32, path, form, **changes):
    write_int8(fp32, path, form=form, plan=planned(fp32, **changes))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Paths of one trained classifier: fp32 and the three INT8 forms."""
    folder = tmp_path_factory.mktemp("int8")
    paths = {form: folder / f"{form}.onnx" for form in ("fp32", *FORMS)}
    export_onnx(trained(), paths["fp32"])
    for form in FORMS:
        quantize(paths["fp32"], paths[form], form)
    return paths


def answers(path, seed: int = 5000) -> np.ndarray:
    return OnnxClassifier(path, 1).logits(feeds_of(examples(1000, seed))).argmax(1)


def constants(path) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}


def operators(path) -> Counter:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def test_the_classifier_has_learnt_its_rule(models):
    assert (answers(models["fp32"]) == examples(1000, 5000).labels.numpy()).mean() > 0.85


@pytest.mark.parametrize("form", FORMS)
def test_int8_answers_as_fp32_does_and_is_smaller(models, form):
    assert (answers(models[form]) == answers(models["fp32"])).mean() >= 0.98
    assert models[form].stat().st_size < 0.75 * models["fp32"].stat().st_size


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize("method", ["entropy", "percentile"])
def test_the_other_calibrations_keep_the_answers_too(models, tmp_path, form, method):
    quantize(models["fp32"], tmp_path / "int8.onnx", form, method=method)
    assert (answers(tmp_path / "int8.onnx") == answers(models["fp32"])).mean() >= 0.98
    assert (tmp_path / "int8.onnx").read_bytes() != models[form].read_bytes()


def test_the_percentile_is_heeded(models, tmp_path):
    agreement = {}
    for percentile in (60.0, 99.9):
        path = tmp_path / f"{percentile}.onnx"
        quantize(models["fp32"], path, "qdq", method="percentile", percentile=percentile)
        agreement[percentile] = (answers(path) == answers(models["fp32"])).mean()
    assert agreement[60.0] < agreement[99.9]


# Each layer has 6 Linear products and attention, the pooler is 1 more, the classifier 1 (a Gemm in float).
def test_dynamic_has_integer_products_and_scales_at_run_time(models):
    found = operators(models["dynamic"])
    assert found["MatMulIntegerToFloat"] == 13 and found["DynamicQuantizeLinear"] == 10
    assert found["MatMul"] == found["QuantizeLinear"] == 0 and found["Gemm"] == 1


def test_qdq_wraps_float_products(models):
    found = operators(models["qdq"])
    # Query, key and value share an input, but the last layer's query reads the [CLS] row alone.
    assert found["MatMul"] == 13 and found["QuantizeLinear"] == 2 * 4 + 1 + 1
    assert found["DequantizeLinear"] == 2 * 13 and found["Gemm"] == 1
    assert found["MatMulIntegerToFloat"] == 0


def test_qoperator_has_integer_products(models):
    found = operators(models["qoperator"])
    assert found["MatMulIntegerToFloat"] == 13 and found["QuantizeLinear"] == 10
    assert found["MatMul"] == found["DequantizeLinear"] == 0 and found["Gemm"] == 1


def test_the_runtime_fuses_every_product_of_qdq_but_the_poolers(models, tmp_path):
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(models["qdq"]), options, providers=["CPUExecutionProvider"])
    found = operators(tmp_path / "optimized.onnx")
    # Of a product of matrices, one row an example, it makes a Gemm; all others have a row for each token.
    assert found["MatMulIntegerToFloat"] == 12 and found["FusedGemm"] == 1
    assert found["MatMul"] == 0 and found["DequantizeLinear"] == 2


@pytest.mark.parametrize("form", FORMS)
def test_embeddings_are_int8_with_a_scale_per_row(models, form):
    tensors = constants(models[form])
    tables = {name: value for name, value in tensors.items() if name.endswith("Gather_quantized")}
    assert sorted(value.shape for value in tables.values()) == [(2, 32), (16, 32), (200, 32)]
    for name, value in tables.items():
        assert value.dtype == np.int8
        assert tensors[name.replace("_quantized", "_scale")].shape == (len(value), 1)


@pytest.mark.parametrize("form", FORMS)
def test_no_float_copy_of_a_weight_is_left(models, form):
    large = [value for value in constants(models[form]).values() if value.dtype == np.float32 and value.ndim == 2]
    assert sorted(value.shape for value in large if value.shape[1] > 1) == [(2, 32)]  # the classifier


@pytest.mark.parametrize("form", FORMS)
def test_weights_are_int8_with_a_scale_per_output_channel(models, form):
    tensors = constants(models[form])
    matrices = {name: value for name, value in tensors.items() if name.endswith(("MatMul_quantized", "Gemm_quantized"))}
    assert len(matrices) == 13
    for name, value in matrices.items():
        assert value.dtype == np.int8
        assert tensors[name.replace("_quantized", "_scale")].shape == (value.shape[1],)  # (in, out)


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_activations_are_uint8(models, form):
    graph = onnx.load(models[form]).graph
    points = {tensor.name: numpy_helper.to_array(tensor).dtype for tensor in graph.initializer}
    assert {points[node.input[2]] for node in graph.node if node.op_type == "QuantizeLinear"} == {np.dtype(np.uint8)}


def test_both_static_forms_answer_alike(models):
    feeds = feeds_of(examples(50, 3))
    found = [OnnxClassifier(models[form], 1).logits(feeds) for form in ("qdq", "qoperator")]
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)


def test_integers_by_hand():
    integers, scales = quantized_weight(np.array([[1.27, 0.0], [-0.635, 0.0]], np.float32))
    assert integers.tolist() == [[127, 0], [-64, 0]]  # -63.5 to even
    np.testing.assert_allclose(scales, [0.01, 1.0], rtol=1e-6)
    integers, scales = quantized_rows(np.array([[1.27, 0.5], [0.0, 0.0]], np.float32))
    assert integers.tolist() == [[127, 50], [0, 0]]
    np.testing.assert_allclose(scales, [[0.01], [1.0]], rtol=1e-6)
    scale, zero_point = scale_and_zero_point(Activation(-0.5, 2.05))
    assert (float(scale), int(zero_point)) == (pytest.approx(0.01), 50)


def test_what_costs_most_for_its_size_is_left_out_until_the_tolerance_is_met():
    costs, sizes = {"a": 0.3, "b": 0.4, "c": 0.05, "d": 0.1}, {"a": 10, "b": 100, "c": 1, "d": 1000}
    # Per size: c .05, a .03, b .004, d .0001; left of .85 are then .80, .50, .10.
    assert left_in_float(costs, sizes, 0.85) == []
    assert left_in_float(costs, sizes, 0.6) == ["c", "a"]
    assert left_in_float(costs, sizes, 0.2) == ["c", "a", "b"]
    assert left_in_float(costs, sizes, 0.0) == ["c", "a", "b", "d"]


def test_a_common_shift_of_all_classes_is_no_move():
    plain = np.array([[1.0, 3.0], [5.0, 3.0]])
    assert relative_move(plain, plain + np.array([[7.0], [-2.0]])) == pytest.approx(0.0)
    assert relative_move(plain, plain + np.array([[0.5, -0.5], [0.0, 0.0]])) == pytest.approx(0.125)
    # of a regression: mean square 4 about the mean, moved by 1 in each row
    assert relative_move(np.array([[1.0], [5.0]]), np.array([[2.0], [6.0]])) == pytest.approx(0.25)
    assert relative_move(np.zeros((2, 1)), np.zeros((2, 1))) == 0.0


def test_with_all_switches_off_the_logits_are_those_of_fp32_and_with_all_on_those_of_int8(models):
    model, plan = read_graph(models["fp32"]), planned(models["fp32"])
    parts, feeds = quantizable(model), feeds_of(examples(30, 8))
    session = session_of(switchable(model, parts, plan.activations))
    off, on = (session.run(["logits"], {**feeds, SWITCHES: np.full(len(parts), state)})[0] for state in (False, True))
    np.testing.assert_allclose(off, OnnxClassifier(models["fp32"], 1).logits(feeds), atol=1e-4)
    np.testing.assert_allclose(on, OnnxClassifier(models["qoperator"], 1).logits(feeds), atol=0.02)
    assert np.abs(on - off).max() > 0.005


@pytest.mark.parametrize("form", FORMS)
def test_a_tolerance_of_zero_leaves_all_in_float(models, tmp_path, form):
    plan = planned(models["fp32"], tolerance=0.0)
    assert len(plan.in_float) == 13 + 3
    write_int8(models["fp32"], tmp_path / "int8.onnx", form=form, plan=plan)
    feeds = feeds_of(examples(20, 0))
    expected, found = (OnnxClassifier(path, 1).logits(feeds) for path in (models["fp32"], tmp_path / "int8.onnx"))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_search_finds_the_sensitive_part(tmp_path):
    model = trained()
    with torch.no_grad():  # two inputs that cancel, far larger than the rest: 255 steps are too few for the others
        model.bert.pooler.dense.weight[:, 0] = 3.0
        model.bert.encoder.layer[-1].output.LayerNorm.bias[0] += 300.0
        model.bert.pooler.dense.bias -= 900.0
    export_onnx(model, tmp_path / "fp32.onnx")
    plan = planned(tmp_path / "fp32.onnx", smoothing=0.0, tolerance=0.01)
    assert plan.in_float == ("/model/dense/Gemm",)
    assert plan.costs["/model/dense/Gemm"] > 0.01


def test_smoothing_factors_by_hand():
    """Channels that reach 512 and 1, weights up to .01 and 1; factors have the geometric mean 1."""
    least, greatest = np.array([-512.0, -1.0]), np.array([300.0, 0.5])
    weight = np.array([[0.01, -0.005], [1.0, 0.2]])
    # α = 1: 512 and 1 over sqrt(512). α = .75: 512^.75 / .01^.25 = 340.371 and 1 over its root.
    np.testing.assert_allclose(_factors(least, greatest, weight, 1.0), [22.62742, 0.0441942], rtol=1e-5)
    np.testing.assert_allclose(_factors(least, greatest, weight, 0.75), [18.44914, 0.0542031], rtol=1e-5)
    assert _factors(np.array([-1.0, -1.0]), np.array([1.0, 1.0]), weight, 0.9) is None  # nothing to even out
    assert _factors(least, greatest, weight, 0.0) is None


def test_smoothing_mends_a_channel_far_larger_than_the_rest(tmp_path):
    model = trained()
    with torch.no_grad():
        norm, inner = model.bert.encoder.layer[0].attention.output.LayerNorm, model.bert.encoder.layer[0]
        norm.weight[3] *= 100.0
        inner.intermediate.dense.weight[:, 3] /= 100.0
    export_onnx(model, tmp_path / "fp32.onnx")
    part = "/model/bert/layer.0/dense/MatMul"
    plain, smoothed = (planned(tmp_path / "fp32.onnx", smoothing=smoothing).costs[part] for smoothing in (0.0, 0.9))
    assert smoothed < 0.25 * plain


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("pair", [False, True])
def test_a_bilstm_is_quantized_but_for_its_lstm(tmp_path, form, pair):
    torch.manual_seed(0)
    export_onnx(BiLstmClassifier(BiLstmConfig(200, 8, 6, 1, 7), ("a", "b"), pair=pair).eval(), tmp_path / "fp32.onnx")
    quantize(tmp_path / "fp32.onnx", tmp_path / "int8.onnx", form)
    found = operators(tmp_path / "int8.onnx")
    assert found["LSTM"] == 2
    assert found["MatMulIntegerToFloat"] + found["MatMul"] == 1
    feeds = feeds_of(examples(20, 0))
    expected, answer = (OnnxClassifier(tmp_path / name, 1).logits(feeds) for name in ("fp32.onnx", "int8.onnx"))
    np.testing.assert_allclose(answer, expected, atol=0.02)


def test_a_graph_with_nothing_to_quantize_is_told(tmp_path):
    inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])]
    output = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "length"])
    nodes = [helper.make_node("Cast", ["input_ids"], ["logits"], to=TensorProto.FLOAT)]
    onnx.save(helper.make_model(helper.make_graph(nodes, "convolution", inputs, [output])), tmp_path / "fp32.onnx")
    with pytest.raises(
        UserError, match="no Linear layer and no embedding to quantize; a BERT allows dynamic, qdq"
    ) as told:
        planned(tmp_path / "fp32.onnx")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("form", FORMS)
def test_the_same_model_gives_the_same_bytes(models, tmp_path, form):
    quantize(models["fp32"], tmp_path / "again.onnx", form)
    assert (tmp_path / "again.onnx").read_bytes() == models[form].read_bytes()
    assert [entry.name for entry in tmp_path.iterdir()] == ["again.onnx"]


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize("method", ["minmax", "entropy", "percentile"])
@pytest.mark.parametrize("level", [0.0, 0.7])
def test_constant_activations_are_represented_soundly(tmp_path, form, method, level):
    torch.manual_seed(0)
    model = SequenceClassifier(CONFIG, ("no", "yes"))
    torch.nn.init.zeros_(model.bert.embeddings.LayerNorm.weight)  # every hidden state that enters is `level`
    torch.nn.init.constant_(model.bert.embeddings.LayerNorm.bias, level)
    export_onnx(model, tmp_path / "fp32.onnx")
    quantize(tmp_path / "fp32.onnx", tmp_path / "int8.onnx", form, method=method)
    feeds = feeds_of(examples(20, 0))
    expected, found = (OnnxClassifier(tmp_path / name, 1).logits(feeds) for name in ("fp32.onnx", "int8.onnx"))
    assert np.abs(expected).max() > 0.01 or level == 0.0
    np.testing.assert_allclose(found, expected, atol=0.01)


def test_no_calibration_batches_are_refused(models, tmp_path):
    with pytest.raises(UserError, match="at least one training example"):
        quantize(models["fp32"], tmp_path / "int8.onnx", "qdq", calibration=[])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", FORMS)
def test_a_missing_fp32_file_is_told(tmp_path, form):
    with pytest.raises(UserError, match=r"none\.onnx: absent"):
        quantize(tmp_path / "none.onnx", tmp_path / "int8.onnx", form)


@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_spilled(models, tmp_path, capfd, caplog, form):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quantize(models["fp32"], tmp_path / "int8.onnx", form, method="percentile")
    assert capfd.readouterr() == ("", "") and caplog.text == ""


def encoded_rows(count: int) -> Encoded:
    """Row i has length 1 + i % 7 and the tokens i, i, …"""
    input_ids = [np.full(1 + row % 7, row) for row in range(count)]
    return Encoded(input_ids=input_ids, token_type_ids=[0 * ids for ids in input_ids], labels=None)


def test_calibration_rows_are_distinct_and_batched_by_length():
    batches = calibration_feeds(encoded_rows(40), examples=21, batch_size=4, seed=3)
    assert [len(feeds["input_ids"]) for feeds in batches] == [4, 4, 4, 4, 4, 1]
    rows = [int(row) for feeds in batches for row in feeds["input_ids"][:, 0]]
    assert len(set(rows)) == 21
    lengths = [1 + row % 7 for row in rows]
    assert lengths == sorted(lengths)
    assert [feeds["input_ids"].shape[1] for feeds in batches] == [max(lengths[i : i + 4]) for i in range(0, 21, 4)]
    assert batches[0]["attention_mask"].dtype == np.int64


def test_calibration_rows_depend_on_the_seed_alone():
    def rows(seed):
        batches = calibration_feeds(encoded_rows(40), examples=9, batch_size=4, seed=seed)
        return [feeds["input_ids"].tolist() for feeds in batches]

    assert rows(1) == rows(1) != rows(2)


def test_fewer_rows_than_asked_for_are_refused():
    with pytest.raises(UserError, match=r"quantization\.calibration\.examples: 9 asked for, the training set has 8"):
        calibration_feeds(encoded_rows(8), examples=9, batch_size=4, seed=0)


def test_rows_all_the_same_are_refused():
    ids = [np.full(5, 7)] * 10
    with pytest.raises(
        UserError, match=r"quantization\.calibration\.examples: the 9 rows drawn are all the same; at least two"
    ):
        calibration_feeds(Encoded(ids, ids, labels=None), examples=9, batch_size=4, seed=0)
