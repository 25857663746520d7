"""INT8 models from an FP32 ONNX file: dynamic, and static in two formats (ONNX Runtime).

Quantized are the Linear layers, weights per output channel, and the embedding tables. Two things stay in
float: the products of two activations (attention), and the classifier, whose few weights save nothing and
whose output would be cut to the range seen in calibration.
"""

import contextlib
import io
import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnxruntime import quantization
from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType
from onnxruntime.quantization.shape_inference import quant_pre_process

from tinybert.compress.export import feeds_of
from tinybert.compress.latency import SEVERITY_ERROR
from tinybert.errors import UserError
from tinybert.files import atomic_file
from tinybert.glue.encoding import Encoded

onnxruntime.set_default_logger_severity(SEVERITY_ERROR)  # for the sessions that calibration opens itself

Feeds = dict[str, np.ndarray]  # input name -> (batch, length) int64

# form -> format of the graph, type of the activations
STATIC_FORMS = {
    "qdq": (QuantFormat.QDQ, QuantType.QInt8),
    "qoperator": (QuantFormat.QOperator, QuantType.QUInt8),
}
METHODS = {
    "minmax": CalibrationMethod.MinMax,
    "entropy": CalibrationMethod.Entropy,
    "percentile": CalibrationMethod.Percentile,
}
WEIGHTS = {"op_types_to_quantize": ["MatMul", "Gemm", "Gather"], "weight_type": QuantType.QInt8, "per_channel": True}


def calibration_feeds(encoded: Encoded, *, examples: int, batch_size: int, seed: int) -> list[Feeds]:
    """`examples` rows drawn without repetition, as batches of rows near in length, so that little is padding.

    UserError when there are fewer rows than that: a smaller calibration would go unnoticed in the results.
    """
    if examples > len(encoded):
        raise UserError(
            f"quantization.calibration.examples: {examples} asked for, the training set has {len(encoded)}; "
            f"ask for {len(encoded)} at most"
        )
    drawn = random.Random(seed).sample(range(len(encoded)), examples)
    drawn.sort(key=lambda row: len(encoded.input_ids[row]))
    return [feeds_of(encoded.batch(drawn[start : start + batch_size])) for start in range(0, examples, batch_size)]


def quantize_dynamic(fp32: str | Path, path: str | Path) -> None:
    """Writes the INT8 form whose activations are scaled anew for each batch (uint8), from the file `fp32`.

    The scale spans a whole batch, so a row's logits depend a little on the rows beside it.
    """
    with _prepared(fp32, path) as (prepared, draft, in_float):
        quantization.quantize_dynamic(prepared, draft, nodes_to_exclude=in_float, **WEIGHTS)


def quantize_static(
    fp32: str | Path,
    path: str | Path,
    *,
    form: str,
    calibration: Sequence[Feeds],
    method: str,
    percentile: float,
) -> None:
    """Writes the INT8 form whose activations have fixed scales, from the file `fp32`.

    form: "qdq" (int8 activations between QuantizeLinear and DequantizeLinear) or "qoperator" (uint8
    activations, integer operators). calibration: batches whose activations set the scales. method:
    "minmax" takes their whole range, "percentile" the range of that percentage of the values
    (`percentile`, read by this method only), "entropy" the one of least Kullback-Leibler divergence. An
    activation that is constant there gets the range from 0 to that constant.
    UserError without calibration batches.
    """
    if not calibration:
        raise UserError(f"{fp32}: no calibration batches; static quantization needs at least one training example")
    graph_format, activation_type = STATIC_FORMS[form]
    options = {
        "CalibStridedMinMax": 1,  # one batch at a time: batches differ in length, and less memory
        "CalibTensorRangeSymmetric": False,  # the library's default for percentile alone is True
        "CalibPercentile": percentile,
    }
    # The library prints its progress.
    with _prepared(fp32, path) as (prepared, draft, in_float), contextlib.redirect_stdout(io.StringIO()):
        quantization.quantize_static(
            prepared,
            draft,
            CalibrationReader(calibration),
            quant_format=graph_format,
            activation_type=activation_type,
            calibrate_method=METHODS[method],
            nodes_to_exclude=in_float,
            extra_options=options,
            **WEIGHTS,
        )


class CalibrationReader(quantization.CalibrationDataReader):
    """Hands the batches to ONNX Runtime, which asks for them range by range."""

    def __init__(self, batches: Sequence[Feeds]) -> None:
        self.batches = batches
        self.rest = iter(batches)

    def __len__(self) -> int:
        return len(self.batches)

    def set_range(self, start_index: int, end_index: int) -> None:
        """Goes on with the batches from start_index up to, not including, end_index."""
        self.rest = iter(self.batches[start_index:end_index])

    def get_next(self) -> Feeds | None:
        """The next batch of the range; None at its end."""
        return next(self.rest, None)


@contextlib.contextmanager
def _prepared(fp32: str | Path, path: str | Path) -> Iterator[tuple[Path, Path, list[str]]]:
    """Yields the FP32 file made ready, where to write the INT8 one, and the nodes to leave out; then fills `path`.

    Made ready: constants folded and shapes inferred, as ONNX Runtime's quantizer wants it.
    """
    if not Path(fp32).is_file():
        raise UserError(f"{fp32}: absent; an FP32 ONNX file is expected, export the model first")
    with tempfile.TemporaryDirectory() as folder:
        prepared, draft = Path(folder) / "fp32.onnx", Path(folder) / "int8.onnx"
        quant_pre_process(fp32, prepared, skip_symbolic_shape=True)
        yield prepared, draft, _float_nodes(prepared)
        with atomic_file(path, "wb") as handle:
            handle.write(draft.read_bytes())


def _float_nodes(path: Path) -> list[str]:
    """Names of the nodes that stay in float: products of two activations, and what makes the logits.

    By name, because ONNX Runtime's option for such products (MatMulConstBOnly) is not heeded for QDQ.
    """
    graph = onnx.load(path).graph
    weights = {tensor.name for tensor in graph.initializer}
    products = [node.name for node in graph.node if node.op_type == "MatMul" and not weights & set(node.input)]
    classifier = [node.name for node in graph.node if "logits" in node.output]
    # Dynamic quantization splits a Gemm in two and gives the product this name before it looks at the list.
    return products + classifier + [f"{name}_MatMul" for name in classifier]
