"""ONNX models at work: sessions, logits, latency."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch

from tinybert.errors import UserError

SEVERITY_ERROR = 3
VNNI = ("avx512_vnni", "avx_vnni")
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
    # Idle threads of one session would else spin for a while on the cores that the next one runs on.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if not has_int8_dot_products():
        # There the fast uint8·int8 product of x64 saturates at 16 bits, which can ruin a score; this asks for an
        # exact one. Where it is not needed it must not be set: it then takes half as much time again.
        options.add_session_config_entry("session.x64quantprecision", "1")
    return options


def has_int8_dot_products() -> bool:
    """Whether the CPU multiplies uint8 by int8 into 32 bits (VNNI)."""
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in VNNI)


def predict(session: onnxruntime.InferenceSession, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """Logits (batch, classes) float32 of one batch; feeds: input name -> (batch, length) int64."""
    return session.run(["logits"], feeds)[0]


def random_feeds(batch_size: int, length_tokens: int, vocab_size: int) -> dict[str, np.ndarray]:
    """A batch of full-length rows of random tokens, the same in each run."""
    shape = (batch_size, length_tokens)
    return {
        "input_ids": np.random.default_rng(0).integers(0, vocab_size, shape, dtype=np.int64),
        "attention_mask": np.ones(shape, dtype=np.int64),
        "token_type_ids": np.zeros(shape, dtype=np.int64),
    }


def measure_latency_ms(
    session: onnxruntime.InferenceSession, batches: Sequence[dict[str, np.ndarray]], *, warmup_runs: int
) -> dict[str, float]:
    """Milliseconds a batch takes: median, p10 and p90 over `batches`, after the first of them `warmup_runs` times."""
    times_ms = []
    for feeds in [batches[0]] * warmup_runs + list(batches):
        started = time.perf_counter()
        predict(session, feeds)
        times_ms.append(1000.0 * (time.perf_counter() - started))
    median, p10, p90 = np.percentile(times_ms[warmup_runs:], [50, 10, 90])
    return {"median": float(median), "p10": float(p10), "p90": float(p90)}
