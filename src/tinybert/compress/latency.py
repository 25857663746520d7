"""How long an ONNX model takes for a batch."""

import time
from collections.abc import Sequence

import numpy as np

from tinybert.compress.serving import Feeds, OnnxClassifier


def random_feeds(batch_size: int, length_tokens: int, vocab_size: int) -> Feeds:
    """A batch of full-length rows of random tokens, the same in each run."""
    shape = (batch_size, length_tokens)
    return {
        "input_ids": np.random.default_rng(0).integers(0, vocab_size, shape, dtype=np.int64),
        "attention_mask": np.ones(shape, dtype=np.int64),
        "token_type_ids": np.zeros(shape, dtype=np.int64),
    }


def measure_latency_ms(model: OnnxClassifier, batches: Sequence[Feeds], *, warmup_runs: int) -> dict[str, float]:
    """Milliseconds a batch takes: median, p10 and p90 over `batches`, after the first of them `warmup_runs` times."""
    times_ms = []
    for feeds in [batches[0]] * warmup_runs + list(batches):
        started = time.perf_counter()
        model.logits(feeds)
        times_ms.append(1000.0 * (time.perf_counter() - started))
    median, p10, p90 = np.percentile(times_ms[warmup_runs:], [50, 10, 90])
    return {"median": float(median), "p10": float(p10), "p90": float(p90)}
