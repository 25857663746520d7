"""Answers kept row by row."""

import math

import numpy as np
import pytest

from tinybert.config.tasks import TASKS
from tinybert.evaluate.scoring import (
    METRICS,
    Predictions,
    paired_interval,
    read_predictions,
    retention_interval,
    save_predictions,
    score_by,
    variant_scores,
)

ACCURACY = METRICS["accuracy"]


def test_answers_come_back_with_their_score(tmp_path):
    classes = Predictions("accuracy", np.array([1, 0, 1, 1]), np.array([1, 0, 0, 1]))
    scores = Predictions("pearson", np.array([1.0, 2.0, 4.5]), np.array([0.123456789, 2.5, 3.0], dtype=np.float32))
    save_predictions(tmp_path / "answers.json", {"student": classes, "teacher": scores})
    found = read_predictions((tmp_path / "answers.json").read_text())
    assert found["student"].predictions.tolist() == [1, 0, 0, 1]
    assert found["student"].score == 0.75
    assert found["teacher"].predictions.tolist() == [0.123457, 2.5, 3.0]


def test_perplexity_weighs_blocks_by_their_tokens():
    blocks = Predictions("perplexity", np.array([1, 3]), np.array([math.log(2), 3 * math.log(8)]))
    assert blocks.score == pytest.approx(math.exp((math.log(2) + 3 * math.log(8)) / 4))


def test_retention_interval_spreads_over_rows_and_seeds():
    # 400 rows; majority .5, teacher .9, student .7: half of the lead is retained. On rows alone the standard error of
    # the ratio is about .05 (80 rows of the student's, 160 of the teacher's lead, drawn together).
    rows = np.arange(400)
    labels = (rows < 200).astype(int)
    reference = {"labels": labels, "majority": np.ones(400, dtype=int)}
    reference["teacher"] = np.where((rows >= 200) & (rows < 360), 0, 1)
    student = np.where((rows >= 200) & (rows < 280), 0, 1)
    found = retention_interval(METRICS["accuracy"], [student], reference, seed=0)
    assert found == pytest.approx({"low": 0.42, "high": 0.58}, abs=0.02)
    wide = retention_interval(METRICS["accuracy"], [student, reference["majority"]], reference, seed=0)
    assert wide["low"] < 0 and wide["high"] > 1  # two seeds that differ by the whole effect decide nothing


def test_a_teacher_within_noise_of_the_majority_has_no_interval():
    rows = np.arange(400)
    labels = (rows < 200).astype(int)
    majority = np.ones(400, dtype=int)
    teacher = np.where((rows < 20) | ((rows >= 200) & (rows < 224)), 0, 1)  # 24 rows better, 20 worse
    reference = {"labels": labels, "majority": majority, "teacher": teacher}
    assert retention_interval(METRICS["accuracy"], [teacher], reference, seed=0) is None


def test_variants_are_compared_with_fp32():
    labels = np.array([0, 1] * 50)
    found = {"fp32": labels, "int8-qdq": np.where(np.arange(100) < 10, 0, labels), "int8-dynamic": np.zeros(100, int)}
    scores = variant_scores({n: Predictions("accuracy", labels, p) for n, p in found.items()}, TASKS["sst2"], seed=0)
    assert scores["fp32"]["difference_95"] == {"low": 0.0, "high": 0.0}
    assert scores["int8-qdq"]["dev"] == {"accuracy": 0.95} and scores["int8-qdq"]["agreement"] == 0.95
    assert scores["int8-dynamic"]["collapsed"] and not scores["int8-qdq"]["collapsed"]


def test_over_rows_it_is_that_of_a_binomial():
    # 400 rows, of which both have 200 wrong and one 40 more: the difference is -0.1 in the mean, with a standard error
    # of sqrt(.1 · .9 / 400) = .015; ± 1.96 of these. Other rows for each would give more than twice that.
    labels, rows = np.zeros(400, dtype=np.int64), np.arange(400)
    predictions, reference = ((rows < wrong).astype(np.int64) for wrong in (240, 200))
    found = paired_interval(ACCURACY, [predictions], [reference], [labels], seed=0)
    assert found == pytest.approx({"low": -0.1294, "high": -0.0706}, abs=0.004)
    assert found == paired_interval(ACCURACY, [predictions], [reference], [labels], seed=0)


def test_over_seeds_their_spread_counts():
    # One seed loses everything, the other nothing: of two draws a quarter has the mean -1, a quarter 0, .5 from the
    # middle. Of two seeds that is widened by t / 1.96 = 12.706 / 1.96, and by sqrt(2), as of a sample.
    labels, wrong = np.zeros(50, dtype=np.int64), np.ones(50, dtype=np.int64)
    found = paired_interval(ACCURACY, [wrong, labels], [labels, labels], [labels, labels], seed=0)
    half = 0.5 * 12.706 / 1.96 * 2**0.5
    assert found == pytest.approx({"low": -0.5 - half, "high": -0.5 + half}, rel=1e-3)


def test_the_chance_of_rows_is_not_counted_as_that_of_seeds():
    # Three seeds, each wrong on 40 of 400 rows, but not on the same: alike, so that rows are all the chance there is.
    # 120 rows lower the mean by a third each, with a standard error of sqrt(.3 · .7 / 400) / 3 = .0076.
    labels, rows = np.zeros(400, dtype=np.int64), np.arange(400)
    predictions = [((rows >= first) & (rows < first + 40)).astype(np.int64) for first in (0, 40, 80)]
    found = paired_interval(ACCURACY, predictions, [labels] * 3, [labels] * 3, seed=0)
    assert found == pytest.approx({"low": -0.1 - 1.96 * 0.0076, "high": -0.1 + 1.96 * 0.0076}, abs=0.002)


def test_seeds_are_paired():
    # Each pair differs in one of 50 rows, the two pairs in all: seeds drawn for each side would give -9 to 9
    labels, wrong = np.zeros(50, dtype=np.int64), np.ones(50, dtype=np.int64)
    nearly = [np.where(np.arange(50) == 0, 1 - answers, answers) for answers in (wrong, labels)]
    found = paired_interval(ACCURACY, nearly, [wrong, labels], [labels, labels], seed=0)
    assert -0.5 < found["low"] < 0 < found["high"] < 0.5


def test_equal_answers_have_no_difference():
    answers, labels = np.array([0, 1, 1]), np.array([1, 1, 0])
    assert paired_interval(ACCURACY, [answers], [answers.copy()], [labels], seed=0) == {"low": 0.0, "high": 0.0}


def test_seeds_with_rows_of_their_own():
    # The second seed's rows are others, in number too, and all right for both sides: half of the first one's difference
    first, second = np.zeros(40, dtype=np.int64), np.ones(60, dtype=np.int64)
    wrong = 1 - first
    found = paired_interval(ACCURACY, [wrong, second], [first, second], [first, second], seed=0)
    half = 0.5 * 12.706 / 1.96 * 2**0.5
    assert found == pytest.approx({"low": -0.5 - half, "high": -0.5 + half}, rel=1e-3)


@pytest.mark.long
def test_intervals_cover_the_truth_and_are_not_too_wide():
    # 100 studies of three seeds and 1,000 rows; the seeds' true differences scatter by .015 around 0. The measure is
    # Student's t over the three differences, which knows nothing of rows that seeds share.
    rng, held, widths, widths_of_t = np.random.default_rng(0), 0, [], []
    labels = np.zeros(1000, dtype=np.int64)
    for _ in range(100):
        rates = 0.3 + rng.normal(0, 0.015, 3)
        mine, other = ([(rng.random(1000) < rate).astype(np.int64) for rate in given] for given in (rates, [0.3] * 3))
        found = paired_interval(ACCURACY, mine, other, [labels] * 3, seed=0)
        held += found["low"] <= 0 <= found["high"]
        widths.append(found["high"] - found["low"])
        differences = [
            score_by(ACCURACY, a, labels) - score_by(ACCURACY, b, labels) for a, b in zip(mine, other, strict=True)
        ]
        widths_of_t.append(2 * 4.303 * np.std(differences, ddof=1) / 3**0.5)
    assert held >= 93
    assert np.mean(widths) < 1.25 * np.mean(widths_of_t)
