"""Scores of task predictions (metrics, majority class, collapse), costs, saved predictions, bootstrap intervals."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tinybert.config.tasks import Task
from tinybert.data.encoding import Encoded, label_array, read_rows
from tinybert.distill.batches import predict
from tinybert.distill.task_teacher import TaskTeacher
from tinybert.models.model_folders import Classifier, TaskModel
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import parse_json, write_file
from tinybert.pipeline.paths import INT8_VARIANTS, VARIANTS

# A classifier counts as collapsed if at most this fraction of its predictions, and at most half as many as of the gold
# labels, are another class than the most frequent one (2 of MRPC's 408).
COLLAPSED_OTHER_ROWS = 0.005
# A regressor counts as collapsed if its standard deviation is below this fraction of the score range (STS-B: 0.05).
COLLAPSED_SPREAD = 0.01
# Values that differ by less than this differ by rounding only; a correlation with them would be noise.
CONSTANT_SPREAD = 1e-6
DROP_DIGITS = 9  # of a score's drop; further ones are rounding errors of the subtraction
SAME_SIZE = 1.02  # times the smallest: formats differ by so much in their graphs, not in their weights
RESAMPLES, LEAST_RESAMPLES = 10_000, 1_000
MOST_WEIGHTS, PART_WEIGHTS = 2**28, 2**22  # rows times resamples: in all, and held at a time

Values = Sequence | np.ndarray
SeedArrays = Sequence[np.ndarray]  # one for each training seed
# Predictions and labels, (rows,) or (rows, labels), and weights (counts) of the rows, (..., rows) -> scores, (...).
Metric = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
SplitReferences = tuple[Encoded, dict[str, np.ndarray]]  # the rows of a split, and predictions by system


def score(task: Task, predictions: Values, labels: Values) -> dict[str, float]:
    """Computes all metrics of a task by name, the headline metric first; UserError if predictions are not finite.

    Constant predictions have matthews, pearson and spearman 0.0; f1 is that of class 1.

    Args:
        predictions: Class numbers or scores, (rows,); of a multilabel task 0 and 1, (rows, labels).
        labels: The gold ones, in the same shape; at least one row.
    """
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    if predictions.shape != labels.shape or labels.ndim != 1 + task.is_multilabel or not len(labels):
        raise ValueError(f"predictions {predictions.shape} and labels {labels.shape} must have rows")
    if unusable := int(np.count_nonzero(~np.isfinite(predictions))):
        problem = f"{unusable} of {len(labels)} predictions are not finite, the training diverged"
        raise UserError(f"{task.name}: {problem}; fix: lower learning_rate in tasks.{task.name}")
    return {metric: score_by(METRICS[metric], predictions, labels) for metric in task.metrics}


def majority_predictions(task: Task, train_labels: Values, rows: int) -> np.ndarray:
    """Predicts the most frequent training class (the first of equals) or the mean training score, (rows,).

    For a multilabel task: the labels of more than half of the training rows, (rows, labels).
    """
    if task.is_regression:
        return np.full(rows, np.mean(train_labels))
    if task.is_multilabel:
        return np.tile(np.mean(train_labels, axis=0) > 0.5, (rows, 1)).astype(np.int64)
    return np.full(rows, np.bincount(np.asarray(train_labels), minlength=len(task.labels)).argmax())


def is_collapsed(task: Task, predictions: Values, labels: Values) -> bool:
    """Whether the predictions are (nearly) the same for every input, by COLLAPSED_OTHER_ROWS or COLLAPSED_SPREAD."""
    if task.score_range:
        return bool(np.std(predictions) < COLLAPSED_SPREAD * np.ptp(task.score_range))
    found, gold = (len(each) - np.unique(each, axis=0, return_counts=True)[1].max() for each in (predictions, labels))
    return bool(gold and found <= min(COLLAPSED_OTHER_ROWS * len(predictions), gold / 2))


def model_costs(model: TaskModel, rows: Encoded) -> dict[str, float | None]:
    """Parameters of a model, and the mean FLOPs of its matrix products over rows at their real lengths.

    The FLOPs of a teacher of another family are not known, nor anything of one that is known by its predictions.
    """
    flops = None
    if isinstance(model, Classifier):
        lengths, counts = np.unique(rows.lengths, return_counts=True)
        flops = float(np.average([model.flops(tokens) for tokens in lengths.tolist()], weights=counts))
    return {"parameters": model.parameter_count, "flops": flops}


def predict_references(teacher: TaskTeacher) -> dict[str, SplitReferences]:
    """Each dev split of a task (MNLI has two): its rows, and the predictions of "teacher" and "majority"."""
    task = teacher.task
    train_labels = label_array((row["label"] for row in read_rows(task, "train")), task)
    found = {}
    for split in task.dev_splits:
        dev, teacher_rows = teacher.read_both(read_rows(task, split), split)
        majority = majority_predictions(task, train_labels, len(dev))
        found[split] = (dev, {"teacher": predict(teacher.model, teacher_rows, task), "majority": majority})
    return found


def score_by(metric: Metric, predictions: np.ndarray, labels: np.ndarray) -> float:
    """The score of all rows, each counted once."""
    return float(metric(predictions, labels, np.ones(len(labels))))


def _micro_f1(predictions: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    hits, totals = np.sum(predictions * labels, axis=1), np.sum(predictions, axis=1) + np.sum(labels, axis=1)
    return 2.0 * (weights @ hits) / np.maximum(weights @ totals, 1)


def _macro_f1(predictions: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The mean over all labels of a multilabel task, otherwise over the classes predicted or true in some row."""
    is_multilabel = labels.ndim == 2
    ours, gold = (predictions, labels) if is_multilabel else _one_hot(predictions, labels)
    totals = weights @ ours + weights @ gold
    f1 = 2.0 * (weights @ (ours * gold)) / np.maximum(totals, 1)
    return f1.sum(axis=-1) / (totals.shape[-1] if is_multilabel else (totals > 0).sum(axis=-1))


def _matthews(predictions: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The coefficient for any number of classes (Gorodkin 2004)."""
    ours, gold = _one_hot(predictions, labels)
    counts, truths, rows = weights @ ours, weights @ gold, weights.sum(axis=-1)
    covariance = rows * (weights @ (predictions == labels)) - (counts * truths).sum(axis=-1)
    squares = (rows**2 - (counts**2).sum(axis=-1)) * (rows**2 - (truths**2).sum(axis=-1))
    return np.where(squares > 0, covariance / np.sqrt(np.maximum(squares, 1)), 0.0)


def _one_hot(predictions: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Class numbers as 0 and 1, (rows, classes)."""
    classes = np.arange(1 + max(predictions.max(), labels.max()))
    return (predictions[:, None] == classes).astype(float), (labels[:, None] == classes).astype(float)


def _pearson(predictions: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    ours, gold = (side - side.mean(axis=-1, dtype=float, keepdims=True) for side in (predictions, labels))

    def mean(values: np.ndarray) -> np.ndarray:
        return np.vecdot(weights, values) / weights.sum(axis=-1)

    covariance = mean(ours * gold) - mean(ours) * mean(gold)
    variances = [mean(side**2) - mean(side) ** 2 for side in (ours, gold)]
    product = np.where(np.minimum(*variances) <= (CONSTANT_SPREAD / 2) ** 2, np.inf, variances[0] * variances[1])
    return covariance / np.sqrt(product)


def _spearman(predictions: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    if min(np.ptp(predictions), np.ptp(labels)) <= CONSTANT_SPREAD:
        return np.zeros(weights.shape[:-1])
    return _pearson(_ranks(predictions, weights), _ranks(labels, weights), weights)


def _ranks(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The rank of each row among all, equal ones sharing their mean rank; in the shape of the weights."""
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    up_to = weights[..., np.argsort(group)].cumsum(axis=-1)[..., np.cumsum(sizes) - 1]
    below = np.concatenate([np.zeros_like(up_to[..., :1]), up_to[..., :-1]], axis=-1)
    return ((below + up_to + 1) / 2)[..., group]


METRICS: dict[str, Metric] = {
    "accuracy": lambda predictions, labels, weights: weights @ (predictions == labels) / weights.sum(axis=-1),
    "f1": lambda predictions, labels, weights: _micro_f1(predictions[:, None] == 1, labels[:, None] == 1, weights),
    "macro_f1": _macro_f1,
    "micro_f1": _micro_f1,
    "matthews": _matthews,
    "pearson": _pearson,
    "spearman": _spearman,
}
# Those of Predictions; perplexity is computed from sums of cross-entropies and numbers of tokens, (sequences,) each.
ROW_METRICS = METRICS | {"perplexity": lambda losses, tokens, weights: np.exp(weights @ losses / (weights @ tokens))}


@dataclass(frozen=True)
class Predictions:
    """The predictions of a model for the rows of a split.

    Attributes:
        metric: A key of METRICS or "perplexity". For perplexity a row is a sequence, its label the number of masked
            tokens and its prediction the sum of their cross-entropies (nats).
        labels: (rows,), or (rows, labels) of a multilabel task.
        predictions: The same shape.
    """

    metric: str
    labels: np.ndarray
    predictions: np.ndarray

    @property
    def score(self) -> float:
        return score_by(ROW_METRICS[self.metric], self.predictions, self.labels)


def save_predictions(path: str | Path, systems: Mapping[str, Predictions]) -> None:
    """Writes the predictions of several systems as JSON; floats have six digits."""
    tree = {
        name: {"metric": found.metric, "labels": _plain(found.labels), "predictions": _plain(found.predictions)}
        for name, found in systems.items()
    }
    write_file(path, json.dumps(tree, allow_nan=False))


def read_predictions(text: str) -> dict[str, Predictions]:
    """Parses what `save_predictions` wrote."""
    return {
        name: Predictions(found["metric"], np.array(found["labels"]), np.array(found["predictions"]))
        for name, found in parse_json(text).items()
    }


def _plain(values: np.ndarray) -> list:
    if np.issubdtype(values.dtype, np.integer) or values.ndim == 2:  # 0 and 1 of several labels
        return values.astype(np.int64).tolist()
    return [float(f"{value:.6g}") for value in values]


def compare_splits(
    student: Callable[[Encoded], np.ndarray], references: Mapping[str, SplitReferences], task: Task
) -> tuple[dict[str, dict], dict[str, Predictions]]:
    """Compares a student with its references on each dev split.

    Args:
        student: Takes the rows of a split and returns predictions.
        references: What `predict_references` returns.

    Returns:
        By split the metrics of "student", "teacher" and "majority", and whether the student collapsed; and the
        predictions of all systems on the first split.
    """
    scores, predictions = dict[str, dict](), dict[str, Predictions]()
    for split, (dev, known) in references.items():
        systems = {"student": student(dev)} | known
        scores[split] = {name: score(task, found, dev.gold) for name, found in systems.items()}
        scores[split]["collapsed"] = is_collapsed(task, systems["student"], dev.gold)
        if split == task.dev_splits[0]:
            predictions = {name: Predictions(task.headline, dev.gold, found) for name, found in systems.items()}
    return scores, predictions


def variant_scores(variants: Mapping[str, Predictions], task: Task, *, seed: int) -> dict[str, dict]:
    """Compares the ONNX variants of one model with its "fp32" variant on the same rows.

    Returns:
        For each variant: "dev" (its metrics), "collapsed", "agreement" (fraction of predictions equal to FP32's; None
        for a regression) and "difference_95" (interval of the headline score minus FP32's).
    """
    metric, labels, fp32 = METRICS[task.headline], variants["fp32"].labels, variants["fp32"].predictions

    def agreement(predictions: np.ndarray) -> float:  # of a multilabel task in all labels
        return float((predictions == fp32).reshape(len(fp32), -1).all(axis=1).mean())

    return {
        name: {
            "dev": score(task, found.predictions, labels),
            "collapsed": is_collapsed(task, found.predictions, labels),
            "agreement": None if task.is_regression else agreement(found.predictions),
            "difference_95": paired_interval(metric, [found.predictions], [fp32], [labels], seed=seed),
        }
        for name, found in variants.items()
    }


def score_drops(variants: Mapping[str, dict], metric: str) -> dict[str, float]:
    """How far the score of each INT8 variant is below FP32's, by the results of `variant_scores`."""
    scores = {variant: variants[variant]["dev"][metric] for variant in VARIANTS}
    return {variant: round(scores["fp32"] - scores[variant], DROP_DIGITS) for variant in INT8_VARIANTS}


def choose_variant(variants: Mapping[str, dict], metric: str, max_score_drop: float | None) -> str | None:
    """Chooses the smallest INT8 variant whose score is at most `max_score_drop` below FP32's.

    Args:
        variants: Scores as `variant_scores` returns them, with the "size_mb" of each variant.
        max_score_drop: None: any drop passes.

    Returns:
        The variant with the highest score among those within SAME_SIZE of the smallest that passes; None if none does.
    """
    drops = score_drops(variants, metric)
    passing = [variant for variant, drop in drops.items() if max_score_drop is None or drop <= max_score_drop]
    sizes = {variant: variants[variant]["size_mb"]["raw"] for variant in passing}
    small = [variant for variant, size in sizes.items() if size <= SAME_SIZE * min(sizes.values())]
    return min(small, key=lambda variant: (drops[variant], sizes[variant]), default=None)


def paired_interval(
    metric: Metric, predictions: SeedArrays, reference: SeedArrays, labels: SeedArrays, *, seed: int, share: float = 1.0
) -> dict[str, float]:
    """95 % interval of a score minus a reference score: paired percentile bootstrap (Efron & Tibshirani 1993, ch. 13).

    Args:
        predictions: (rows,) or (rows, labels) for each training seed.
        reference: The same of the reference, in the same order of seeds.
        labels: The same of the gold labels.
        share: The reference's score is multiplied by it.

    Returns:
        "low" and "high" of the difference's mean over seeds. With one seed the interval is over rows only.
    """
    pairs = list(zip(predictions, reference, labels, strict=True))
    if share == 1.0 and all(np.array_equal(mine, other) for mine, other, _ in pairs):
        return {"low": 0.0, "high": 0.0}

    def differences(weights: SeedArrays) -> np.ndarray:  # (..., seeds)
        both = zip(pairs, weights, strict=True)
        found = [metric(mine, gold, n) - share * metric(other, gold, n) for (mine, other, gold), n in both]
        return np.stack(found, axis=-1)

    of_seeds = differences([np.ones(len(one)) for one in labels])
    return _interval(differences(drawn).mean(axis=-1) + shift for drawn, shift in _resamples(labels, of_seeds, seed))


def retention_interval(
    metric: Metric, students: SeedArrays, reference: Mapping[str, np.ndarray], *, seed: int
) -> dict[str, float] | None:
    """95 % interval of the above-majority retention, by the same bootstrap as `paired_interval`.

    Args:
        students: The student's predictions for each training seed, (rows,) or (rows, labels).
        reference: "teacher", "majority" and "labels" on the same rows.

    Returns:
        "low" and "high", over the resamples in which the teacher is above the majority class (more than 97.5 %); None
        if it is within noise of that class, with nothing to retain.
    """
    teacher, majority, labels = (reference[name] for name in ("teacher", "majority", "labels"))
    if paired_interval(metric, [teacher], [majority], [labels], seed=seed)["low"] <= 0:
        return None
    of_seeds = np.array([score_by(metric, student, labels) for student in students])
    ratios = []
    for (weights, *_), shift in _resamples([labels] * len(students), of_seeds, seed):
        base = metric(majority, labels, weights)
        above = metric(teacher, labels, weights) - base
        student = np.mean([metric(one, labels, weights) for one in students], axis=0) + shift
        ratios.append((student - base)[above > 0] / above[above > 0])
    return _interval(ratios)


def _interval(parts: Iterable[np.ndarray]) -> dict[str, float]:
    return dict(zip(("low", "high"), np.percentile(np.concatenate([*parts]), [2.5, 97.5]).tolist(), strict=True))


def _resamples(labels: SeedArrays, of_seeds: np.ndarray, seed: int) -> Iterator[tuple[list, np.ndarray]]:
    """Yields resamples in parts: how often each row was drawn, (part, rows) per training seed, and shifts, (part,).

    There are RESAMPLES, fewer with more than 26,000 rows. Seeds with the same labels share the drawn rows, as both
    sides of a comparison do. Seeds are drawn by their scores on all rows, `of_seeds`, and shift the mean: scores on the
    drawn rows would count the variance of rows twice.
    """
    from scipy.stats import norm, t

    rng, count = np.random.default_rng(seed), len(labels)
    # Drawn means of few seeds spread too little: Student's t instead of the normal, and the deviation of a sample
    # instead of a population. The shifts of a single seed are 0.
    freedom = max(count - 1, 1)
    widening = float(t.ppf(0.975, freedom) / norm.ppf(0.975)) * math.sqrt(count / freedom)
    is_same = all(np.array_equal(labels[0], other) for other in labels[1:])
    most = max(map(len, labels))
    part, resamples = max(1, PART_WEIGHTS // most), min(RESAMPLES, max(LEAST_RESAMPLES, MOST_WEIGHTS // most))
    for first in range(0, resamples, part):
        size = min(part, resamples - first)
        weights = []  # of each set of rows, (size, rows)
        for rows in map(len, labels[:1] if is_same else labels):
            drawn = rng.integers(rows, size=(size, rows)) + rows * np.arange(size)[:, None]
            weights.append(np.bincount(drawn.ravel(), minlength=size * rows).reshape(size, rows).astype(float))
        shifts = of_seeds[rng.integers(count, size=(size, count))].mean(axis=1) - of_seeds.mean()
        yield weights * count if is_same else weights, widening * shifts
