"""How calibration rows are drawn and batched, how smoothing factors are found, and what a range covers."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tinybert.compress.quantization import (
    ActivationRange,
    Int8Layer,
    calibrate,
    calibration_feeds,
    draw_rows,
    smoothing_factors,
)
from tinybert.data.encoding import Encoded
from tinybert.pipeline.errors import UserError


def encoded_rows(count: int) -> Encoded:
    """Row i has length 1 + i % 7 and the tokens i, i, …"""
    input_ids = [np.full(1 + row % 7, row) for row in range(count)]
    return Encoded(input_ids=input_ids, token_type_ids=[0 * ids for ids in input_ids], labels=None)


def test_all_calibration_rows_are_batched_by_length():
    batches = calibration_feeds(encoded_rows(21), batch_size=4)
    assert [len(feeds["input_ids"]) for feeds in batches] == [4, 4, 4, 4, 4, 1]
    rows = [int(row) for feeds in batches for row in feeds["input_ids"][:, 0]]
    assert len(set(rows)) == 21
    lengths = [1 + row % 7 for row in rows]
    assert lengths == sorted(lengths)
    assert [feeds["input_ids"].shape[1] for feeds in batches] == [max(lengths[i : i + 4]) for i in range(0, 21, 4)]
    assert batches[0]["attention_mask"].dtype == np.int64


def test_calibration_rows_are_drawn_by_the_seed():
    rows = [{"idx": number} for number in range(40)]

    def drawn(count, seed):
        return [row["idx"] for row in draw_rows(rows, count, seed=seed)]

    assert len(set(drawn(9, 1))) == 9 and drawn(9, 1) == drawn(9, 1) != drawn(9, 2)
    assert sorted(drawn(50, 1)) == list(range(40))


def test_rows_all_the_same_are_refused():
    ids = [np.full(5, 7)] * 9
    with pytest.raises(
        UserError, match=r"^quantization\.calibration\.examples \(--calibration-rows\): all 9 rows drawn are the same; "
    ):
        calibration_feeds(Encoded(ids, ids, labels=None), batch_size=4)


def test_smoothing_factors_by_hand():
    """Channels that reach 512 and 1, weights up to .01 and 1; factors have the geometric mean 1."""
    least, greatest = np.array([-512.0, -1.0]), np.array([300.0, 0.5])
    weight = np.array([[0.01, -0.005], [1.0, 0.2]])
    # α = 1: 512 and 1 over sqrt(512). α = .75: 512^.75 / .01^.25 = 340.371 and 1 over its root.
    np.testing.assert_allclose(smoothing_factors(least, greatest, weight, 1.0), [22.62742, 0.0441942], rtol=1e-5)
    np.testing.assert_allclose(smoothing_factors(least, greatest, weight, 0.75), [18.44914, 0.0542031], rtol=1e-5)
    assert smoothing_factors(np.array([-1.0, -1.0]), np.array([1.0, 1.0]), weight, 0.9) is None
    assert smoothing_factors(least, greatest, weight, 0.0) is None


def identity() -> onnx.ModelProto:
    """floats (batch, length) -> the same as channels (batch, length, 1)."""
    inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])]
    inputs.append(helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "length"]))
    output = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "length"])
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["logits"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["logits", "axis"], ["channels"]),
    ]
    axis = helper.make_tensor("axis", TensorProto.INT64, [1], [2])
    graph = helper.make_graph(nodes, "identity", inputs, [output], [axis])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_range_covers_real_tokens_of_all_batches_and_zero():
    mask = np.array([[1, 1, 0]])
    batches = [{"input_ids": np.array([[3, 5, 99]]), "attention_mask": mask}]
    batches.append({"input_ids": np.array([[2, 8, -99]]), "attention_mask": mask})
    layer = Int8Layer("product", "channels", "sums", ("product",), weight=np.ones((1, 1)), bias=np.zeros(1))
    assert calibrate(identity(), [layer], batches, 0.9) == {"channels": ActivationRange(0.0, 8.0)}
