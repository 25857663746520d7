"""Predictions of each row, kept for paired comparisons, and bootstrap intervals over rows and training seeds."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tinybert.data.tasks import Task
from tinybert.evaluate.scoring import METRICS, is_collapsed, score
from tinybert.pipeline.files import atomic_file

RESAMPLES = 1000
Metric = Callable[[np.ndarray, np.ndarray], float]


@dataclass(frozen=True)
class Predictions:
    """The predictions of a model for the rows of a split.

    Attributes:
        metric: A GLUE metric or "perplexity". For perplexity a row is a sequence, its label the number of masked
            tokens and its prediction the sum of their cross-entropies (nats).
        labels: (rows,)
        predictions: (rows,)
    """

    metric: str
    labels: np.ndarray
    predictions: np.ndarray

    @property
    def score(self) -> float:
        return ROW_METRICS[self.metric](self.predictions, self.labels)


def perplexity(cross_entropies: np.ndarray, tokens: np.ndarray) -> float:
    """Computes exp of the mean cross-entropy over all tokens from sums and token counts, (sequences,) each."""
    return float(np.exp(cross_entropies.sum() / tokens.sum()))


ROW_METRICS: dict[str, Metric] = METRICS | {"perplexity": perplexity}
LOWER_IS_BETTER = ("perplexity",)


def save_predictions(path: str | Path, systems: Mapping[str, Predictions]) -> None:
    """Writes the predictions of several systems as JSON; floats have six digits."""
    tree = {
        name: {"metric": found.metric, "labels": _plain(found.labels), "predictions": _plain(found.predictions)}
        for name, found in systems.items()
    }
    with atomic_file(path) as handle:
        json.dump(tree, handle, allow_nan=False)


def read_predictions(text: str) -> dict[str, Predictions]:
    """Parses what `save_predictions` wrote."""
    return {
        name: Predictions(found["metric"], np.array(found["labels"]), np.array(found["predictions"]))
        for name, found in json.loads(text).items()
    }


def _plain(values: np.ndarray) -> list[int] | list[float]:
    if np.issubdtype(values.dtype, np.integer):
        return values.tolist()
    return [float(f"{value:.6g}") for value in values]


def variant_scores(variants: Mapping[str, Predictions], task: Task, *, seed: int) -> dict[str, dict]:
    """Compares the ONNX variants of one model with its "fp32" variant on the same rows.

    Returns:
        For each variant: "dev" (its metrics), "collapsed", "agreement" (fraction of predictions equal to FP32's; None
        for a regression) and "difference_95" (interval of the headline score minus FP32's).
    """
    metric, labels, fp32 = METRICS[task.headline], variants["fp32"].labels, variants["fp32"].predictions
    return {
        name: {
            "dev": score(task, found.predictions, labels),
            "collapsed": is_collapsed(task, found.predictions),
            "agreement": None if task.is_regression else float(np.mean(found.predictions == fp32)),
            "difference_95": paired_interval(metric, [found.predictions], [fp32], [labels], seed=seed),
        }
        for name, found in variants.items()
    }


def paired_interval(
    metric: Metric,
    predictions: Sequence[np.ndarray],
    reference: Sequence[np.ndarray],
    labels: Sequence[np.ndarray],
    *,
    seed: int,
) -> dict[str, float]:
    """95 % interval of a score minus a reference score: paired percentile bootstrap (Efron & Tibshirani 1993, ch. 13).

    Args:
        metric: Takes predictions and labels, (rows,) each.
        predictions: (rows,) for each training seed.
        reference: The same of the reference, in the same order of seeds.
        labels: The same of the gold labels.
        seed: Of the resampling.

    Returns:
        "low" and "high" of the difference's mean over seeds. With one seed the interval is over rows only.
    """
    pairs = list(zip(predictions, reference, labels, strict=True))
    if all(np.array_equal(mine, other) for mine, other, _ in pairs):
        return {"low": 0.0, "high": 0.0}
    widening, differences = _widening(len(pairs)), []
    of_seeds = _differences(metric, pairs, [np.arange(len(one)) for one in labels])
    for rows, seeds in _resamples(labels, seed):
        # Seeds are resampled by their differences on all rows: differences on the drawn rows would count the variance
        # of rows twice.
        on_drawn_rows = _differences(metric, pairs, rows).mean()
        differences.append(on_drawn_rows + widening * (of_seeds[seeds].mean() - of_seeds.mean()))
    return _interval(differences)


def retention_interval(
    metric: Metric, students: Sequence[np.ndarray], reference: Mapping[str, np.ndarray], *, seed: int
) -> dict[str, float] | None:
    """95 % interval of the above-majority retention, by the same bootstrap as `paired_interval`.

    Args:
        metric: Takes predictions and labels, (rows,) each.
        students: The student's predictions, (rows,) for each training seed.
        reference: "teacher", "majority" and "labels" on the same rows, (rows,) each.
        seed: Of the resampling.

    Returns:
        "low" and "high"; None if the teacher is within noise of the majority class, which leaves nothing to retain.
    """
    teacher, majority, labels = (reference[name] for name in ("teacher", "majority", "labels"))
    if paired_interval(metric, [teacher], [majority], [labels], seed=seed)["low"] <= 0:
        return None
    widening, ratios = _widening(len(students)), []
    of_seeds = np.array([metric(student, labels) for student in students])
    for (rows, *_), seeds in _resamples([labels] * len(students), seed):
        base = metric(majority[rows], labels[rows])
        lead = metric(teacher[rows], labels[rows]) - base
        of_drawn_seeds = of_seeds[seeds].mean() - of_seeds.mean()
        student = np.mean([metric(one[rows], labels[rows]) for one in students]) + widening * of_drawn_seeds
        if lead > 0:
            ratios.append((student - base) / lead)
    return _interval(ratios)


def _interval(values: Sequence[float]) -> dict[str, float]:
    return dict(zip(("low", "high"), np.percentile(values, [2.5, 97.5]).tolist(), strict=True))


def _resamples(labels: Sequence[np.ndarray], seed: int) -> Iterator[tuple[list[np.ndarray], np.ndarray]]:
    """Yields the rows drawn for each training seed (shared if all have the same labels), and the seeds drawn.

    Both sides of a comparison are computed on the same drawn rows.
    """
    rng, count = np.random.default_rng(seed), len(labels)
    is_same = all(np.array_equal(labels[0], other) for other in labels[1:])
    for _ in range(RESAMPLES):
        rows = [rng.integers(len(one), size=len(one)) for one in (labels[:1] if is_same else labels)]
        yield rows * count if is_same else rows, rng.integers(count, size=count)


def _differences(metric: Metric, pairs: Sequence[tuple], rows: Sequence[np.ndarray]) -> np.ndarray:
    """The difference of each pair on its rows, (seeds,) float64."""
    return np.array([
        metric(mine[chosen], labels[chosen]) - metric(other[chosen], labels[chosen])
        for (mine, other, labels), chosen in zip(pairs, rows, strict=True)
    ])  # fmt: skip


def _widening(seeds: int) -> float:
    """Factor by which drawn means of few seeds spread too little for a 95 % interval of their mean."""
    if seeds == 1:
        return 1.0
    from scipy.stats import norm, t

    # Student's t instead of the normal, and the deviation of a sample instead of a population.
    return float(t.ppf(0.975, seeds - 1) / norm.ppf(0.975)) * math.sqrt(seeds / (seeds - 1))
