"""Scores of a task's predictions, the score of guessing the majority, and how much of the teacher is kept."""

from collections.abc import Callable, Sequence

import numpy as np

from tinybert.data.tasks import Task
from tinybert.pipeline.errors import UserError

# A classifier may put this share of the rows elsewhere and still count as always giving one answer (2 of MRPC's 408).
COLLAPSED_OTHER_ROWS_SHARE = 0.005
# A regressor is collapsed when its standard deviation is below this share of the score range (0.05 of STS-B's 0 to 5).
COLLAPSED_SPREAD_SHARE = 0.01
# Values closer together than this differ by rounding only; a correlation with them would be noise.
CONSTANT_SPREAD = 1e-6


def score(task: Task, predictions: Sequence | np.ndarray, labels: Sequence | np.ndarray) -> dict[str, float]:
    """All metrics of `task`, headline first, each a float: predictions and labels are (rows,) classes or scores.

    Constant predictions have matthews, pearson and spearman 0.0; f1 is that of class 1. ValueError when lengths differ
    or there are no rows; UserError when predictions are not finite.
    """
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    if predictions.shape != labels.shape or labels.ndim != 1 or not len(labels):
        raise ValueError(f"predictions {predictions.shape} and labels {labels.shape} must be (rows,), at least one")
    if unusable := int(np.count_nonzero(~np.isfinite(predictions))):
        raise UserError(
            f"{task.name}: {unusable} of {len(labels)} predictions are not finite, the training diverged; "
            f"lower learning_rate in tasks.{task.name}"
        )
    return {metric: float(METRICS[metric](predictions, labels)) for metric in task.metrics}


def majority_score(
    task: Task, train_labels: Sequence | np.ndarray, dev_labels: Sequence | np.ndarray
) -> dict[str, float]:
    """The dev scores of always predicting the commonest train class (of equals the first), or the mean train score."""
    if task.is_regression:
        guess = np.mean(train_labels)
    else:
        guess = np.bincount(np.asarray(train_labels), minlength=len(task.labels)).argmax()
    return score(task, np.full(len(dev_labels), guess), dev_labels)


def retention(student: float, teacher: float, majority: float) -> dict[str, float | None]:
    """How much of the teacher's score the student keeps: "plain" of all, "above_majority" of what guessing lacks.

    student / teacher and (student − majority) / (teacher − majority); None where the denominator is not positive.
    """
    return {
        "plain": student / teacher if teacher > 0 else None,
        "above_majority": (student - majority) / (teacher - majority) if teacher > majority else None,
    }


def is_collapsed(task: Task, predictions: Sequence | np.ndarray) -> bool:
    """Whether the predictions are one answer whatever the input.

    Classification: all rows, but for at most 0.5 %, get one class. Regression: the standard deviation is below 1 % of
    the score range.
    """
    predictions = np.asarray(predictions)
    if task.score_range:
        least, greatest = task.score_range
        return bool(predictions.std() < COLLAPSED_SPREAD_SHARE * (greatest - least))
    others = len(predictions) - np.bincount(predictions).max()
    return bool(others <= COLLAPSED_OTHER_ROWS_SHARE * len(predictions))


def _accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    return np.mean(predictions == labels)


def _f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    from sklearn.metrics import f1_score

    return f1_score(labels, predictions, zero_division=0.0)


def _matthews(predictions: np.ndarray, labels: np.ndarray) -> float:
    from sklearn.metrics import matthews_corrcoef

    return 0.0 if _is_constant(predictions) or _is_constant(labels) else matthews_corrcoef(labels, predictions)


def _pearson(predictions: np.ndarray, labels: np.ndarray) -> float:
    from scipy.stats import pearsonr

    return 0.0 if _is_constant(predictions) or _is_constant(labels) else pearsonr(predictions, labels).statistic


def _spearman(predictions: np.ndarray, labels: np.ndarray) -> float:
    from scipy.stats import spearmanr

    return 0.0 if _is_constant(predictions) or _is_constant(labels) else spearmanr(predictions, labels).statistic


def _is_constant(values: np.ndarray) -> bool:
    return np.ptp(values) <= CONSTANT_SPREAD


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "matthews": _matthews,
    "pearson": _pearson,
    "spearman": _spearman,
}
