"""Masked-LM corruption: how many tokens are chosen and what they become."""

import numpy as np
import pytest

from tinybert.distill.masking import Masker

MASKER = Masker(0.15, 0.8, 0.1, special_ids=(0, 1, 2, 3, 4), mask_id=4, vocabulary_size=50)


def test_masking_follows_its_shares():
    rng = np.random.default_rng(0)
    original = rng.integers(5, 50, (400, 100))
    original[:, 0], original[:, -20:] = 2, 0
    ids = original.copy()
    positions, labels = MASKER(ids, rng)
    flat, before = ids.reshape(-1), original.reshape(-1)
    assert np.array_equal(labels, before[positions])
    assert labels.min() >= 5  # specials and padding never
    untouched = np.setdiff1d(np.arange(flat.size), positions)
    assert np.array_equal(flat[untouched], before[untouched])
    assert len(positions) / (400 * 79) == pytest.approx(0.15, abs=0.006)
    assert (flat[positions] == 4).mean() == pytest.approx(0.8 + 0.1 / 50, abs=0.02)
    assert (flat[positions] == labels).mean() == pytest.approx(0.1 + 0.1 / 50, abs=0.02)


def test_at_least_one_token_is_always_predicted():
    positions, _ = MASKER(np.array([[2, 9, 3]]), np.random.default_rng(1))
    assert positions.tolist() == [1]
