"""Which parts of a model cost more score as INT8 than they save, found on calibration examples."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tinybert.compress.calibration import Activation
from tinybert.compress.graph import Product, Table, replace_parts
from tinybert.compress.integers import quantized_rows, quantized_weight, scale_and_zero_point
from tinybert.compress.serving import Feeds, session_of

SWITCHES = "quantized"


def left_in_float(costs: Mapping[str, float], sizes: Mapping[str, int], tolerance: float) -> list[str]:
    """The parts to leave out, dearest for their size first, until the costs of the others sum up to the tolerance.

    costs and sizes: of each part. Errors of rounding are independent, so their mean squares add up.
    """
    order = sorted(costs, key=lambda name: (-costs[name] / sizes[name], name))
    for count in range(len(order)):
        if sum(costs[name] for name in order[count:]) <= tolerance:
            return order[:count]
    return order


def costs_of_parts(
    model: onnx.ModelProto,
    parts: Sequence[Product | Table],
    activations: Mapping[str, Activation],
    calibration: Sequence[Feeds],
) -> dict[str, float]:
    """Name of a part -> how far it moves the logits when it alone is INT8, all else float.

    That is the mean squared move as a share of the logits' mean square; logits of several classes less their
    mean, which decides nothing; the one of a regression less its mean over the examples. One session in which each
    part can be switched: a session for each part would spend most of its time on being made.
    """
    session = session_of(switchable(model, parts, activations))

    def logits(switches: np.ndarray) -> np.ndarray:
        found = [session.run(["logits"], {**feeds, SWITCHES: switches})[0] for feeds in calibration]
        return np.concatenate(found).astype(np.float64)

    switches = np.eye(len(parts), dtype=bool)
    plain = logits(np.zeros(len(parts), dtype=bool))
    return {part.name: relative_move(plain, logits(row)) for part, row in zip(parts, switches, strict=True)}


def relative_move(plain: np.ndarray, moved: np.ndarray) -> float:
    """Mean squared difference of logits (rows, classes) over their mean square, both centred as `costs_of_parts` says.

    0 where nothing moves, whatever the logits are.
    """
    difference = moved - plain
    if plain.shape[1] > 1:
        plain, difference = (each - each.mean(1, keepdims=True) for each in (plain, difference))
    else:
        plain = plain - plain.mean()
    moved_square, square = float((difference**2).mean()), float((plain**2).mean())
    return moved_square / max(square, float(np.finfo(np.float32).tiny)) if moved_square else 0.0


def switchable(
    model: onnx.ModelProto, parts: Sequence[Product | Table], activations: Mapping[str, Activation]
) -> onnx.ModelProto:
    """The model with a further input, bool (parts,): which parts round as INT8 does."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    graph = found.graph
    graph.input.append(helper.make_tensor_value_info(SWITCHES, TensorProto.BOOL, [len(parts)]))
    numbers = {part.name: number for number, part in enumerate(parts)}
    replace_parts(found, parts, lambda part: _switched(graph, numbers[part.name], part, activations))
    return found


def _switched(graph, number: int, part: Product | Table, activations: Mapping[str, Activation]) -> list[onnx.NodeProto]:
    """A part's nodes, rounding where its switch is on."""
    own = f"part_{number}"

    def constant(name: str, value: np.ndarray) -> str:
        graph.initializer.append(numpy_helper.from_array(value, f"{own}_{name}"))
        return f"{own}_{name}"

    switch = helper.make_node("Gather", [SWITCHES, constant("number", np.array(number, np.int64))], [f"{own}_switch"])
    if isinstance(part, Table):
        integers, scales = quantized_rows(part.weight)
        tables = {"rounded": integers * scales, "plain": part.weight}
        rows = [
            helper.make_node("Gather", [constant(kind, table), part.input], [f"{own}_{kind}_rows"])
            for kind, table in tables.items()
        ]
        choice = [f"{own}_switch", f"{own}_rounded_rows", f"{own}_plain_rows"]
        return [switch, *rows, helper.make_node("Where", choice, [part.output])]
    return [switch, *_switched_product(own, constant, part, activations[part.input])]


def _switched_product(own: str, constant, part: Product, activation: Activation) -> list[onnx.NodeProto]:
    factors = np.ones(len(part.weight), np.float32) if activation.factors is None else activation.factors
    weight = part.weight * factors[:, None]
    integers, scales = quantized_weight(weight)
    scale, zero_point = scale_and_zero_point(activation)
    weights = [constant("rounded", (integers * scales).astype(np.float32)), constant("plain", weight)]
    step = [constant("scale", scale), constant("zero_point", zero_point)]
    nodes = [
        helper.make_node("Mul", [part.input, constant("divisor", 1 / factors)], [f"{own}_smooth"]),
        helper.make_node("QuantizeLinear", [f"{own}_smooth", *step], [f"{own}_integers"]),
        helper.make_node("DequantizeLinear", [f"{own}_integers", *step], [f"{own}_floats"]),
        helper.make_node("Where", [f"{own}_switch", f"{own}_floats", f"{own}_smooth"], [f"{own}_input"]),
        helper.make_node("Where", [f"{own}_switch", *weights], [f"{own}_weight"]),
    ]
    bias = np.zeros(weight.shape[1], np.float32) if part.bias is None else part.bias
    return [
        *nodes,
        helper.make_node("MatMul", [f"{own}_input", f"{own}_weight"], [f"{own}_product"]),
        helper.make_node("Add", [f"{own}_product", constant("bias", bias)], [part.output]),
    ]
