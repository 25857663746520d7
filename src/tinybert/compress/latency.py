"""ONNX models at work: sessions, logits, latency."""

import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from tinybert.errors import UserError

SEVERITY_ERROR = 3
PROVIDERS = ["CPUExecutionProvider"]


def open_session(path: str | Path, threads: int) -> onnxruntime.InferenceSession:
    """A CPU session of `threads` threads; results do not change from run to run. UserError without the file."""
    if not Path(path).is_file():
        raise UserError(f"{path}: absent; an ONNX file is expected, export the model first")
    return onnxruntime.InferenceSession(str(path), _options(threads), providers=PROVIDERS)


def session_of(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """A CPU session of a model in memory, on as many threads as there are cores."""
    return onnxruntime.InferenceSession(model.SerializeToString(), _options(0), providers=PROVIDERS)


def _options(threads: int) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.use_deterministic_compute = True
    options.log_severity_level = SEVERITY_ERROR
    # On x64 without VNNI the fast uint8·int8 product saturates at 16 bits, which can ruin a score; this
    # asks for the exact one there and changes nothing elsewhere.
    options.add_session_config_entry("session.x64quantprecision", "1")
    return options


def predict(session: onnxruntime.InferenceSession, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """Logits (batch, classes) float32 of one batch; feeds: input name -> (batch, length) int64."""
    return session.run(["logits"], feeds)[0]


def measure_latency_ms(
    session: onnxruntime.InferenceSession,
    *,
    batch_size: int,
    length_tokens: int,
    vocab_size: int,
    warmup_runs: int,
    runs: int,
) -> dict[str, float]:
    """Milliseconds a batch of full-length rows of random tokens takes: median, p10 and p90 of `runs` runs."""
    shape = (batch_size, length_tokens)
    feeds = {
        "input_ids": np.random.default_rng(0).integers(0, vocab_size, shape, dtype=np.int64),
        "attention_mask": np.ones(shape, dtype=np.int64),
        "token_type_ids": np.zeros(shape, dtype=np.int64),
    }
    times_ms = []
    for _ in range(warmup_runs + runs):
        started = time.perf_counter()
        predict(session, feeds)
        times_ms.append(1000.0 * (time.perf_counter() - started))
    median, p10, p90 = np.percentile(times_ms[warmup_runs:], [50, 10, 90])
    return {"median": float(median), "p10": float(p10), "p90": float(p90)}
