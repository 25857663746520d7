"""Ranges of activations on training examples, and smoothing of outlier channels.

A few channels of BERT's hidden states are tens of times larger than the rest, and one scale per tensor leaves only a
few of its 256 steps for the rest. Smoothing divides each channel by a factor and multiplies its row of the weights by
the same factor: the product stays the same, the channels become similar (SmoothQuant, Xiao et al. 2023, eq. 4).
SmoothQuant folds the division into the layer norm before; the residual sum of a post-norm BERT reads that output too,
so here the division is an operator of its own (except at attention's output, see `fold_smoothing`).
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from tinybert.compress.serving import Feeds, feeds_of, session_of
from tinybert.data.encoding import Encoded
from tinybert.pipeline.errors import UserError

LEAST_GAIN = 4.0  # smoothing must reduce the expected squared rounding error by this factor to be worth its operator
SMALLEST_SHARE = 1e-3  # of the largest channel: smaller channels count as this large


@dataclass(frozen=True)
class ActivationRange:
    """What a tensor that Linear layers read may hold: low <= 0 <= high, after its channels are divided by the factors.

    factors: (width,) float32; None without smoothing.
    """

    low: float
    high: float
    factors: np.ndarray | None = None


def calibration_feeds(encoded: Encoded, *, examples: int, batch_size: int, seed: int) -> list[Feeds]:
    """Draws rows without repetition and batches rows of similar length, so that little is padding.

    Raises:
        UserError: there are fewer rows than `examples` (a smaller calibration would go unnoticed in the results), or
            all drawn rows are equal, which says nothing about the range of other rows.
    """
    key, count = "quantization.calibration.examples", len(encoded)
    if examples > count:
        raise UserError(f"{key}: more than the training rows (got {examples}); allowed: at most {count}; fix: lower it")
    drawn = random.Random(seed).sample(range(count), examples)
    if len({encoded.input_ids[row].tobytes() for row in drawn}) == 1:
        raise UserError(f"{key}: all {examples} rows drawn are the same; allowed: two different rows; fix: raise it")
    drawn.sort(key=lambda row: len(encoded.input_ids[row]))
    return [feeds_of(encoded.batch(drawn[start : start + batch_size])) for start in range(0, examples, batch_size)]


def calibrate(
    model: onnx.ModelProto, weights: Mapping[str, np.ndarray], batches: Sequence[Feeds], smoothing: float
) -> dict[str, ActivationRange]:
    """Observes the range of tensors, from least to greatest value, on the real tokens of the calibration batches.

    Args:
        model: the FP32 graph.
        weights: tensor name -> (width, outputs), the weights of all Linear layers that read it, side by side.
        batches: inputs of the graph.
        smoothing: SmoothQuant's alpha, 0 to 1: the share of a channel's magnitude that moves into the weights.
    """
    least, greatest = _channel_ranges(model, list(weights), batches)
    found = {}
    for name, weight in weights.items():
        factors = smoothing_factors(least[name], greatest[name], weight, smoothing)
        divisor = 1.0 if factors is None else factors
        found[name] = ActivationRange(*_range_with_zero(least[name] / divisor, greatest[name] / divisor), factors)
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
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Name -> least and greatest value of each channel at real tokens, (width,) each."""
    observed = onnx.ModelProto()
    observed.CopyFrom(model)
    observed.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = session_of(observed.SerializeToString())
    least: dict[str, np.ndarray] = {}
    greatest: dict[str, np.ndarray] = {}
    for feeds in batches:
        is_real = feeds["attention_mask"].astype(bool)
        for name, values in zip(names, session.run(names, feeds), strict=True):
            # The last layer computes the [CLS] row only: its tensors have no row per token to leave out.
            has_tokens = values.shape[:2] == is_real.shape and values.ndim == 3
            channels = (values[is_real] if has_tokens else values).reshape(-1, values.shape[-1])
            least[name] = np.minimum(least.get(name, np.inf), channels.min(0))
            greatest[name] = np.maximum(greatest.get(name, -np.inf), channels.max(0))
    return least, greatest


def _expected_error(least: np.ndarray, greatest: np.ndarray, weight: np.ndarray) -> float:
    """Squared rounding error of the activations after the product, up to a constant: step width² · Σ weight²."""
    low, high = _range_with_zero(least, greatest)
    return (high - low) ** 2 * float((weight.astype(np.float64) ** 2).sum())


def _range_with_zero(least: np.ndarray, greatest: np.ndarray) -> tuple[float, float]:
    """The range over all channels, extended to 0: padding and biases need an exact zero."""
    return min(float(least.min()), 0.0), max(float(greatest.max()), 0.0)
