"""Small ONNX files for tests."""

from pathlib import Path

import onnx
from onnx import TensorProto, helper


def save_sum_model(folder: Path) -> Path:
    """A graph with a classifier's inputs; logits (batch, 1): the sum of the real tokens' ids."""
    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"]) for name in names]
    output = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 1])
    nodes = [
        helper.make_node("Mul", ["input_ids", "attention_mask"], ["real"]),
        helper.make_node("Add", ["real", "token_type_ids"], ["all"]),
        helper.make_node("Cast", ["all"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["floats", "axes"], ["logits"]),
    ]
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    graph = helper.make_graph(nodes, "sum", inputs, [output], [axes])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "sum.onnx")
    return folder / "sum.onnx"
