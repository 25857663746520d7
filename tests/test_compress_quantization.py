import warnings
from collections import Counter

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx import numpy_helper

from tinybert.compress.export import export_onnx, feeds_of
from tinybert.compress.latency import open_session, predict
from tinybert.compress.quantization import calibration_feeds, quantize_dynamic, quantize_static
from tinybert.errors import UserError
from tinybert.glue.encoding import Encoded
from tinybert.models.activations import Batch
from tinybert.models.bert import BertConfig, SequenceClassifier

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


def quantize(fp32, path, form, **changes):
    if form == "dynamic":
        return quantize_dynamic(fp32, path)
    batches = [feeds_of(examples(8, seed=1000 + number)) for number in range(8)]
    settings = {"calibration": batches, "method": "minmax", "percentile": 99.9} | changes
    return quantize_static(fp32, path, form=form, **settings)


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
    return predict(open_session(path, 1), feeds_of(examples(1000, seed))).argmax(1)


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


# Each layer has 6 Linear products and 2 of attention, the pooler 1, the classifier 1 (a Gemm in float).
def test_dynamic_has_integer_products_and_scales_at_run_time(models):
    found = operators(models["dynamic"])
    assert found["MatMulInteger"] == 13 and found["DynamicQuantizeLinear"] > 0
    assert found["MatMul"] == 4 + 1  # attention, and the classifier


def test_qdq_wraps_float_products(models):
    found = operators(models["qdq"])
    assert found["MatMul"] == 12 + 4 and found["Gemm"] == 2
    assert found["QuantizeLinear"] > 13 and found["DequantizeLinear"] > found["QuantizeLinear"]
    assert not any(name.startswith("QLinear") for name in found)


def test_qoperator_has_integer_products(models):
    found = operators(models["qoperator"])
    assert found["QLinearMatMul"] + found["QGemm"] == 13
    assert found["MatMul"] == 4 and found["Gemm"] == 1


@pytest.mark.parametrize("form", FORMS)
def test_attention_products_and_the_classifier_stay_in_float(models, form):
    graph = onnx.load(models[form]).graph
    makers = {output: node.op_type for node in graph.node for output in node.output}
    weights = {tensor.name for tensor in graph.initializer}
    quantized = {"DequantizeLinear", "QuantizeLinear", "DynamicQuantizeLinear"}
    in_float = [
        node.name
        for node in graph.node
        if node.op_type in ("MatMul", "Gemm") and not quantized & {makers.get(name) for name in node.input}
    ]
    products = [node for node in graph.node if node.name in in_float and not weights & set(node.input)]
    assert len(products) == 4 and len(in_float) == 5
    assert "classifier" in in_float[-1]


@pytest.mark.parametrize("form", FORMS)
def test_weights_are_int8_with_a_scale_per_output_channel(models, form):
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(models[form]).graph.initializer}
    matrices = {name: value for name, value in tensors.items() if name.endswith("_quantized") and "MatMul" in name}
    assert len(matrices) == 12
    for name, value in matrices.items():
        assert value.dtype == np.int8
        assert tensors[name.replace("_quantized", "_scale")].shape == (value.shape[1],)  # (in, out)


@pytest.mark.parametrize(("form", "activations"), [("qdq", np.int8), ("qoperator", np.uint8)])
def test_activations_have_the_type_of_the_form(models, form, activations):
    graph = onnx.load(models[form]).graph
    points = {tensor.name: numpy_helper.to_array(tensor).dtype for tensor in graph.initializer}
    assert {points[node.input[2]] for node in graph.node if node.op_type == "QuantizeLinear"} == {np.dtype(activations)}


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
    expected, found = (predict(open_session(tmp_path / name, 1), feeds) for name in ("fp32.onnx", "int8.onnx"))
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
