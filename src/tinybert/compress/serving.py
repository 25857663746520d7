"""ONNX models at work."""

from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch

from tinybert.pipeline.errors import UserError

Feeds = dict[str, np.ndarray]  # input name -> (batch, length) int64

SEVERITY_ERROR = 3
VNNI = ("avx512_vnni", "avx_vnni")
PROVIDERS = ["CPUExecutionProvider"]
SLICE_TOKENS = 256  # among the fastest of 128 to 4,096, at the size of BERT-base and of TinyBERT4


class OnnxClassifier:
    """An ONNX file on `threads` cores of the CPU.

    A batch is answered in slices of few rows, each by one thread: between two layers a slice stays in the core's cache,
    and no thread waits for another at every node. One caller at a time. UserError without the file.
    """

    def __init__(self, path: str | Path, threads: int) -> None:
        if not Path(path).is_file():
            raise UserError(f"{path}: absent; an ONNX file is expected, export the model first")
        self.path = str(path)
        self.threads = threads

    def logits(self, feeds: Feeds) -> np.ndarray:
        """(batch, classes) float32 of one batch: the same from run to run, and for any number of threads."""
        slices = sliced(feeds)
        if len(slices) < self.threads:
            found = [_run(self._joint, each) for each in slices]
        else:
            found = list(self._pool.map(partial(_run, self._single), slices))
        return np.concatenate(found)

    @cached_property
    def _joint(self) -> onnxruntime.InferenceSession:
        """All threads at each node: for batches of too few rows."""
        return self._session(self.threads)

    @cached_property
    def _single(self) -> onnxruntime.InferenceSession:
        """One thread a call, and several calls at a time."""
        return self._session(1)

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.threads)

    def _session(self, threads: int) -> onnxruntime.InferenceSession:
        return onnxruntime.InferenceSession(self.path, _options(threads), providers=PROVIDERS)


def sliced(feeds: Feeds) -> list[Feeds]:
    """The batch as slices of at most SLICE_TOKENS tokens, or of one row, alike in size and even in number."""
    rows, length = feeds["input_ids"].shape
    count = -(-rows // max(1, SLICE_TOKENS // length))
    count = min(count + count % 2, rows)
    pieces = {name: np.array_split(values, count) for name, values in feeds.items()}
    return [{name: pieces[name][number] for name in feeds} for number in range(count)]


def session_of(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """A CPU session of a model in memory, on as many threads as there are cores."""
    return onnxruntime.InferenceSession(model.SerializeToString(), _options(0), providers=PROVIDERS)


def has_int8_dot_products() -> bool:
    """Whether the CPU multiplies uint8 by int8 into 32 bits (VNNI)."""
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in VNNI)


def _run(session: onnxruntime.InferenceSession, feeds: Feeds) -> np.ndarray:
    return session.run(["logits"], feeds)[0]


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
