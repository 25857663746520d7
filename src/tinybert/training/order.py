"""The order of training rows: random, yet with rows of like length in a batch, so that little is padding."""

import numpy as np

BATCHES_A_POOL = 50


def shuffled_batches(lengths: np.ndarray, *, batch_size: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Every row once, as batches of `batch_size` row numbers (the last of the shortest pool may be smaller).

    lengths: (rows,) tokens of each row. Rows are shuffled and dealt into pools of 50 batches; each pool is
    sorted by length and cut into batches, and all batches are shuffled: a row meets other partners in each
    epoch, and batches come in no order of length.
    """
    order = rng.permutation(len(lengths))
    batches = []
    for start in range(0, len(order), batch_size * BATCHES_A_POOL):
        pool = order[start : start + batch_size * BATCHES_A_POOL]
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        batches += [pool[first : first + batch_size] for first in range(0, len(pool), batch_size)]
    return [batches[index] for index in rng.permutation(len(batches))]
