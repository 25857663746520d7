"""Numbers as integers: int8 weights, symmetric, and uint8 activations with a zero point.

These are the types whose products ONNX Runtime computes in its fastest kernels on x64; of int8 activations it leaves
many products in floating point.
"""

import numpy as np

from tinybert.compress.calibration import Activation

LARGEST_INT8 = 127
STEPS_UINT8 = 255


def quantized_weight(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(in, out) -> int8 (in, out) and a float32 scale for each output channel, (out,)."""
    return _symmetric(weight, axis=0)


def quantized_rows(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(rows, width) -> int8 (rows, width) and a float32 scale for each row, (rows, 1)."""
    integers, scales = _symmetric(table, axis=1)
    return integers, scales[:, None]


def scale_and_zero_point(activation: Activation) -> tuple[np.ndarray, np.ndarray]:
    """float32 and uint8 scalars: value = scale · (integer − zero point). A tensor that is always 0 has scale 1."""
    scale = np.float32((activation.high - activation.low) / STEPS_UINT8)
    if not scale > 0:
        return np.array(1, np.float32), np.array(0, np.uint8)
    return np.array(scale), np.array(np.clip(np.rint(-activation.low / scale), 0, STEPS_UINT8), np.uint8)


def _symmetric(values: np.ndarray, *, axis: int) -> tuple[np.ndarray, np.ndarray]:
    scales = np.abs(values).max(axis) / LARGEST_INT8
    scales = np.where(scales > 0, scales, 1.0).astype(np.float32)
    integers = np.rint(values / np.expand_dims(scales, axis))
    return np.clip(integers, -LARGEST_INT8, LARGEST_INT8).astype(np.int8), scales
