"""What the ONNX forms of a model are worth: score, agreement with FP32, size, latency."""

from pathlib import Path

import numpy as np

from tinybert.compress.export import feeds_of
from tinybert.compress.latency import measure_latency_ms, random_feeds
from tinybert.compress.serving import Feeds, OnnxClassifier
from tinybert.compress.variants import FORMS
from tinybert.data.encoding import Encoded
from tinybert.data.tasks import Task
from tinybert.evaluate.predictions import Predictions, paired_interval
from tinybert.evaluate.scoring import METRICS, is_collapsed, score
from tinybert.evaluate.task_scores import EVALUATION_BATCH_SIZE, decide
from tinybert.pipeline.files import file_sizes_mb, read_json


def answers_of_forms(folder: str | Path, examples: Encoded, task: Task, *, threads: int) -> dict[str, Predictions]:
    """What each form in `folder` answers to the examples."""
    return {
        form: Predictions(
            task.headline, examples.gold, _predictions(Path(folder) / f"{form}.onnx", examples, task, threads=threads)
        )
        for form in FORMS
    }


def scores_of_forms(folder: str | Path, answers: dict[str, Predictions], task: Task, *, seed: int) -> dict[str, dict]:
    """For each form in `folder`, by its answers to the dev rows: metrics, whether it collapsed to one answer, share of
    predictions equal to FP32's (None for a regression), the 95 % interval of the headline score less FP32's, and file
    size in MB (10^6 bytes), raw and compressed.
    """
    metric, labels, reference = METRICS[task.headline], answers["fp32"].labels, answers["fp32"].predictions
    results = {}
    for form, found in answers.items():
        predictions = found.predictions
        results[form] = {
            "dev": score(task, predictions, labels),
            "collapsed": is_collapsed(task, predictions),
            "agreement": None if task.is_regression else float(np.mean(predictions == reference)),
            "difference_95": paired_interval(metric, [predictions], [reference], [labels], seed=seed),
            "size_mb": file_sizes_mb(Path(folder) / f"{form}.onnx"),
        }
    return results


def _predictions(path: Path, examples: Encoded, task: Task, *, threads: int) -> np.ndarray:
    model = OnnxClassifier(path, threads)
    found = [(rows, model.logits(feeds_of(batch))) for rows, batch in examples.batches(EVALUATION_BATCH_SIZE)]
    rows, logits = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return decide(logits[np.argsort(rows)], task)


def latencies(folder: str | Path, settings, examples: Encoded) -> dict[str, dict]:
    """Milliseconds a batch for each form and batch size, by the latency section of params.

    batch_<n>: rows of `length_tokens` random tokens, `runs` times; dev_batch_<n>: rows of `examples` at their real
    lengths, spread evenly over them, neighbours in length together, each batch once: its spread is that of lengths.
    """
    vocab_size = read_json(Path(folder) / "config.json")["vocab_size"]
    real = _spread(examples, settings.dev_examples)
    results: dict = {"threads": settings.threads, "length_tokens": settings.length_tokens, "dev_examples": len(real)}
    for form in FORMS:
        model = OnnxClassifier(Path(folder) / f"{form}.onnx", settings.threads)
        results[form] = {}
        for batch_size in settings.batch_sizes:
            feeds = random_feeds(batch_size, settings.length_tokens, vocab_size)
            full = measure_latency_ms(model, [feeds] * settings.runs, warmup_runs=settings.warmup_runs)
            lifelike = measure_latency_ms(model, _whole_batches(real, batch_size), warmup_runs=settings.warmup_runs)
            results[form] |= {f"batch_{batch_size}": full, f"dev_batch_{batch_size}": lifelike}
    return results


def _whole_batches(examples: Encoded, batch_size: int) -> list[Feeds]:
    """The batches of that size; the last, smaller one only where there is no other."""
    batches = [feeds_of(batch) for _, batch in examples.batches(batch_size)]
    return batches[: max(1, len(examples) // batch_size)]


def _spread(examples: Encoded, count: int) -> Encoded:
    """At most `count` rows, evenly spread over the lengths."""
    order = np.argsort(examples.lengths, kind="stable")
    rows = order[np.linspace(0, len(order) - 1, min(count, len(order))).astype(int)]
    input_ids, segments = ([values[row] for row in rows] for values in (examples.input_ids, examples.token_type_ids))
    return Encoded(input_ids, segments, labels=None)
