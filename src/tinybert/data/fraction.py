"""A share of a task's training rows."""

from collections.abc import Sequence

from tinybert.pipeline.seeds import stream


def fraction_of(rows: Sequence[dict], fraction: float, *, seed: int) -> list[dict]:
    """A share of `rows` in their order, at least one, drawn at random by the seed.

    fraction: in (0, 1]. The rows of a smaller fraction are among those of a larger one, so that a series of fractions
    compares amounts of data and nothing else.
    """
    wanted = max(1, round(fraction * len(rows)))
    ranks = stream(seed, "train_fraction").permutation(len(rows))
    return [row for row, rank in zip(rows, ranks, strict=True) if rank < wanted]
