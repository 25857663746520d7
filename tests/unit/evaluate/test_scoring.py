"""Scores by hand: counts of a 2 × 2 table, correlations of three or four numbers."""

import math

import numpy as np
import pytest

from tinybert.data.tasks import TASKS
from tinybert.evaluate.scoring import is_collapsed, majority_score, retention, score
from tinybert.pipeline.errors import UserError

# 3 true positives, 1 false negative, 2 false positives, 4 true negatives
LABELS = [1, 1, 1, 1, 0, 0, 0, 0, 0, 0]
PREDICTIONS = [1, 1, 1, 0, 1, 1, 0, 0, 0, 0]


def test_accuracy_and_f1():
    assert score(TASKS["mrpc"], PREDICTIONS, LABELS) == pytest.approx({"accuracy": 0.7, "f1": 6 / 9})


def test_matthews():
    # (tp·tn − fp·fn) / sqrt((tp+fp)(tp+fn)(tn+fp)(tn+fn))
    expected = (3 * 4 - 2 * 1) / math.sqrt(5 * 4 * 6 * 5)
    assert score(TASKS["cola"], PREDICTIONS, LABELS)["matthews"] == pytest.approx(expected)
    assert next(iter(score(TASKS["cola"], PREDICTIONS, LABELS))) == "matthews"


def test_correlations():
    # deviations (−1.5, −0.5, 0.5, 1.5) and (−1.25, 0.75, −0.25, 0.75): 3.25 / sqrt(5 · 2.75); ranks 1 3.5 2 3.5
    scores = score(TASKS["stsb"], [1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 3.0])
    assert scores["pearson"] == pytest.approx(2.5 / math.sqrt(5 * 2.75))
    assert scores["spearman"] == pytest.approx(3.0 / math.sqrt(5 * 4.5))


def test_three_classes_are_scored_by_accuracy_alone():
    assert score(TASKS["mnli"], np.array([0, 1, 2, 2]), np.array([0, 1, 1, 2])) == {"accuracy": 0.75}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("task", "predictions", "labels", "expected"),
    [
        ("cola", [1, 1, 1], [1, 0, 1], {"matthews": 0.0, "accuracy": 2 / 3}),
        ("cola", [1, 1], [1, 1], {"matthews": 0.0, "accuracy": 1.0}),
        ("mrpc", [0, 0], [1, 0], {"accuracy": 0.5, "f1": 0.0}),
        ("mrpc", [0, 0], [0, 0], {"accuracy": 1.0, "f1": 0.0}),
        ("stsb", [2.0, 2.0, 2.0], [1.0, 2.0, 3.0], {"pearson": 0.0, "spearman": 0.0}),
        ("stsb", [2.0, 2.0 + 1e-7, 2.0], [1.0, 2.0, 3.0], {"pearson": 0.0, "spearman": 0.0}),
        ("stsb", [1.0, 2.0], [3.0, 3.0], {"pearson": 0.0, "spearman": 0.0}),
        ("stsb", [1.0], [3.0], {"pearson": 0.0, "spearman": 0.0}),
    ],
)
def test_constant_answers_are_never_nan(task, predictions, labels, expected):
    scores = score(TASKS[task], predictions, labels)
    assert scores == pytest.approx(expected)
    assert all(type(value) is float for value in scores.values())


def test_predictions_that_are_not_finite_are_told():
    with pytest.raises(UserError, match=r"stsb: 1 of 2 predictions are not finite.*glue\.stsb"):
        score(TASKS["stsb"], [float("nan"), 1.0], [1.0, 2.0])


@pytest.mark.parametrize(("predictions", "labels"), [([1, 0], [1]), ([], []), ([[1], [0]], [[1], [0]])])
def test_lengths_must_agree(predictions, labels):
    with pytest.raises(ValueError, match="rows"):
        score(TASKS["rte"], predictions, labels)


def test_majority_is_that_of_train():
    assert majority_score(TASKS["mrpc"], [1, 1, 0], [0, 0, 1, 0]) == pytest.approx({"accuracy": 0.25, "f1": 0.4})
    assert majority_score(TASKS["mnli"], [2, 0, 2, 1], [2, 2, 0, 1]) == {"accuracy": 0.5}
    assert majority_score(TASKS["rte"], [1, 0], [0, 0, 1, 0]) == {"accuracy": 0.75}  # of equals the first
    assert majority_score(TASKS["stsb"], [1.0, 4.0], [1.0, 2.0, 3.0]) == {"pearson": 0.0, "spearman": 0.0}


def test_retention_of_all_and_above_the_majority():
    kept = retention(0.75, 0.90, 0.70)
    assert kept == pytest.approx({"plain": 0.8333333, "above_majority": 0.25})
    assert retention(0.684, 0.852, 0.684)["above_majority"] == 0.0  # the published, collapsed MRPC student


@pytest.mark.parametrize(
    ("teacher", "majority", "expected"),
    [(0.5, 0.5, (0.8, None)), (0.5, 0.6, (0.8, None)), (0.0, 0.0, (None, None)), (-0.1, -0.3, (None, 3.5))],
)
def test_retention_without_a_positive_denominator_is_none(teacher, majority, expected):
    kept = retention(0.4, teacher, majority)
    assert [kept["plain"], kept["above_majority"]] == [
        value if value is None else pytest.approx(value) for value in expected
    ]


def test_a_classifier_with_one_answer_is_collapsed():
    task = TASKS["mrpc"]
    assert is_collapsed(task, [1] * 408)
    assert is_collapsed(task, [1] * 406 + [0] * 2)
    assert is_collapsed(task, [1] * 199 + [0])  # exactly 0.5 %
    assert not is_collapsed(task, [1] * 405 + [0] * 3)
    assert not is_collapsed(task, [0, 1])


def test_a_regressor_without_spread_is_collapsed():
    task = TASKS["stsb"]
    assert is_collapsed(task, [2.5, 2.5, 2.5])
    assert is_collapsed(task, [2.46, 2.54])  # standard deviation 0.04
    assert not is_collapsed(task, [2.44, 2.56])  # 0.06
