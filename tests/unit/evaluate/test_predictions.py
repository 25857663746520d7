"""Answers kept row by row."""

import math

import numpy as np
import pytest

from tinybert.evaluate.predictions import Predictions, read_predictions, save_predictions


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
