"""Scores of a task's predictions: GLUE's metrics, the majority class, retention of the teacher's score, collapse."""

from collections.abc import Callable, Sequence

import numpy as np

from tinybert.data.encoding import Encoded, read_examples
from tinybert.data.tasks import Task
from tinybert.data.tokenizer import load_tokenizer
from tinybert.distill.batches import predict
from tinybert.models.checkpoints import Classifier
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import read_jsonl

# A classifier counts as collapsed if at most this fraction of the rows gets another class (2 of MRPC's 408).
COLLAPSED_OTHER_ROWS = 0.005
# A regressor counts as collapsed if its standard deviation is below this fraction of the score range (STS-B: 0.05).
COLLAPSED_SPREAD = 0.01
# Values that differ by less than this differ by rounding only; a correlation with them would be noise.
CONSTANT_SPREAD = 1e-6

Values = Sequence | np.ndarray


def score(task: Task, predictions: Values, labels: Values) -> dict[str, float]:
    """Computes all metrics of a task by name, the headline metric first; UserError if predictions are not finite.

    Constant predictions have matthews, pearson and spearman 0.0; f1 is that of class 1.

    Args:
        predictions: Class numbers or scores, (rows,).
        labels: Gold classes or scores, (rows,), at least one.
    """
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    if predictions.shape != labels.shape or labels.ndim != 1 or not len(labels):
        raise ValueError(f"predictions {predictions.shape} and labels {labels.shape} must be (rows,), at least one")
    if unusable := int(np.count_nonzero(~np.isfinite(predictions))):
        raise UserError(
            f"{task.name}: {unusable} of {len(labels)} predictions are not finite, the training diverged; "
            f"fix: lower learning_rate in tasks.{task.name}"
        )
    return {metric: float(METRICS[metric](predictions, labels)) for metric in task.metrics}


def evaluate(model: Classifier, examples: Encoded, task: Task) -> dict[str, float]:
    """Computes the task's metrics of a model on labeled examples."""
    return score(task, predict(model, examples, task), examples.gold)


def majority_predictions(task: Task, train_labels: Values, rows: int) -> np.ndarray:
    """Predicts the most frequent training class (the first of equals) or the mean training score, (rows,)."""
    if task.is_regression:
        return np.full(rows, np.mean(train_labels))
    return np.full(rows, np.bincount(np.asarray(train_labels), minlength=len(task.labels)).argmax())


def majority_score(task: Task, train_labels: Values, dev_labels: Values) -> dict[str, float]:
    """Computes the dev scores of `majority_predictions`."""
    return score(task, majority_predictions(task, train_labels, len(dev_labels)), dev_labels)


def retention(student: float, teacher: float, majority: float) -> dict[str, float | None]:
    """Computes how much of the teacher's score the student retains; None if a denominator is not positive."""
    return {
        "plain": student / teacher if teacher > 0 else None,
        "above_majority": (student - majority) / (teacher - majority) if teacher > majority else None,
    }


def is_collapsed(task: Task, predictions: Values) -> bool:
    """Whether the predictions are (nearly) the same for every input, by COLLAPSED_OTHER_ROWS or COLLAPSED_SPREAD."""
    predictions = np.asarray(predictions)
    if task.score_range:
        least, greatest = task.score_range
        return bool(predictions.std() < COLLAPSED_SPREAD * (greatest - least))
    others = len(predictions) - np.bincount(predictions).max()
    return bool(others <= COLLAPSED_OTHER_ROWS * len(predictions))


def predict_references(
    teacher: Classifier, task: Task, *, max_length_tokens: int
) -> dict[str, tuple[Encoded, dict[str, np.ndarray]]]:
    """Each dev split of a task (MNLI has two): its rows, and the predictions of "teacher" and "majority", (rows,)."""
    tokenizer, folder = load_tokenizer(paths.TOKENIZER), paths.task_rows(task.name)
    train_labels = np.array([row["label"] for row in read_jsonl(folder / "train.jsonl")])
    found = {}
    for split in task.dev_splits:
        dev = read_examples(folder / f"{split}.jsonl", task, tokenizer, max_length_tokens=max_length_tokens)
        majority = majority_predictions(task, train_labels, len(dev))
        found[split] = (dev, {"teacher": predict(teacher, dev, task), "majority": majority})
    return found


def compare(predictions: dict[str, np.ndarray], labels: np.ndarray, task: Task) -> dict:
    """Scores "student", "teacher" and "majority" on the same rows, (rows,) each.

    Returns:
        The metrics of each, the student's retention in the headline metric, and whether the student collapsed.
    """
    scores = {system: score(task, found, labels) for system, found in predictions.items()}
    of_headline = (scores[system][task.headline] for system in ("student", "teacher", "majority"))
    return scores | {"retention": retention(*of_headline), "collapsed": is_collapsed(task, predictions["student"])}


def _accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    return np.mean(predictions == labels)


def _f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    from sklearn.metrics import f1_score

    return f1_score(labels, predictions, zero_division=0.0)


def _matthews(predictions: np.ndarray, labels: np.ndarray) -> float:
    from sklearn.metrics import matthews_corrcoef

    if predictions.max(initial=0) > 1 or labels.max(initial=0) > 1:
        return 0.0 if _is_constant(predictions) or _is_constant(labels) else matthews_corrcoef(labels, predictions)
    # Of two classes it is Pearson's coefficient, which is 20 times as fast: a bootstrap asks for it 1,000 times.
    return _pearson(predictions, labels)


def _pearson(predictions: np.ndarray, labels: np.ndarray) -> float:
    if _is_constant(predictions) or _is_constant(labels):
        return 0.0
    return np.corrcoef(predictions, labels)[0, 1]


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
