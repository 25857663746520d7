"""What of an ONNX graph can become INT8: products with a weight matrix, and embedding tables."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import helper, numpy_helper

from tinybert.pipeline.errors import UserError

ALLOWED = (
    "a BERT allows dynamic, qdq and qoperator with all its Linear layers and embeddings; a BiLSTM the same forms with "
    "its LSTM in floating point"
)


@dataclass(frozen=True)
class Product:
    """input · weight + bias. weight: (in, out) float32; bias: (out,) or None; nodes: those that compute it now."""

    name: str
    input: str
    output: str
    weight: np.ndarray
    bias: np.ndarray | None
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """Rows looked up by number. weight: (rows, width) float32."""

    name: str
    input: str
    output: str
    weight: np.ndarray
    nodes: tuple[str, ...]


def read_graph(path: str | Path) -> onnx.ModelProto:
    """The FP32 model of an ONNX file; UserError without a whole file."""
    if not Path(path).is_file():
        raise UserError(f"{path}: absent; an FP32 ONNX file is expected, export the model first")
    try:
        return onnx.load(path)
    except DecodeError:
        raise UserError(f"{path}: no whole ONNX file; export the model again") from None


def quantizable(model: onnx.ModelProto) -> list[Product | Table]:
    """The parts that INT8 pays for, in the order of the graph.

    Not among them: products of two activations (attention), and the one that makes the logits, whose few weights
    save nothing. UserError where there is none.
    """
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    found = [part for node in model.graph.node if (part := _part(node, model.graph, weights)) is not None]
    parts = [part for part in found if part.output != "logits"]
    if not parts:
        raise UserError(f"{model.graph.name}: no Linear layer and no embedding to quantize; {ALLOWED}")
    return parts


def replace_parts(
    model: onnx.ModelProto,
    parts: Sequence[Product | Table],
    nodes_of: Callable[[Product | Table], list[onnx.NodeProto]],
) -> None:
    """Puts `nodes_of` each part in the place of its nodes, and drops the weights that no node reads any more."""
    graph = model.graph
    last = {part.nodes[-1]: part for part in parts}
    gone = {name for part in parts for name in part.nodes}
    nodes = []
    for node in graph.node:
        if node.name in last:
            nodes += nodes_of(last[node.name])
        elif node.name not in gone:
            nodes.append(node)
    read = {name for node in nodes for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(kept)


def _part(node: onnx.NodeProto, graph: onnx.GraphProto, weights: dict) -> Product | Table | None:
    tensors = [weights.get(name) for name in node.input]
    attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    if node.op_type == "Gather" and _is_matrix(tensors[0]) and not attributes.get("axis"):
        return Table(node.name, node.input[1], node.output[0], numpy_helper.to_array(tensors[0]), (node.name,))
    if node.op_type == "Gemm" and _is_matrix(tensors[1]) and _is_plain(attributes):
        weight = numpy_helper.to_array(tensors[1])
        bias = numpy_helper.to_array(tensors[2]) if len(tensors) > 2 and tensors[2] is not None else None
        weight = weight.T if attributes.get("transB") else weight
        return Product(node.name, node.input[0], node.output[0], weight, bias, (node.name,))
    if node.op_type == "MatMul" and _is_matrix(tensors[1]):
        return _with_bias(node, numpy_helper.to_array(tensors[1]), graph, weights)
    return None


def _is_matrix(tensor: onnx.TensorProto | None) -> TypeGuard[onnx.TensorProto]:
    return tensor is not None and len(tensor.dims) == 2 and tensor.data_type == onnx.TensorProto.FLOAT


def _is_plain(attributes: dict) -> bool:
    """Whether a Gemm is input · weight + bias, the weight transposed or not."""
    return not attributes.get("transA") and attributes.get("alpha", 1.0) == attributes.get("beta", 1.0) == 1.0


def _with_bias(node: onnx.NodeProto, weight: np.ndarray, graph: onnx.GraphProto, weights: dict) -> Product:
    """The product together with the sum behind it, where that adds a constant vector."""
    readers = [each for each in graph.node if node.output[0] in each.input]
    if len(readers) == 1 and readers[0].op_type == "Add":
        for name in readers[0].input:
            if name in weights and list(weights[name].dims) == [weight.shape[1]]:
                bias = numpy_helper.to_array(weights[name])
                names = (node.name, readers[0].name)
                return Product(node.name, node.input[0], readers[0].output[0], weight, bias, names)
    return Product(node.name, node.input[0], node.output[0], weight, None, (node.name,))
