"""Scores by hand: counts of a 2 × 2 table, correlations of three or four numbers."""

import math

import numpy as np
import pytest
from sklearn.metrics import f1_score

from tests.support.builders import classifier
from tests.unit.evaluate.fixed_model import Fixed
from tinybert.config.tasks import TASKS, Task
from tinybert.data.encoding import Encoded, encode
from tinybert.data.tokenizer import train_tokenizer
from tinybert.distill.batches import predict
from tinybert.evaluate.scoring import (
    METRICS,
    ROW_METRICS,
    Predictions,
    compare_splits,
    is_collapsed,
    majority_predictions,
    model_costs,
    read_predictions,
    save_predictions,
    score,
    score_by,
    variant_scores,
)
from tinybert.pipeline.errors import UserError

# 3 true positives, 1 false negative, 2 false positives, 4 true negatives
LABELS = [1, 1, 1, 1, 0, 0, 0, 0, 0, 0]
PREDICTIONS = [1, 1, 1, 0, 1, 1, 0, 0, 0, 0]


def test_saved_predictions_are_those_of_the_first_split():
    references = {}
    for split, labels in {"dev_matched": [0, 1, 2], "dev_mismatched": [2, 1]}.items():
        gold, ids = np.array(labels), [np.zeros(1, dtype=np.int64)] * len(labels)
        references[split] = Encoded(ids, ids, gold), {"teacher": gold, "majority": 0 * gold}
    scores, saved = compare_splits(lambda rows: rows.gold, references, TASKS["mnli"])
    assert list(scores) == list(references) and saved["student"].labels.tolist() == [0, 1, 2]


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


def test_non_finite_predictions_are_reported():
    with pytest.raises(UserError, match=r"stsb: 1 of 2 predictions are not finite.*tasks\.stsb"):
        score(TASKS["stsb"], [float("nan"), 1.0], [1.0, 2.0])


@pytest.mark.parametrize(("predictions", "labels"), [([1, 0], [1]), ([], []), ([[1], [0]], [[1], [0]])])
def test_lengths_must_agree(predictions, labels):
    with pytest.raises(ValueError, match="rows"):
        score(TASKS["rte"], predictions, labels)


def majority_score(task: str, train: list, dev: list) -> dict[str, float]:
    return score(TASKS[task], majority_predictions(TASKS[task], train, len(dev)), dev)


def test_majority_is_that_of_train():
    assert majority_score("mrpc", [1, 1, 0], [0, 0, 1, 0]) == pytest.approx({"accuracy": 0.25, "f1": 0.4})
    assert majority_score("mnli", [2, 0, 2, 1], [2, 2, 0, 1]) == {"accuracy": 0.5}
    assert majority_score("rte", [1, 0], [0, 0, 1, 0]) == {"accuracy": 0.75}  # of equals the first
    assert majority_score("stsb", [1.0, 4.0], [1.0, 2.0, 3.0]) == {"pearson": 0.0, "spearman": 0.0}


def test_a_classifier_with_one_answer_is_collapsed():
    def collapsed(ones, zeros, gold_zeros=100):
        rows = ones + zeros
        return is_collapsed(TASKS["mrpc"], [1] * ones + [0] * zeros, [1] * (rows - gold_zeros) + [0] * gold_zeros)

    assert collapsed(408, 0)
    assert collapsed(406, 2)
    assert collapsed(199, 1)  # exactly 0.5 %
    assert not collapsed(405, 3)
    assert not collapsed(1, 1, gold_zeros=1)
    assert collapsed(1996, 4, gold_zeros=8)
    assert not collapsed(1992, 8, gold_zeros=8)  # a perfect classifier of a rare class
    assert not collapsed(200, 0, gold_zeros=0)  # nothing else was asked


def test_a_regressor_without_spread_is_collapsed():
    task = TASKS["stsb"]
    assert is_collapsed(task, [2.5, 2.5, 2.5], [0.0, 2.0, 5.0])
    assert is_collapsed(task, [2.46, 2.54], [0.0, 5.0])  # standard deviation 0.04
    assert not is_collapsed(task, [2.44, 2.56], [0.0, 5.0])  # 0.06


def test_predictions_come_in_the_order_of_the_rows(tokenizer):
    texts = ["the capital of france", "rome", "a river", "the nile is a river is"]
    rows = [{"sentence": text, "label": number % 2} for number, text in enumerate(texts)]
    examples = encode(rows, TASKS["cola"], tokenizer, max_length_tokens=16)
    assert examples.labels.tolist() == [0, 1, 0, 1]
    by_length = [[0.0, 1.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]  # rome, river, capital, nile
    assert predict(Fixed(by_length), examples, TASKS["cola"]).tolist() == [0, 1, 0, 1]


def test_costs_are_parameters_and_mean_flops_at_real_lengths():
    model = classifier()
    rows = Encoded([np.full(length, 7) for length in (3, 9)], [np.zeros(length) for length in (3, 9)], None)
    expected = {"parameters": model.parameter_count, "flops": (model.flops(3) + model.flops(9)) / 2}
    assert model_costs(model, rows) == expected


def test_comparison_of_student_teacher_and_majority():
    labels = np.array([1, 1, 1, 0])
    dev = Encoded([np.zeros(1, dtype=np.int64)] * 4, [np.zeros(1, dtype=np.int64)] * 4, labels)
    references = {"dev": (dev, {"teacher": labels, "majority": np.ones(4, dtype=int)})}
    scores, saved = compare_splits(lambda rows: np.ones(len(rows), dtype=int), references, TASKS["sst2"])
    compared = scores["dev"]
    assert [compared[who]["accuracy"] for who in ("teacher", "student", "majority")] == [1.0, 0.75, 0.75]
    assert compared["collapsed"] is True
    assert {system: found.score for system, found in saved.items()} == {"student": 0.75, "teacher": 1, "majority": 0.75}
    scores, _ = compare_splits(lambda rows: labels, references, TASKS["sst2"])
    assert scores["dev"]["collapsed"] is False


def test_matthews_equals_that_of_scikit_learn():
    from sklearn.metrics import matthews_corrcoef

    rng = np.random.default_rng(0)
    for classes in (2, 3):
        predictions, labels = rng.integers(classes, size=(2, 500))
        expected = matthews_corrcoef(labels, predictions)
        assert score_by(METRICS["matthews"], predictions, labels) == pytest.approx(expected, abs=1e-12)


def test_spearman_equals_that_of_scipy():
    from scipy.stats import spearmanr

    predictions, labels = np.random.default_rng(0).integers(20, size=(2, 300)) / 4  # with many equal ones
    expected = spearmanr(predictions, labels).statistic
    assert score_by(METRICS["spearman"], predictions, labels) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("metric", "values", "shape"),
    [
        *((metric, (0, 1, 2, 5), (60,)) for metric in METRICS if metric != "micro_f1"),  # without the classes 3 and 4
        ("micro_f1", (0, 1), (60, 4)),
        ("macro_f1", (0, 1), (60, 4)),
        ("perplexity", (1, 2, 3), (60,)),
    ],
)
def test_weights_count_rows_as_often_as_they_say(metric, values, shape):
    rng = np.random.default_rng(0)
    predictions, labels = rng.choice(values, size=(2, *shape))
    weights = rng.integers(4, size=(3, 60))
    found = ROW_METRICS[metric](predictions, labels, weights.astype(float))
    repeated = [(np.repeat(predictions, times, axis=0), np.repeat(labels, times, axis=0)) for times in weights]
    assert found == pytest.approx([score_by(ROW_METRICS[metric], *rows) for rows in repeated], abs=1e-12)
    assert len(set(found)) == 3


@pytest.mark.parametrize("metric", ["pearson", "spearman", "matthews"])
def test_a_resample_with_one_value_has_no_correlation(metric):
    predictions, labels = np.array([1, 1, 0]), np.array([0, 1, 1])
    assert METRICS[metric](predictions, labels, np.array([[1.0, 2.0, 0.0]])).tolist() == [0.0]


def test_macro_f1_leaves_out_classes_that_no_drawn_row_has():
    predictions, labels = np.array([0, 1, 2]), np.array([0, 2, 2])
    weights = np.array([[1.0, 1.0, 1.0], [2.0, 0.0, 1.0]])
    # classes 0, 1, 2: 1, 0, 2/3; without the second row class 1 is neither predicted nor true
    assert METRICS["macro_f1"](predictions, labels, weights) == pytest.approx([5 / 9, 1.0])


@pytest.fixture(scope="module")
def tokenizer():
    text = "the capital of france is paris . the capital of italy is rome . a river is the nile"
    return train_tokenizer([text] * 3, vocabulary_size=200)


def test_pairs_get_segments_and_are_cut_at_the_longer_text(tokenizer):
    row = {"sentence1": "the capital of france is paris", "sentence2": "rome", "label": 1}
    encoded = encode([row], TASKS["mrpc"], tokenizer, max_length_tokens=7)
    pieces = [tokenizer.id_to_token(piece) for piece in encoded.input_ids[0]]
    assert pieces == ["[CLS]", "the", "capital", "of", "[SEP]", "rome", "[SEP]"]
    assert encoded.token_type_ids[0].tolist() == [0, 0, 0, 0, 0, 1, 1]


OWN = Task("mine", ("text",), ("a", "b", "c"), "mine", ("f1", "accuracy", "macro_f1"))
TAGS = Task("tags", ("text",), ("a", "b", "c"), "tags", ("micro_f1", "macro_f1"), kind="multilabel")


@pytest.mark.parametrize("classes", [2, 3, 150])
@pytest.mark.parametrize("seed", range(5))
def test_f1_of_classes_equals_scikit_learns(classes, seed):
    rng = np.random.default_rng(seed)
    labels, predictions = rng.integers(classes, size=(2, 80))
    scores = score(OWN, predictions, labels)
    assert scores["macro_f1"] == pytest.approx(f1_score(labels, predictions, average="macro"))
    assert scores["f1"] == pytest.approx(f1_score(labels == 1, predictions == 1, zero_division=0.0))


@pytest.mark.parametrize("seed", range(5))
def test_f1_of_several_labels_equals_scikit_learns(seed):
    rng = np.random.default_rng(seed)
    labels, predictions = (rng.random((2, 40, 3)) < [0.5, 0.2, 0.0]).astype(np.int64)
    for average, metric in (("micro", "micro_f1"), ("macro", "macro_f1")):
        expected = f1_score(labels, predictions, average=average, zero_division=0.0)
        assert score(TAGS, predictions, labels)[metric] == pytest.approx(expected)


def test_f1_of_rows_without_labels_is_zero():
    nothing = np.zeros((4, 3), dtype=np.int64)
    assert score(TAGS, nothing, nothing) == {"micro_f1": 0.0, "macro_f1": 0.0}
    assert score(OWN, [0, 2], [2, 0]) == {"f1": 0.0, "accuracy": 0.0, "macro_f1": 0.0}


def test_the_majority_and_collapse_of_several_labels():
    train = np.array([[1, 0, 1], [1, 0, 0], [1, 1, 0]])
    assert majority_predictions(TAGS, train, 2).tolist() == [[1, 0, 0]] * 2
    gold = np.array([[0, 1, 0], *[[1, 0, 0]] * 15] * 20)
    assert is_collapsed(TAGS, np.array([[1, 0, 1]] * 300 + [[1, 1, 1]]), gold)
    assert not is_collapsed(TAGS, np.array([[1, 0, 1]] * 30 + [[1, 1, 1]]), gold)


def test_saved_predictions_are_finite(tmp_path):
    save_predictions(tmp_path / "found.json", {"fp32": Predictions("matthews", np.array([0, 1]), np.array([1, 1]))})
    text = (tmp_path / "found.json").read_text()
    read_predictions(text)
    with pytest.raises(ValueError, match="NaN"):
        read_predictions(text.replace("1", "NaN", 1))


def test_predictions_of_several_labels_are_saved_and_compared(tmp_path):
    labels = np.array([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]], dtype=np.float32)
    other = np.array([[1, 0, 1], [0, 1, 0]])
    found = {
        "fp32": Predictions("micro_f1", labels, labels.astype(int)),
        "int8": Predictions("micro_f1", labels, other),
    }
    save_predictions(tmp_path / "found.json", found)
    read = read_predictions((tmp_path / "found.json").read_text())
    assert read["int8"].predictions.tolist() == other.tolist() and read["int8"].score == pytest.approx(0.8)
    scores = variant_scores(read, TAGS, seed=0)
    assert scores["int8"]["agreement"] == 0.5 and scores["fp32"]["agreement"] == 1.0
