"""INT8 ONNX files from an FP32 one: dynamic, and static in the QDQ and QOperator formats.

Linear layers become integer products (weights int8 with a scale per output channel, inputs uint8 with a zero point) and
embedding tables int8 with a scale per row. uint8 x int8 is what ONNX Runtime's fastest x64 kernels compute. Attention
(a product of two activations), the classifier (few weights) and excluded nodes stay in float, and so do all results:
bias, residual sum and layer norm need float precision, and 256 steps there cost more score than all else together.

A few channels of BERT's hidden states are tens of times larger than the rest, and one scale per tensor leaves only a
few of its 256 steps for the rest. Smoothing divides each channel by a factor and multiplies its row of the weights by
the same factor: the product stays the same, the channels become similar (SmoothQuant, Xiao et al. 2023, eq. 4).
SmoothQuant folds the division into the preceding layer norm. In a post-norm BERT the residual sum also reads that
output, so here the division is a separate operator (except at attention's output, see `fold_smoothing`).
"""

import copy
import os
import random
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from tinybert.compress.onnx_files import ORT_DOMAIN, Feeds, feeds_of, session_of, write_portable
from tinybert.data.encoding import Encoded
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import write_file

LARGEST_INT8 = 127
STEPS_UINT8 = 255
LEAST_GAIN = 4.0  # smoothing must reduce the expected squared rounding error by this factor to be worth its operator
SMALLEST_SHARE = 1e-3  # of the largest channel: smaller channels count as this large


class Int8Layer(NamedTuple):
    """A Linear layer, or an embedding table whose rows are looked up by number."""

    name: str
    input: str
    output: str
    nodes: tuple[str, ...]  # names of the ONNX nodes that compute it in float
    weight: np.ndarray  # float32, (in, out), or (rows, width) of a table
    bias: np.ndarray | None = None  # (out,); None for a table


class ActivationRange(NamedTuple):
    """The range of a tensor that Linear layers read: low <= 0 <= high, after its channels are divided by `factors`.

    factors: (width,) float32; None without smoothing.
    """

    low: float
    high: float
    factors: np.ndarray | None = None


class Int8Plan(NamedTuple):
    """What all INT8 variants of a model share: the FP32 graph, what becomes INT8, and the ranges of its inputs."""

    model: onnx.ModelProto
    layers: list[Int8Layer]
    ranges: dict[str, ActivationRange]


def draw_rows(rows: Sequence[dict], count: int, *, seed: int) -> list[dict]:
    """Draws rows without replacement by the seed; all if there are fewer than `count`."""
    return random.Random(seed).sample(rows, min(count, len(rows)))


def calibration_feeds(rows: Encoded, *, batch_size: int) -> list[Feeds]:
    """Batches of rows of similar length; UserError if all are equal, which says nothing about the range of others."""
    if len({ids.tobytes() for ids in rows.input_ids}) == 1:
        problem = f"all {len(rows)} rows drawn are the same; allowed: two different rows; fix: raise it, or add rows"
        raise UserError(f"quantization.calibration.examples (--calibration-rows): {problem}")
    order = np.argsort(rows.lengths, kind="stable")  # similar lengths need less padding
    return [feeds_of(rows.batch(order[start : start + batch_size])) for start in range(0, len(rows), batch_size)]


def plan_int8(fp32: str | Path, batches: Sequence[Feeds], *, smoothing: float, exclude: Sequence[str] = ()) -> Int8Plan:
    """Finds the layers of a file of `export_onnx`, and calibrates their inputs by `batches` of examples.

    `smoothing` is that of `calibrate`; `exclude` holds patterns (`*`, `?`) of names of nodes that stay in float.
    UserError if nothing is left to quantize.
    """
    model = onnx.load(fp32)
    found = quantizable_layers(model)
    layers = [layer for layer in found if not any(fnmatchcase(layer.name, pattern) for pattern in exclude)]
    if not layers:
        problem = f"{fp32} has no Linear layer and no embedding left to quantize"
        got, fix = f"{list(exclude)} for {len(found)} nodes", "remove patterns, or the model from quantization.models"
        raise UserError(f"quantization.exclude (--exclude): {problem} (got {got}); fix: {fix}")
    for pattern in exclude:
        if not any(fnmatchcase(layer.name, pattern) for layer in found):
            problem = f"no node that becomes INT8 matches (got {pattern}); allowed: such as {found[-1].name}"
            print(f"warning: quantization.exclude (--exclude): {problem}; fix: correct it", file=sys.stderr)
    return Int8Plan(model, layers, calibrate(model, layers, batches, smoothing))


def quantizable_layers(model: onnx.ModelProto) -> list[Int8Layer]:
    """The Linear layers and embedding tables of an exported graph in its order, without the layer of the logits."""
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    adds = {name: node for node in model.graph.node if node.op_type == "Add" for name in node.input}
    layers = []
    for node in model.graph.node:
        own, read, output = node.name, node.input, node.output[0]
        if node.op_type == "Gather" and read[0] in constants:
            layers.append(Int8Layer(own, read[1], output, (own,), constants[read[0]]))
        elif node.op_type == "Gemm" and output != "logits":  # a Linear layer that reads matrices
            layers.append(Int8Layer(own, read[0], output, (own,), constants[read[1]].T, constants[read[2]]))
        elif node.op_type == "MatMul":  # one that reads rows of tokens
            add, weight = adds[output], constants[read[1]]
            layers.append(Int8Layer(own, read[0], add.output[0], (own, add.name), weight, constants[add.input[0]]))
    return layers


def calibrate(
    model: onnx.ModelProto, layers: Sequence[Int8Layer], batches: Sequence[Feeds], smoothing: float
) -> dict[str, ActivationRange]:
    """Maps each tensor that Linear layers read to its range at the real tokens of the calibration batches.

    `smoothing` is SmoothQuant's alpha, 0 to 1: the share of a channel's magnitude that moves into the weights.
    """
    weights: dict[str, list[np.ndarray]] = {}
    for layer in layers:
        if layer.bias is not None:
            weights.setdefault(layer.input, []).append(layer.weight)
    found = {}
    for name, (least, greatest) in _channel_ranges(model, list(weights), batches).items():
        factors = smoothing_factors(least, greatest, np.concatenate(weights[name], axis=1), smoothing)
        divisor = 1.0 if factors is None else factors
        found[name] = ActivationRange(*_range_with_zero(least / divisor, greatest / divisor), factors)
    return found


def smoothing_factors(least: np.ndarray, greatest: np.ndarray, weight: np.ndarray, alpha: float) -> np.ndarray | None:
    """SmoothQuant's factors of the channels (eq. 4): magnitude^alpha / weight^(1 - alpha), geometric mean 1.

    least and greatest: (width,) range of each channel; weight: (width, outputs) of the layers that read it. Returns
    (width,) float32, or None if alpha is 0 or smoothing gains too little.
    """
    magnitudes = np.maximum(np.abs(least), np.abs(greatest))
    if not alpha or not magnitudes.any():
        return None
    rows = np.abs(weight).max(1)
    # A channel that was (almost) silent in calibration would get a factor near 0 and explode on another row.
    magnitudes, rows = (np.maximum(each, max(each.max() * SMALLEST_SHARE, 1e-30)) for each in (magnitudes, rows))
    logarithms = alpha * np.log(magnitudes) - (1.0 - alpha) * np.log(rows)
    # Only the ratios of factors matter to the product; a mean of 1 keeps activations and weights in their order.
    factors = np.exp(logarithms - logarithms.mean()).astype(np.float32)
    plain = _expected_error(least, greatest, weight)
    smoothed = _expected_error(least / factors, greatest / factors, weight * factors[:, None])
    return factors if plain >= LEAST_GAIN * smoothed else None


def _channel_ranges(
    model: onnx.ModelProto, names: list[str], batches: Sequence[Feeds]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Name -> least and greatest value of each channel at real tokens, (width,) each."""
    observed = copy.deepcopy(model)
    observed.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = session_of(observed.SerializeToString())
    ranges: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for feeds in batches:
        is_real = feeds["attention_mask"].astype(bool)
        for name, values in zip(names, session.run(names, feeds), strict=True):
            # The last layer computes the [CLS] row only: its tensors have no padding rows to leave out.
            has_tokens = values.shape[:2] == is_real.shape and values.ndim == 3
            channels = (values[is_real] if has_tokens else values).reshape(-1, values.shape[-1])
            least, greatest = ranges.get(name, (np.inf, -np.inf))
            ranges[name] = np.minimum(least, channels.min(0)), np.maximum(greatest, channels.max(0))
    return ranges


def _expected_error(least: np.ndarray, greatest: np.ndarray, weight: np.ndarray) -> float:
    """Squared rounding error of the activations after the product, up to a constant: step width² · Σ weight²."""
    low, high = _range_with_zero(least, greatest)
    return (high - low) ** 2 * float((weight.astype(np.float64) ** 2).sum())


def _range_with_zero(least: np.ndarray, greatest: np.ndarray) -> tuple[float, float]:
    """The range over all channels, extended to 0: padding and biases need an exact zero."""
    return min(float(least.min()), 0.0), max(float(greatest.max()), 0.0)


def write_int8(plan: Int8Plan, path: str | Path, variant: str) -> None:
    """Writes one INT8 variant; the same plan gives the same bytes.

    - int8-dynamic: inputs are scaled for each batch or slice, so a row's logits depend slightly on the rows beside it.
    - int8-qdq: standard operators, float products between QuantizeLinear and DequantizeLinear, which the runtime fuses
      (except the pooler's).
    - int8-qoperator: the integer products of the runtime itself.
    """
    model = copy.deepcopy(plan.model)
    layers, ranges = fold_smoothing(model, plan.layers, plan.ranges)
    writer = _Int8Nodes(variant, ranges)
    replace_layers(model, layers, writer.nodes_of)
    del model.graph.value_info[:]
    model.graph.initializer.extend(writer.constants.values())
    write_file(path, model.SerializeToString(deterministic=True))


def fold_smoothing(
    model: onnx.ModelProto, layers: Sequence[Int8Layer], ranges: Mapping[str, ActivationRange]
) -> tuple[list[Int8Layer], dict[str, ActivationRange]]:
    """Moves the smoothing of attention's output into the value weights; the graph computes the same.

    A channel of attention's output is a weighted mean of that channel of the values. Dividing the output is the same as
    dividing a column of the value weights. INT8 has a scale for each column, so the division costs neither precision
    nor an operator. This holds for our exported graphs: only attention reads the values, and only one product reads
    attention's output. That output needs no Clip in the dynamic variant, because padded positions do not contribute.
    """
    writers, readers = {layer.output: layer for layer in layers}, {layer.input: layer for layer in layers}
    changed, found = dict[str, Int8Layer](), dict(ranges)
    for node in model.graph.node:
        if node.op_type != "Attention":
            continue
        values, reader = writers.get(node.input[2]), readers.get(node.output[0])
        if values is None or reader is None or (factors := ranges[reader.input].factors) is None:
            continue
        changed[values.name] = values._replace(weight=values.weight / factors, bias=values.bias / factors)
        changed[reader.name] = reader._replace(weight=reader.weight * factors[:, None])
        found[reader.input] = ranges[reader.input]._replace(factors=None)
    return [changed.get(layer.name, layer) for layer in layers], found


def replace_layers(
    model: onnx.ModelProto, layers: Sequence[Int8Layer], nodes_of: Callable[[Int8Layer], list[onnx.NodeProto]]
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


def write_published_int8(fp32: str | Path, batches: Sequence[Feeds], path: str | Path, variant: str) -> None:
    """Writes an INT8 variant of `export_onnx`'s file as a published reproduction made it: scores can collapse.

    ONNX Runtime's quantizer takes the products of attention too, residual sums and the classifier, with one scale per
    tensor and ranges from minimum to maximum, padding included: QDQ with int8 inputs, QOperator with uint8 inputs
    (QLinearMatMul), or dynamic. Masks are added to attention's scores, as in the published models; one scale for sums
    that reach the lowest float leaves nothing of the scores.
    """
    formats = {
        "int8-qdq": {"quant_format": QuantFormat.QDQ, "activation_type": QuantType.QInt8},
        "int8-qoperator": {"quant_format": QuantFormat.QOperator, "activation_type": QuantType.QUInt8},
    }
    with tempfile.TemporaryDirectory(dir=Path(path).parent) as folder:
        portable, file = Path(folder, "portable.onnx"), Path(folder, "int8.onnx")
        write_portable(fp32, portable)
        model = onnx.load(portable)
        _add_masks(model)
        onnx.save(model, portable)
        quant_pre_process(portable, portable, skip_symbolic_shape=True)
        if variant in formats:
            reader = SimpleNamespace(get_next=partial(next, iter(batches), None))  # all that this calibration calls
            quantize_static(portable, file, reader, weight_type=QuantType.QInt8, **formats[variant])
        else:
            quantize_dynamic(portable, file, weight_type=QuantType.QInt8)
        os.replace(file, path)


def _add_masks(model: onnx.ModelProto) -> None:
    """Replaces Where(mask, scores, lowest), the only Where of our files, by scores + Where(mask, 0, lowest)."""
    nodes = list(model.graph.node)
    for place in reversed([number for number, node in enumerate(nodes) if node.op_type == "Where"]):
        (mask, scores, lowest), (output,) = nodes[place].input, nodes[place].output
        zero, added = f"{output}_zero", f"{output}_added"
        model.graph.initializer.append(numpy_helper.from_array(np.array(0, np.float32), zero))
        nodes[place : place + 1] = [
            helper.make_node("Where", [mask, zero, lowest], [added], name=f"{added}_node"),
            helper.make_node("Add", [scores, added], [output], name=f"{output}_node"),
        ]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def quantize_symmetric(values: np.ndarray, *, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """int8 of the same shape, and float32 scales of what is left when `axis` is reduced; all zeros have scale 1."""
    scales = np.abs(values).max(axis) / LARGEST_INT8
    scales = np.where(scales > 0, scales, 1.0).astype(np.float32)
    integers = np.rint(values / np.expand_dims(scales, axis))
    return np.clip(integers, -LARGEST_INT8, LARGEST_INT8).astype(np.int8), scales


def scale_and_zero_point(found: ActivationRange) -> tuple[np.ndarray, np.ndarray]:
    """float32 and uint8 scalars: value = scale * (integer - zero point). A tensor that is always 0 has scale 1."""
    scale = np.float32((found.high - found.low) / STEPS_UINT8) or np.float32(1)
    return np.array(scale), np.array(np.clip(np.rint(-found.low / scale), 0, STEPS_UINT8), np.uint8)


class _Int8Nodes:
    """Makes the integer nodes of one variant, and collects their constants."""

    def __init__(self, variant: str, ranges: Mapping[str, ActivationRange]) -> None:
        self.variant, self.ranges = variant, ranges
        self.constants: dict[str, onnx.TensorProto] = {}
        self.nodes: list[onnx.NodeProto] = []  # of the current layer
        self.integers: dict[str, list[str]] = {}  # names of quantized tensors that exist already, by input

    def nodes_of(self, layer: Int8Layer) -> list[onnx.NodeProto]:
        self.nodes = []
        if layer.bias is None:
            self._table(layer)
        else:
            self._linear(layer, layer.bias)
        return self.nodes

    def _table(self, table: Int8Layer) -> None:
        # A scale for each row: one for the table would cost ten times the error.
        integers, scales = quantize_symmetric(table.weight, axis=1)
        own = table.name
        self._node("Gather", [self._constant(f"{own}_quantized", integers), table.input], f"{own}_integers")
        self._node("Gather", [self._constant(f"{own}_scale", scales[:, None]), table.input], f"{own}_row_scale")
        self._node("Cast", [f"{own}_integers"], f"{own}_floats", to=TensorProto.FLOAT)
        self._node("Mul", [f"{own}_floats", f"{own}_row_scale"], table.output)

    def _linear(self, layer: Int8Layer, bias: np.ndarray) -> None:
        own, factors = layer.name, self.ranges[layer.input].factors
        floats = layer.weight if factors is None else layer.weight * factors[:, None]
        integers, scales = quantize_symmetric(floats, axis=0)
        parts = {"quantized": integers, "scale": scales, "zero_point": np.zeros_like(scales, dtype=np.int8)}
        weight = [self._constant(f"{own}_{part}", value) for part, value in parts.items()]
        if layer.input not in self.integers:
            self.integers[layer.input] = self._integers_of(layer.input)
        read, added = self.integers[layer.input], self._constant(f"{own}_bias", bias)
        if self.variant == "int8-qdq":
            # A DequantizeLinear for each product, even of a shared input: otherwise the runtime does not fuse it.
            self._node("DequantizeLinear", read, f"{own}_input")
            self._node("DequantizeLinear", weight, f"{own}_weight", axis=1)
            self._node("MatMul", [f"{own}_input", f"{own}_weight"], f"{own}_product")
            self._node("Add", [f"{own}_product", added], layer.output)
        else:
            pairs = [name for pair in zip(read, weight, strict=True) for name in pair]
            self._node("MatMulIntegerToFloat", [*pairs, added], layer.output, domain=ORT_DOMAIN)

    def _integers_of(self, name: str) -> list[str]:
        """Makes a tensor uint8; returns the names of the integers, their scale and their zero point."""
        values, observed = name, self.ranges[name]
        found = [f"{name}_uint8", f"{name}_scale", f"{name}_zero_point"]
        if observed.factors is not None:
            values = f"{name}_smooth"
            self._node("Mul", [name, self._constant(f"{name}_divisor", 1 / observed.factors)], values)
        if self.variant != "int8-dynamic":
            for constant, value in zip(found[1:], scale_and_zero_point(observed), strict=True):
                self._constant(constant, value)
            self._node("QuantizeLinear", [values, *found[1:]], found[0])
            return found
        if observed.factors is not None:
            # A channel that was small in calibration is divided by little: a single large value in it, even at a
            # padded position, would take all steps from the rest of the batch.
            limits = {f"{name}_low": observed.low, f"{name}_high": observed.high}
            bounds = [self._constant(limit, np.array(value, np.float32)) for limit, value in limits.items()]
            self._node("Clip", [values, *bounds], f"{name}_clipped")
            values = f"{name}_clipped"
        self._node("DynamicQuantizeLinear", [values], *found)
        return found

    def _node(self, operator: str, inputs: list[str], *outputs: str, **attributes: Any) -> None:
        self.nodes.append(helper.make_node(operator, inputs, outputs, name=f"{outputs[0]}_node", **attributes))

    def _constant(self, name: str, value: np.ndarray) -> str:
        self.constants[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name
