"""What the ONNX forms of a model are worth: score, agreement with FP32, size, latency."""

from pathlib import Path

import numpy as np

from tinybert.compress.export import feeds_of
from tinybert.compress.latency import measure_latency_ms, open_session, predict
from tinybert.evaluation.glue import EVALUATION_BATCH_SIZE, decide
from tinybert.files import file_sizes_mb, read_json
from tinybert.glue.encoding import Encoded
from tinybert.glue.scoring import score
from tinybert.glue.tasks import Task

FORMS = ("fp32", "dynamic", "qdq", "qoperator")


def scores_of_forms(folder: str | Path, examples: Encoded, task: Task, *, threads: int) -> dict[str, dict]:
    """For each form in `folder`: dev metrics, share of predictions equal to FP32's (None for a
    regression), and file size in MB (10^6 bytes), raw and compressed.
    """
    results, reference = {}, None
    for form in FORMS:
        path = Path(folder) / f"{form}.onnx"
        predictions = _predictions(path, examples, task, threads=threads)
        reference = predictions if reference is None else reference
        results[form] = {
            "dev": score(task, predictions, examples.labels),
            "agreement": None if task.is_regression else float(np.mean(predictions == reference)),
            "size_mb": file_sizes_mb(path),
        }
    return results


def _predictions(path: Path, examples: Encoded, task: Task, *, threads: int) -> np.ndarray:
    session = open_session(path, threads)
    logits = None
    for indices, batch in examples.batches(EVALUATION_BATCH_SIZE):
        found = predict(session, feeds_of(batch))
        logits = np.empty((len(examples), found.shape[1]), dtype=np.float32) if logits is None else logits
        logits[indices] = found
    return decide(logits, task)


def latencies(folder: str | Path, settings) -> dict[str, dict]:
    """Milliseconds a batch for each form and batch size, by the latency section of params."""
    vocab_size = read_json(Path(folder) / "config.json")["vocab_size"]
    results: dict = {"threads": settings.threads, "length_tokens": settings.length_tokens}
    for form in FORMS:
        session = open_session(Path(folder) / f"{form}.onnx", settings.threads)
        results[form] = {
            f"batch_{batch_size}": measure_latency_ms(
                session,
                batch_size=batch_size,
                length_tokens=settings.length_tokens,
                vocab_size=vocab_size,
                warmup_runs=settings.warmup_runs,
                runs=settings.runs,
            )
            for batch_size in settings.batch_sizes
        }
    return results
