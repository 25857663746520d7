"""INT8 models from an FP32 ONNX file: dynamic, and static in two formats (ONNX Runtime).

Quantized are the Linear layers and the embedding tables. Products of two activations (attention) stay
in float: quantizing them as well is what brought published scores down to chance.
"""

import contextlib
import io
import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
from onnxruntime import quantization
from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType
from onnxruntime.quantization.shape_inference import quant_pre_process

from tinybert.compress.export import feeds_of
from tinybert.errors import UserError
from tinybert.files import atomic_file
from tinybert.glue.encoding import Encoded

Feeds = dict[str, np.ndarray]  # input name -> (batch, length) int64

# form -> format of the graph, type of the activations; weights are int8 in all
STATIC_FORMS = {
    "qdq": (QuantFormat.QDQ, QuantType.QInt8),
    "qoperator": (QuantFormat.QOperator, QuantType.QUInt8),
}
METHODS = {
    "minmax": CalibrationMethod.MinMax,
    "entropy": CalibrationMethod.Entropy,
    "percentile": CalibrationMethod.Percentile,
}
OPERATORS = ["MatMul", "Gemm", "Gather"]
SEVERITY_ERROR = 3
