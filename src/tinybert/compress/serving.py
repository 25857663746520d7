"""ONNX classifiers in use: logits in slices of a batch, and the latency of a batch."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from tinybert.config.schema import Latency
from tinybert.data.encoding import Encoded
from tinybert.models.outputs import Batch

Feeds = dict[str, np.ndarray]  # input name -> (batch, length) int64
INPUT_NAMES = ("input_ids", "attention_mask", "token_type_ids")
SLICE_TOKENS = 256  # among the fastest of 128 to 4,096, at the size of BERT-base and of TinyBERT4


class OnnxClassifier:
    """An ONNX file on `threads` CPU threads, for one caller at a time.

    A batch is split into slices of few rows, each run by one thread: a slice stays in its core's cache from layer to
    layer, and threads do not wait for each other after every node.
    """

    def __init__(self, path: str | Path, threads: int) -> None:
        self.path = str(path)
        self.threads = threads

    def logits(self, feeds: Feeds) -> np.ndarray:
        """Logits of one batch: (batch, classes) float32, identical in every run and for any number of threads."""
        slices = sliced(feeds)
        if len(slices) < self.threads:
            return np.concatenate([self._joint.run(["logits"], each)[0] for each in slices])
        session = self._single
        return np.concatenate(list(self._pool.map(lambda each: session.run(["logits"], each)[0], slices)))

    def logits_of(self, examples: Encoded, batch_size: int) -> np.ndarray:
        """Logits of all examples in their order: (rows, classes) float32."""
        found = [(rows, self.logits(feeds_of(batch))) for rows, batch in examples.batches(batch_size)]
        rows, logits = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return logits[np.argsort(rows)]

    @cached_property
    def _joint(self) -> onnxruntime.InferenceSession:
        """All threads at each node: for batches of fewer slices than threads."""
        return session_of(self.path, self.threads)

    @cached_property
    def _single(self) -> onnxruntime.InferenceSession:
        """One thread per call, for several calls at a time."""
        return session_of(self.path, 1)

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.threads)


def feeds_of(batch: Batch) -> Feeds:
    """The batch as inputs of the graph: name -> (batch, length) int64."""
    tensors = (batch.input_ids, batch.mask.long(), batch.token_type_ids)
    return {name: tensor.cpu().numpy() for name, tensor in zip(INPUT_NAMES, tensors, strict=True)}


def random_feeds(batch_size: int, length_tokens: int, vocab_size: int) -> Feeds:
    """A batch of full-length rows of random tokens, the same in every run."""
    shape = (batch_size, length_tokens)
    input_ids = np.random.default_rng(0).integers(0, vocab_size, shape, dtype=np.int64)
    rest = (np.ones(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64))
    return dict(zip(INPUT_NAMES, (input_ids, *rest), strict=True))


def sliced(feeds: Feeds) -> list[Feeds]:
    """The batch in slices of at most SLICE_TOKENS tokens (or one row), of similar size and even in number."""
    rows, length = feeds["input_ids"].shape
    count = -(-rows // max(1, SLICE_TOKENS // length))
    # An odd number would leave one of two threads idle while the last slice runs.
    count = min(count + count % 2, rows)
    pieces = {name: np.array_split(values, count) for name, values in feeds.items()}
    return [{name: pieces[name][number] for name in feeds} for number in range(count)]


def session_of(model: str | bytes, threads: int = 0) -> onnxruntime.InferenceSession:
    """A CPU session of a file or of its bytes; 0: as many threads as there are cores."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.use_deterministic_compute = True
    options.log_severity_level = 3  # errors only
    # Otherwise idle threads of one session spin for a while on the cores that the next session runs on.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    capabilities = torch.cpu.get_capabilities()
    if not (capabilities.get("avx512_vnni") or capabilities.get("avx_vnni")):
        # Without VNNI (uint8 x int8 into 32 bits) the fast integer product of x64 saturates at 16 bits, which can ruin
        # a score; this entry asks for an exact one. With VNNI it must stay unset: it costs half of the speed there.
        options.add_session_config_entry("session.x64quantprecision", "1")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def latencies(models: Mapping[str, str | Path], settings: Latency, examples: Encoded, vocab_size: int) -> dict:
    """Times one batch on each ONNX file (variant -> file), for every batch size.

    Returns threads, length_tokens and dev_examples as used, and for each variant median, p10 and p90 in milliseconds of
    batch_<n> (`length_tokens` random tokens a row, `runs` times) and dev_batch_<n> (rows evenly spread over the lengths
    of `examples`, each batch once: the spread is that of the lengths).
    """
    longest_first = np.argsort(-examples.lengths, kind="stable")
    rows = longest_first[np.linspace(0, len(examples) - 1, min(settings.dev_examples, len(examples))).astype(int)]
    results: dict = {"threads": settings.threads, "length_tokens": settings.length_tokens, "dev_examples": len(rows)}
    for variant, path in models.items():
        model = OnnxClassifier(path, settings.threads)
        results[variant] = {}
        for size in settings.batch_sizes:
            random = [random_feeds(size, settings.length_tokens, vocab_size)] * settings.runs
            # Batches of exactly that size; a smaller one only if there is no other.
            starts = range(0, max(1, len(rows) - size + 1), size)
            real = [feeds_of(examples.batch(rows[start : start + size])) for start in starts]
            for kind, batches in ((f"batch_{size}", random), (f"dev_batch_{size}", real)):
                results[variant][kind] = measure_latency_ms(model, batches, warmup_runs=settings.warmup_runs)
    return results


def measure_latency_ms(model: OnnxClassifier, batches: Sequence[Feeds], *, warmup_runs: int) -> dict[str, float]:
    """Median, p10 and p90 of the milliseconds per batch, after the first batch was run `warmup_runs` times."""
    times_ms = []
    for feeds in [batches[0]] * warmup_runs + list(batches):
        started = time.perf_counter()
        model.logits(feeds)
        times_ms.append(1000.0 * (time.perf_counter() - started))
    median, p10, p90 = np.percentile(times_ms[warmup_runs:], [50, 10, 90])
    return {"median": float(median), "p10": float(p10), "p90": float(p90)}
