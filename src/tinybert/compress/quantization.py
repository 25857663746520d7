"""INT8 models from an FP32 ONNX file: dynamic, and static in two formats.

Quantized are the Linear layers, weights int8 per output channel, inputs uint8, and the embedding tables, int8 per row.
In float stay the products of two activations (attention), the classifier, and what a search on calibration data finds
too dear (sensitivity.py). The results of products stay in float too: bias, residual sum and layer norm need them
so, and cutting them to 256 steps costs more score than all else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tinybert.compress.calibration import Activation, calibrate
from tinybert.compress.graph import Product, Table, quantizable, read_graph, replace_parts
from tinybert.compress.integers import quantized_rows, quantized_weight, scale_and_zero_point
from tinybert.compress.sensitivity import costs_of_parts, left_in_float
from tinybert.compress.serving import Feeds
from tinybert.compress.smoothing import folded
from tinybert.compress.variants import INT8_FORMS
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import atomic_file

ORT_DOMAIN = "com.microsoft"


@dataclass(frozen=True)
class Plan:
    """What all INT8 forms of a model share.

    activations: of the products' inputs. costs: of each part by itself, the mean squared move of the logits as a share
    of their mean square. in_float: the parts that the search leaves out.
    """

    activations: dict[str, Activation]
    costs: dict[str, float]
    in_float: tuple[str, ...]


def plan_int8(
    fp32: str | Path,
    calibration: Sequence[Feeds],
    *,
    method: str,
    percentile: float,
    smoothing: float,
    tolerance: float,
    search_examples: int,
) -> Plan:
    """Calibrates the FP32 file and searches for what must stay in float.

    method, percentile, smoothing: see `calibrate`. tolerance: mean squared move of the logits, as a share of
    their mean square, that INT8 may cost. search_examples: how many of the calibration's rows the search reads, in
    whole batches, half of them at most; these set no range, for a range errs least on the rows that set it.
    UserError without calibration batches, or without anything to quantize.
    """
    if not calibration:
        raise UserError(f"{fp32}: no calibration batches; quantization needs at least one training example")
    ranging, searched = _split(calibration, search_examples)
    model = read_graph(fp32)
    parts = quantizable(model)
    products = [part for part in parts if isinstance(part, Product)]
    activations = calibrate(model, products, ranging, method=method, percentile=percentile, smoothing=smoothing)
    costs = costs_of_parts(model, parts, activations, searched)
    sizes = {part.name: part.weight.size for part in parts}
    return Plan(activations, costs, tuple(left_in_float(costs, sizes, tolerance)))


def _split(calibration: Sequence[Feeds], search_examples: int) -> tuple[list[Feeds], list[Feeds]]:
    """The batches that set ranges, and those of the search, evenly spread over the lengths; a lone batch is both."""
    total = len(calibration)
    if total == 1:
        return list(calibration), list(calibration)
    rows = sum(len(feeds["input_ids"]) for feeds in calibration)
    count = min(max(1, round(search_examples * total / rows)), total // 2)
    chosen = {number * total // count for number in range(count)}  # never the longest, which set ranges
    parts = [
        [feeds for number, feeds in enumerate(calibration) if (number in chosen) is kept] for kept in (False, True)
    ]
    return parts[0], parts[1]


def write_int8(fp32: str | Path, path: str | Path, *, form: str, plan: Plan) -> None:
    """Writes one INT8 form of the file `fp32`.

    form: "dynamic" (DynamicQuantizeLinear: the inputs of products are scaled anew for each batch or slice, so a row's
    logits depend a little on the rows beside it), "qdq" (standard operators: float products between QuantizeLinear and
    DequantizeLinear, which the runtime fuses, all but the pooler's), "qoperator" (integer products of the runtime's
    own, as it runs them).
    """
    if form not in INT8_FORMS:
        raise ValueError(f"{form!r}: one of {', '.join(INT8_FORMS)} is expected")
    model = read_graph(fp32)
    parts = [part for part in quantizable(model) if part.name not in plan.in_float]
    parts, activations = folded(model, parts, plan.activations)
    _Rewriting(model, form, activations).replace(parts)
    with atomic_file(path, "wb") as handle:
        handle.write(model.SerializeToString(deterministic=True))


class _Rewriting:
    """Puts integer nodes in the place of float ones in a model."""

    def __init__(self, model: onnx.ModelProto, form: str, activations: dict[str, Activation]) -> None:
        self.model = model
        self.form = form
        self.activations = activations
        self.constants: dict[str, onnx.TensorProto] = {}
        self.nodes: list[onnx.NodeProto] = []  # of the part at hand
        self.prepared: set[str] = set()  # inputs that are integers already

    def replace(self, parts: Sequence[Product | Table]) -> None:
        """Rewrites the model's graph."""
        replace_parts(self.model, parts, self._nodes_of)
        del self.model.graph.value_info[:]
        self.model.graph.initializer.extend(self.constants.values())
        if ORT_DOMAIN not in {entry.domain for entry in self.model.opset_import}:
            self.model.opset_import.append(helper.make_opsetid(ORT_DOMAIN, 1))

    def _nodes_of(self, part: Product | Table) -> list[onnx.NodeProto]:
        self.nodes = []
        self._table(part) if isinstance(part, Table) else self._product(part)
        return self.nodes

    def _table(self, part: Table) -> None:
        """Looks up integers and their row's scale: one scale a table would cost ten times the error."""
        integers, scales = quantized_rows(part.weight)
        own = part.name
        self._node("Gather", [self._constant(f"{own}_quantized", integers), part.input], f"{own}_integers")
        self._node("Gather", [self._constant(f"{own}_scale", scales), part.input], f"{own}_row_scale")
        self._node("Cast", [f"{own}_integers"], f"{own}_floats", to=TensorProto.FLOAT)
        self._node("Mul", [f"{own}_floats", f"{own}_row_scale"], part.output)

    def _product(self, part: Product) -> None:
        activation = self.activations[part.input]
        factors = activation.factors
        weight = part.weight if factors is None else part.weight * factors[:, None]
        integers, scales = quantized_weight(weight)
        constants = [
            self._constant(f"{part.name}_quantized", integers),
            self._constant(f"{part.name}_scale", scales),
            self._constant(f"{part.name}_zero_point", np.zeros_like(scales, dtype=np.int8)),
        ]
        read = self._integers(part.input, activation)
        if self.form == "qdq":
            self._float_product(part, read, constants)
        else:
            bias = [] if part.bias is None else [self._constant(f"{part.name}_bias", part.bias)]
            inputs = [read[0], constants[0], read[1], constants[1], read[2], constants[2], *bias]
            self._node("MatMulIntegerToFloat", inputs, part.output, domain=ORT_DOMAIN)

    def _float_product(self, part: Product, read: tuple[str, str, str], constants: list[str]) -> None:
        """A float product between DequantizeLinear nodes."""
        # One node for each product, or the runtime's fusion would not take it.
        self._node("DequantizeLinear", list(read), f"{part.name}_input")
        self._node("DequantizeLinear", constants, f"{part.name}_weight", axis=1)
        product = part.output if part.bias is None else f"{part.name}_product"
        self._node("MatMul", [f"{part.name}_input", f"{part.name}_weight"], product)
        if part.bias is not None:
            self._node("Add", [product, self._constant(f"{part.name}_bias", part.bias)], part.output)

    def _integers(self, name: str, activation: Activation) -> tuple[str, str, str]:
        """Names of a tensor as uint8, of its scale and its zero point; made once for all products that read it."""
        found = (f"{name}_uint8", f"{name}_scale", f"{name}_zero_point")
        if name in self.prepared:
            return found
        self.prepared.add(name)
        smooth = name
        if activation.factors is not None:
            smooth = f"{name}_smooth"
            self._node("Mul", [name, self._constant(f"{name}_divisor", 1 / activation.factors)], smooth)
        if self.form == "dynamic":
            smooth = self._clipped(name, smooth, activation)
            self.nodes.append(helper.make_node("DynamicQuantizeLinear", [smooth], found, name=f"{found[0]}_node"))
            return found
        scale, zero_point = scale_and_zero_point(activation)
        self._constant(found[1], scale), self._constant(found[2], zero_point)
        self._node("QuantizeLinear", [smooth, *found[1:]], found[0])
        return found

    def _clipped(self, name: str, smooth: str, activation: Activation) -> str:
        """Smoothed values within the range of calibration.

        A channel that was small there is divided by little; one large value in it, even of a padded position, would
        take all steps from the rest of the batch.
        """
        if activation.factors is None:
            return smooth
        edges = {"low": activation.low, "high": activation.high}
        names = [self._constant(f"{name}_{edge}", np.array(value, np.float32)) for edge, value in edges.items()]
        self._node("Clip", [smooth, *names], f"{name}_clipped")
        return f"{name}_clipped"

    def _node(self, operator: str, inputs: list[str], output: str, **attributes) -> None:
        self.nodes.append(helper.make_node(operator, inputs, [output], name=f"{output}_node", **attributes))

    def _constant(self, name: str, value: np.ndarray) -> str:
        self.constants[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name
