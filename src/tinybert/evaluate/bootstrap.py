"""How sure the difference of two scores is."""

import math
from collections.abc import Callable, Sequence

import numpy as np

RESAMPLES = 1000


def paired_interval(
    metric: Callable[[np.ndarray, np.ndarray], float],
    predictions: Sequence[np.ndarray],
    reference: Sequence[np.ndarray],
    labels: Sequence[np.ndarray],
    *,
    seed: int,
) -> dict[str, float]:
    """95 % interval of the score of `predictions` less that of `reference`: paired percentile bootstrap.

    metric: of predictions and labels (rows,). predictions, reference, labels: (rows,) each, one for each training seed,
    in the same order. Seeds and rows are drawn with repetition, the same for both (Efron & Tibshirani 1993, ch. 13),
    and the same rows for all seeds where these have the same labels. The difference is the mean over seeds. Rows are
    drawn for all seeds, seeds by their differences on all rows: on drawn ones these would hold the rows' chance a
    second time (what a seed does on single rows is in both, which errs to the wide side). Of few seeds drawing shows
    too little of their spread; it is widened as Student's t is beside the normal. Of one seed the interval is over
    rows alone.
    """
    pairs = list(zip(predictions, reference, labels, strict=True))
    if all(np.array_equal(mine, other) for mine, other, _ in pairs):
        return {"low": 0.0, "high": 0.0}
    rng, widening, differences = np.random.default_rng(seed), _widening(len(pairs)), []
    of_seeds = _differences(metric, pairs, [np.arange(len(one)) for one in labels])
    for _ in range(RESAMPLES):
        on_drawn_rows = _differences(metric, pairs, _rows(labels, rng)).mean()
        of_drawn_seeds = of_seeds[rng.integers(len(pairs), size=len(pairs))].mean()
        differences.append(on_drawn_rows + widening * (of_drawn_seeds - of_seeds.mean()))
    low, high = np.percentile(differences, [2.5, 97.5])
    return {"low": float(low), "high": float(high)}


def _differences(metric: Callable, pairs: Sequence[tuple], rows: Sequence[np.ndarray]) -> np.ndarray:
    """(seeds,) float64: what the metric of the chosen rows says of each pair."""
    return np.array([
        metric(mine[chosen], labels[chosen]) - metric(other[chosen], labels[chosen])
        for (mine, other, labels), chosen in zip(pairs, rows, strict=True)
    ])  # fmt: skip


def _rows(labels: Sequence[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
    """The rows drawn for each seed."""
    first, *others = labels
    if all(np.array_equal(first, other) for other in others):
        return [rng.integers(len(first), size=len(first))] * len(labels)
    return [rng.integers(len(one), size=len(one)) for one in labels]


def _widening(seeds: int) -> float:
    """By how much the spread of drawn means of so few falls short of the 95 % interval of their mean."""
    if seeds == 1:
        return 1.0
    from scipy.stats import norm, t

    return float(t.ppf(0.975, seeds - 1) / norm.ppf(0.975)) * math.sqrt(seeds / (seeds - 1))
