"""What activations look like on training examples: their ranges, and the channels that spoil them.

A few channels of a BERT's states are tens of times larger than the rest, and one scale a tensor leaves the rest few of
its 256 steps. Smoothing divides each channel by a factor and multiplies its row of the weights by it, which
changes no product and evens the channels out (SmoothQuant, Xiao et al. 2023, eq. 4; there the factor is folded into
the layer norm, which the residual sum of a post-norm BERT does not allow, so that it is a product of its own here;
attention's output needs none, see smoothing.py).
"""

import contextlib
import io
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnxruntime.quantization.calibrate import HistogramCollector

from tinybert.compress.export import feeds_of
from tinybert.compress.graph import Product
from tinybert.compress.serving import Feeds, session_of
from tinybert.data.encoding import Encoded
from tinybert.pipeline.errors import UserError

LEAST_GAIN = 4.0  # a tensor is smoothed where that divides its own expected squared rounding error by this
BINS = 2048
SMALLEST_SHARE = 1e-3  # of the largest channel: below it a channel counts as this large


@dataclass(frozen=True)
class Activation:
    """A tensor that products read. factors: (width,) what its channels are divided by, None for no smoothing.

    low <= 0 <= high: the range to be represented, of the divided tensor.
    """

    low: float
    high: float
    factors: np.ndarray | None = None


def calibration_feeds(encoded: Encoded, *, examples: int, batch_size: int, seed: int) -> list[Feeds]:
    """`examples` rows drawn without repetition, as batches of rows near in length, so that little is padding.

    UserError when there are fewer rows than that: a smaller calibration would go unnoticed in the results. The same
    when all rows drawn are alike, which says nothing about the range of other rows.
    """
    if examples > len(encoded):
        raise UserError(
            f"quantization.calibration.examples: {examples} asked for, the training set has {len(encoded)}; "
            f"ask for {len(encoded)} at most"
        )
    drawn = random.Random(seed).sample(range(len(encoded)), examples)
    if len({encoded.input_ids[row].tobytes() for row in drawn}) == 1:
        raise UserError(
            f"quantization.calibration.examples: the {examples} rows drawn are all the same; at least two different "
            "ones are needed; ask for more, or give other training rows"
        )
    drawn.sort(key=lambda row: len(encoded.input_ids[row]))
    return [feeds_of(encoded.batch(drawn[start : start + batch_size])) for start in range(0, examples, batch_size)]


def calibrate(
    model: onnx.ModelProto,
    products: Sequence[Product],
    calibration: Sequence[Feeds],
    *,
    method: str,
    percentile: float,
    smoothing: float,
) -> dict[str, Activation]:
    """Input name of the products -> its activation, seen on the real tokens of the calibration batches.

    method: "minmax" takes their whole range, "percentile" the range of that percentage of the values (`percentile`,
    read by this method only), "entropy" the one of least Kullback-Leibler divergence. smoothing: SmoothQuant's α,
    0..1, the share of a channel's magnitude that moves into the weights; 0 for none.
    """
    weights: dict[str, list[np.ndarray]] = {}
    for product in products:
        weights.setdefault(product.input, []).append(product.weight)
    least, greatest = _channel_ranges(model, list(weights), calibration)
    found = {}
    for name in weights:
        factors = _factors(least[name], greatest[name], np.concatenate(weights[name], axis=1), smoothing)
        divisor = 1.0 if factors is None else factors
        found[name] = Activation(*_around_zero(least[name] / divisor, greatest[name] / divisor), factors)
    return found if method == "minmax" else _clipped(model, found, calibration, method, percentile)


def _activations(model: onnx.ModelProto, names: list[str], calibration: Sequence[Feeds]):
    """Yields for each batch: name -> (tokens, width), padding left out."""
    seen = onnx.ModelProto()
    seen.CopyFrom(model)
    seen.graph.output.extend(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names)
    session = session_of(seen)
    for feeds in calibration:
        is_real = feeds["attention_mask"].astype(bool)
        for name, values in zip(names, session.run(names, feeds), strict=True):
            real = values[is_real] if values.shape[:2] == is_real.shape and values.ndim == 3 else values
            yield name, real.reshape(-1, values.shape[-1])


def _channel_ranges(
    model: onnx.ModelProto, names: list[str], calibration: Sequence[Feeds]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Name -> least and greatest value of each channel, (width,) each."""
    least: dict[str, np.ndarray] = {}
    greatest: dict[str, np.ndarray] = {}
    for name, values in _activations(model, names, calibration):
        low, high = values.min(0), values.max(0)
        least[name] = np.minimum(least.get(name, low), low)
        greatest[name] = np.maximum(greatest.get(name, high), high)
    return least, greatest


def _factors(least: np.ndarray, greatest: np.ndarray, weight: np.ndarray, smoothing: float) -> np.ndarray | None:
    """SmoothQuant's factors with geometric mean 1, (width,) float32; None where they are not worth a product."""
    magnitudes = np.maximum(np.abs(least), np.abs(greatest))
    if not smoothing or not magnitudes.any():
        return None
    rows = np.abs(weight).max(1)
    magnitudes, rows = (np.maximum(each, max(each.max() * SMALLEST_SHARE, 1e-30)) for each in (magnitudes, rows))
    logarithms = smoothing * np.log(magnitudes) - (1.0 - smoothing) * np.log(rows)
    factors = np.exp(logarithms - logarithms.mean()).astype(np.float32)
    plain = _expected_error(least, greatest, weight)
    smoothed = _expected_error(least / factors, greatest / factors, weight * factors[:, None])
    return factors if plain >= LEAST_GAIN * smoothed else None


def _expected_error(least: np.ndarray, greatest: np.ndarray, weight: np.ndarray) -> float:
    """Squared rounding error of the activations as the product sees it, up to a constant."""
    low, high = _around_zero(least, greatest)
    return (high - low) ** 2 * float((weight.astype(np.float64) ** 2).sum())


def _around_zero(least: np.ndarray, greatest: np.ndarray) -> tuple[float, float]:
    return min(float(least.min()), 0.0), max(float(greatest.max()), 0.0)


def _clipped(
    model: onnx.ModelProto,
    activations: dict[str, Activation],
    calibration: Sequence[Feeds],
    method: str,
    percentile: float,
) -> dict[str, Activation]:
    """The activations with their ranges cut as the method says."""
    collector = HistogramCollector(
        method=method,
        symmetric=False,
        num_bins=BINS,
        num_quantized_bins=BINS // 16,
        percentile=percentile,
        scenario="same",
    )
    with contextlib.redirect_stdout(io.StringIO()):  # the library prints its progress
        for name, values in _activations(model, list(activations), calibration):
            factors = activations[name].factors
            collector.collect({name: [values if factors is None else values / factors]})
        ranges = collector.compute_collection_result()
    found = {}
    for name, whole in activations.items():
        low, high = (float(np.asarray(edge).ravel()[0]) for edge in ranges[name][:2])
        # Never wider than what was seen: the library's histogram of a constant tensor has a width of its own.
        low, high = max(min(low, 0.0), whole.low), min(max(high, 0.0), whole.high)
        found[name] = Activation(low, high, whole.factors)
    return found
