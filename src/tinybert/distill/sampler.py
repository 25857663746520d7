"""The order of training rows: random, anew in each epoch.

Batches of rows of like length need less padding, but teach less: docs/log.md, "batches of like length". Here attention
alone computes padding (models/activations.py, RealTokens).
"""

import numpy as np

from tinybert.pipeline.process import stream


def shuffled_batches(rows: int, *, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """The numbers of `rows` rows, each once, as batches of `batch_size`, the last being what remains."""
    order = stream(seed, "order", epoch).permutation(rows)
    return [order[start : start + batch_size] for start in range(0, rows, batch_size)]
