"""The benchmark of length buckets changes the order of rows, and nothing else."""

from unittest.mock import patch

import numpy as np

from benchmarks.length_buckets import ORDERS, POOL
from tinybert.training.order import shuffled_batches


def spread(pool: int) -> float:
    """Mean difference of the longest and the shortest row of a batch."""
    lengths = np.random.default_rng(0).integers(4, 60, 3200)
    with patch(POOL, pool):
        batches = shuffled_batches(lengths, batch_size=32, rng=np.random.default_rng(1))
    assert sorted(np.concatenate(batches)) == list(range(3200))
    return float(np.mean([np.ptp(lengths[rows]) for rows in batches]))


def test_batches_of_like_length_are_far_narrower_than_random_ones():
    assert spread(ORDERS["like length"]) < 3
    assert spread(ORDERS["random"]) > 40
