"""INT8 ONNX files from an FP32 one: dynamic, and static in the QDQ and QOperator formats.

Linear layers become integer products (weights int8 with a scale per output channel, inputs uint8 with a zero point) and
embedding tables int8 with a scale per row. uint8 x int8 is what ONNX Runtime's fastest x64 kernels compute. Attention
(a product of two activations), the classifier (few weights) and excluded nodes stay in float, and so do all results:
bias, residual sum and layer norm need float precision, and 256 steps there cost more score than everything else
together.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tinybert.compress.calibration import ActivationRange, calibrate
from tinybert.compress.serving import Feeds
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import atomic_file

ORT_DOMAIN = "com.microsoft"
LARGEST_INT8 = 127
STEPS_UINT8 = 255


@dataclass(frozen=True)
class EmbeddingTable:
    """Rows looked up by number. weight: (rows, width) float32; nodes: the names of those that compute it now."""

    name: str
    input: str
    output: str
    weight: np.ndarray
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class LinearLayer(EmbeddingTable):
    """input @ weight + bias. weight: (in, out) float32; bias: (out,)."""

    bias: np.ndarray


@dataclass(frozen=True)
class Int8Plan:
    """What all INT8 variants of a model share: the FP32 graph, what becomes INT8, and the ranges of its inputs."""

    model: onnx.ModelProto
    layers: list[EmbeddingTable]
    ranges: dict[str, ActivationRange]


def plan_int8(fp32: str | Path, batches: Sequence[Feeds], *, smoothing: float, exclude: Sequence[str] = ()) -> Int8Plan:
    """Finds the layers of a file of `export_onnx`, and calibrates their inputs by `batches` of examples.

    `smoothing` is that of `calibrate`; `exclude` holds patterns (`*`, `?`) of names of nodes that stay in float.
    UserError if nothing is left to quantize.
    """
    model = onnx.load(fp32)
    found = quantizable_layers(model)
    layers = [layer for layer in found if not any(fnmatchcase(layer.name, pattern) for pattern in exclude)]
    if not layers:
        raise UserError(
            f"quantization.exclude: {fp32} has no Linear layer and no embedding left to quantize "
            f"(got {list(exclude)} for {len(found)} nodes); fix: remove patterns, or the model from quantization.models"
        )
    weights: dict[str, list[np.ndarray]] = {}
    for layer in layers:
        if isinstance(layer, LinearLayer):
            weights.setdefault(layer.input, []).append(layer.weight)
    joined = {name: np.concatenate(parts, axis=1) for name, parts in weights.items()}
    return Int8Plan(model, layers, calibrate(model, joined, batches, smoothing))


def write_int8(plan: Int8Plan, path: str | Path, variant: str) -> None:
    """Writes one INT8 variant; the same plan gives the same bytes.

    - int8-dynamic: inputs are scaled for each batch or slice, so a row's logits depend slightly on the rows beside it.
    - int8-qdq: standard operators, float products between QuantizeLinear and DequantizeLinear, which the runtime fuses
      (except the pooler's).
    - int8-qoperator: the integer products of the runtime itself.
    """
    model = onnx.ModelProto()
    model.CopyFrom(plan.model)
    layers, ranges = fold_smoothing(model, plan.layers, plan.ranges)
    writer = _Int8Nodes(variant, ranges)
    replace_layers(model, layers, writer.nodes_of)
    del model.graph.value_info[:]
    model.graph.initializer.extend(writer.constants.values())
    with atomic_file(path, "wb") as handle:
        handle.write(model.SerializeToString(deterministic=True))


def quantizable_layers(model: onnx.ModelProto) -> list[EmbeddingTable]:
    """The Linear layers and embedding tables of an exported graph in its order, without the layer of the logits."""
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    adds = {name: node for node in model.graph.node if node.op_type == "Add" for name in node.input}
    layers: list[EmbeddingTable] = []
    for node in model.graph.node:
        if node.op_type == "Gather" and node.input[0] in constants:
            table = constants[node.input[0]]
            layers.append(EmbeddingTable(node.name, node.input[1], node.output[0], table, (node.name,)))
        elif node.op_type == "Gemm" and node.output[0] != "logits":  # a Linear layer that reads matrices
            weight, bias = constants[node.input[1]].T, constants[node.input[2]]
            layers.append(LinearLayer(node.name, node.input[0], node.output[0], weight, (node.name,), bias))
        elif node.op_type == "MatMul":  # one that reads rows of tokens
            add = adds[node.output[0]]
            weight, bias = constants[node.input[1]], constants[add.input[0]]
            layers.append(LinearLayer(node.name, node.input[0], add.output[0], weight, (node.name, add.name), bias))
    return layers


def fold_smoothing(
    model: onnx.ModelProto, layers: Sequence[EmbeddingTable], ranges: Mapping[str, ActivationRange]
) -> tuple[list[EmbeddingTable], dict[str, ActivationRange]]:
    """Moves the smoothing of attention's output into the value weights; the graph computes the same.

    A channel of attention's output is a weighted mean of that channel of the values. So dividing the output is
    the same as dividing a column of the value weights. INT8 has a scale for each column, so the division costs neither
    precision nor an operator.
    This holds for our exported graphs: only attention reads the values, and only one product reads attention's
    output. That output needs no Clip in the dynamic variant, because padded positions do not contribute to it.
    """
    linear = [layer for layer in layers if isinstance(layer, LinearLayer)]
    writers, readers = {layer.output: layer for layer in linear}, {layer.input: layer for layer in linear}
    changed: dict[str, EmbeddingTable] = {}
    found = dict(ranges)
    for node in model.graph.node:
        if node.op_type != "Attention":
            continue
        values, reader = writers.get(node.input[2]), readers.get(node.output[0])
        if values is None or reader is None or (factors := ranges[reader.input].factors) is None:
            continue
        changed[values.name] = replace(values, weight=values.weight / factors, bias=values.bias / factors)
        changed[reader.name] = replace(reader, weight=reader.weight * factors[:, None])
        found[reader.input] = replace(ranges[reader.input], factors=None)
    return [changed.get(layer.name, layer) for layer in layers], found


def replace_layers(
    model: onnx.ModelProto,
    layers: Sequence[EmbeddingTable],
    nodes_of: Callable[[EmbeddingTable], list[onnx.NodeProto]],
) -> None:
    """Replaces the nodes of each layer by `nodes_of(layer)`, and removes weights that are no longer read."""
    graph, nodes = model.graph, []
    last = {layer.nodes[-1]: layer for layer in layers}
    replaced = {name for layer in layers for name in layer.nodes}
    for node in graph.node:
        if node.name in last:
            nodes += nodes_of(last[node.name])
        elif node.name not in replaced:
            nodes.append(node)
    read = {name for node in nodes for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(kept)


def quantize_symmetric(values: np.ndarray, *, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """int8 of the same shape, and float32 scales of what is left when `axis` is reduced; all zeros have scale 1."""
    scales = np.abs(values).max(axis) / LARGEST_INT8
    scales = np.where(scales > 0, scales, 1.0).astype(np.float32)
    integers = np.rint(values / np.expand_dims(scales, axis))
    return np.clip(integers, -LARGEST_INT8, LARGEST_INT8).astype(np.int8), scales


def scale_and_zero_point(found: ActivationRange) -> tuple[np.ndarray, np.ndarray]:
    """float32 and uint8 scalars: value = scale * (integer - zero point). A tensor that is always 0 has scale 1."""
    scale = np.float32((found.high - found.low) / STEPS_UINT8)
    if not scale > 0:
        return np.array(1, np.float32), np.array(0, np.uint8)
    return np.array(scale), np.array(np.clip(np.rint(-found.low / scale), 0, STEPS_UINT8), np.uint8)


class _Int8Nodes:
    """Makes the integer nodes of one variant, and collects their constants."""

    def __init__(self, variant: str, ranges: Mapping[str, ActivationRange]) -> None:
        self.variant = variant
        self.ranges = ranges
        self.constants: dict[str, onnx.TensorProto] = {}
        self.nodes: list[onnx.NodeProto] = []  # of the current layer
        self.integers: dict[str, list[str]] = {}  # what is made of an input already

    def nodes_of(self, layer: EmbeddingTable) -> list[onnx.NodeProto]:
        """The nodes that compute the layer."""
        self.nodes = []
        if isinstance(layer, LinearLayer):
            self._linear(layer)
        else:
            self._table(layer)
        return self.nodes

    def _table(self, table: EmbeddingTable) -> None:
        # A scale for each row: one for the table would cost ten times the error.
        integers, scales = quantize_symmetric(table.weight, axis=1)
        own = table.name
        self._node("Gather", [self._constant(f"{own}_quantized", integers), table.input], f"{own}_integers")
        self._node("Gather", [self._constant(f"{own}_scale", scales[:, None]), table.input], f"{own}_row_scale")
        self._node("Cast", [f"{own}_integers"], f"{own}_floats", to=TensorProto.FLOAT)
        self._node("Mul", [f"{own}_floats", f"{own}_row_scale"], table.output)

    def _linear(self, layer: LinearLayer) -> None:
        own, factors = layer.name, self.ranges[layer.input].factors
        floats = layer.weight if factors is None else layer.weight * factors[:, None]
        integers, scales = quantize_symmetric(floats, axis=0)
        weight = [
            self._constant(f"{own}_quantized", integers),
            self._constant(f"{own}_scale", scales),
            self._constant(f"{own}_zero_point", np.zeros_like(scales, dtype=np.int8)),
        ]
        if layer.input not in self.integers:
            self.integers[layer.input] = self._integers_of(layer.input)
        read, bias = self.integers[layer.input], self._constant(f"{own}_bias", layer.bias)
        if self.variant == "int8-qdq":
            # A DequantizeLinear for each product, even of a shared input: otherwise the runtime does not fuse it.
            self._node("DequantizeLinear", read, f"{own}_input")
            self._node("DequantizeLinear", weight, f"{own}_weight", axis=1)
            self._node("MatMul", [f"{own}_input", f"{own}_weight"], f"{own}_product")
            self._node("Add", [f"{own}_product", bias], layer.output)
        else:
            pairs = [name for pair in zip(read, weight, strict=True) for name in pair]
            self._node("MatMulIntegerToFloat", [*pairs, bias], layer.output, domain=ORT_DOMAIN)

    def _integers_of(self, name: str) -> list[str]:
        """Makes a tensor uint8; returns the names of the integers, their scale and their zero point."""
        values, observed = name, self.ranges[name]
        found = [f"{name}_uint8", f"{name}_scale", f"{name}_zero_point"]
        if observed.factors is not None:
            divisor = self._constant(f"{name}_divisor", 1 / observed.factors)
            values = f"{name}_smooth"
            self._node("Mul", [name, divisor], values)
        if self.variant != "int8-dynamic":
            for constant, value in zip(found[1:], scale_and_zero_point(observed), strict=True):
                self._constant(constant, value)
            self._node("QuantizeLinear", [values, *found[1:]], found[0])
            return found
        if observed.factors is not None:
            # A channel that was small in calibration is divided by little: a single large value in it, even at a
            # padded position, would take all steps from the rest of the batch.
            low = self._constant(f"{name}_low", np.array(observed.low, np.float32))
            high = self._constant(f"{name}_high", np.array(observed.high, np.float32))
            self._node("Clip", [values, low, high], f"{name}_clipped")
            values = f"{name}_clipped"
        self._node("DynamicQuantizeLinear", [values], *found)
        return found

    def _node(self, operator: str, inputs: list[str], *outputs: str, **attributes: Any) -> None:
        self.nodes.append(helper.make_node(operator, inputs, outputs, name=f"{outputs[0]}_node", **attributes))

    def _constant(self, name: str, value: np.ndarray) -> str:
        self.constants[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name
