"""Masked-LM scores of models with known logits."""

import math

import numpy as np
import pytest
import torch

from tests.support.builders import batch, masked_lm
from tests.unit.evaluate.fixed_model import Fixed
from tinybert.evaluate.language_model import agreement, masked_lm_scores
from tinybert.models.outputs import Batch


def test_masked_lm_scores_by_hand():
    answers = [[[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]], [[0.25, 0.25, 0.5]]]
    batches = [
        batch(labels=torch.tensor([0, 0]), positions=torch.tensor([0, 8])),
        batch(labels=torch.tensor([2]), positions=torch.tensor([1])),
    ]
    found, _ = masked_lm_scores(Fixed(*(np.log(part) for part in answers)), batches)
    loss = -(math.log(0.7) + math.log(0.1) + math.log(0.5)) / 3
    assert found == pytest.approx({"loss": loss, "perplexity": math.exp(loss), "accuracy": 2 / 3}, rel=1e-6)


def test_agreement_by_hand():
    teacher, student = np.log([[0.9, 0.1], [0.6, 0.4]]), np.log([[0.5, 0.5 - 1e-9], [0.2, 0.8]])
    divergence = 0.9 * math.log(1.8) + 0.1 * math.log(0.2) + 0.6 * math.log(3) + 0.4 * math.log(0.5)
    found = agreement(Fixed(student), Fixed(teacher), [batch()])
    assert found == pytest.approx({"top1": 0.5, "kl": divergence / 2}, rel=1e-6)


def test_agreement_with_oneself_is_perfect():
    model, batches = masked_lm(), [batch(positions=torch.tensor([1, 2]))]
    assert agreement(model, model, batches) == pytest.approx({"top1": 1.0, "kl": 0.0}, abs=1e-6)


def test_losses_of_blocks_sum_over_their_masked_tokens():
    batch = Batch(
        torch.zeros(2, 3, dtype=torch.int64),
        torch.ones(2, 3, dtype=torch.bool),
        torch.zeros(2, 3, dtype=torch.int64),
        labels=torch.tensor([1, 0, 1]),
        positions=torch.tensor([0, 4, 5]),  # one in the first row, two in the second
    )
    model = Fixed([[0.0, 0.0], [math.log(3), 0.0], [math.log(3), 0.0]])
    scores, found = masked_lm_scores(model, [batch])
    assert found.labels.tolist() == [1, 2]
    assert found.predictions == pytest.approx([math.log(2), math.log(4 / 3) + math.log(4)])
    assert found.score == pytest.approx(scores["perplexity"])
