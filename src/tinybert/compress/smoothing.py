"""Smoothing of attention's output without an operator of its own."""

from collections.abc import Sequence
from dataclasses import replace

import onnx

from tinybert.compress.calibration import Activation
from tinybert.compress.graph import Product, Table


def folded(
    model: onnx.ModelProto, parts: Sequence[Product | Table], activations: dict[str, Activation]
) -> tuple[list[Product | Table], dict[str, Activation]]:
    """The parts and activations of a model that computes the same, its attention writing what was to be divided.

    A channel of attention's output is a weighted mean of that channel of the values: what divides the one may as well
    divide the other, and that is a column of weights, scaled by itself as INT8 too. This takes what exported graphs
    have: values that attention alone reads, and one product that reads its output. The latter needs no Clip in the
    dynamic form, for no padded position has a part in it.
    """
    products = [part for part in parts if isinstance(part, Product)]
    writers, readers = {part.output: part for part in products}, {part.input: part for part in products}
    changed: dict[str, Product] = {}
    found = dict(activations)
    for node in model.graph.node:
        if node.op_type != "Attention":
            continue
        values, reader = writers.get(node.input[2]), readers.get(node.output[0])
        if values is None or reader is None or (factors := activations[reader.input].factors) is None:
            continue
        bias = None if values.bias is None else values.bias / factors
        changed[values.name] = replace(values, weight=values.weight / factors, bias=bias)
        changed[reader.name] = replace(reader, weight=reader.weight * factors[:, None])
        found[reader.input] = replace(activations[reader.input], factors=None)
    return [changed.get(part.name, part) for part in parts], found
