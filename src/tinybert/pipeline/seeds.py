"""Random streams that share nothing: one for each purpose, all decided by the one seed of params."""

import hashlib

import numpy as np


def stream(seed: int, purpose: str, *place: int) -> np.random.Generator:
    """The generator of a purpose ("order", "masks") at a place (epoch, step, row).

    The purpose is hashed into the seed: NumPy drops trailing zeros, so that (42,), (42, 0) and (42, 0, 0)
    alone would be one stream.
    """
    tag = int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:4])
    return np.random.default_rng((tag, len(place), *place, seed))


def torch_seed(seed: int, purpose: str, *place: int) -> int:
    """The same as a number for torch's generators."""
    return int(stream(seed, purpose, *place).integers(2**63))
