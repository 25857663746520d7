"""Published outcomes of results/claims, recomputed from the saved predictions without any code of the project."""

import json
import math
import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm, t

CLAIMS = Path(__file__).resolve().parents[3] / "results/claims"
RESAMPLES, PERCENTILES = 4000, (2.5, 97.5)


def weighted_scores(metric: str, counts: np.ndarray, labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """A score for each row of `counts`, which says how often each dev row was drawn."""
    if metric == "accuracy":
        return counts @ (labels == predictions) / counts.sum(1)
    # Pearson's correlation, which is Matthews' of two binary vectors.
    moments = (counts @ part for part in (labels, predictions, labels**2, predictions**2, labels * predictions))
    x, y, xx, yy, xy = (moment / counts.sum(1) for moment in moments)
    return (xy - x * y) / np.sqrt((xx - x**2) * (yy - y**2))


def recomputed(study: str, task: str, first: str, second: str, share: float) -> tuple[float, float, float]:
    """Mean difference over seeds and its 95 % interval: rows by counts, seeds by all of their equally likely draws."""
    saved = [json.loads(path.read_text()) for path in sorted((CLAIMS / study).glob(f"{task}-*.json"))]
    seeds, rows = len(saved), len(saved[0][first]["labels"])
    counts = np.random.default_rng(1).multinomial(rows, np.full(rows, 1 / rows), size=RESAMPLES).astype(float)
    counts = np.vstack([np.ones(rows), counts])  # the first is the sample itself
    differences = []
    for systems in saved:
        scores = [
            weighted_scores(of["metric"], counts, *(np.array(of[key], float) for key in ("labels", "predictions")))
            for of in (systems[first], systems[second])
        ]
        differences.append(scores[0] - share * scores[1])
    of_seeds = np.array([of[0] for of in differences])
    draws = np.array([np.mean(drawn) for drawn in product(of_seeds, repeat=seeds)]) - of_seeds.mean()
    if seeds > 1:  # Student's t, and the deviation of a sample
        draws = draws * t.ppf(0.975, seeds - 1) / norm.ppf(0.975) * math.sqrt(seeds / (seeds - 1))
    means = np.mean(differences, axis=0)[1:]
    low, high = np.percentile((means[:, None] + draws).ravel(), PERCENTILES)
    return of_seeds.mean(), low, high


@pytest.mark.parametrize(
    ("study", "claim", "task", "share"),
    [
        ("quantization_teacher", "fp32 beats published_qdq", "cola", 1.0),
        ("task_distillation", "student beats fine_tuned", "mrpc", 1.0),
        ("task_distillation", "student keeps 0.944 of teacher", "stsb", 0.944),
        ("intermediate_phase", "prediction_only equals both_phases", "stsb", 1.0),
        ("quantization_student", "fp32 beats published_qdq", "mrpc", 1.0),
    ],
)
def test_differences_and_intervals_are_those_of_the_page(study, claim, task, share):
    lines = (CLAIMS / "README.md").read_text(encoding="utf-8").splitlines()
    (line,) = (line for line in lines if re.match(rf"\| {study} +\| {re.escape(claim)} +\| {task} ", line))
    published = [float(number) for number in re.findall(r"[+-]\d\.\d{3}", line)]
    first, *_, second = claim.split()
    found = recomputed(study, task, first, second, share)
    assert found[0] == pytest.approx(published[0], abs=0.0006)
    # Three standard errors of an end that 1,000 resamples give, and rounding.
    allowed = 0.07 * (published[2] - published[1]) + 0.0005
    assert found[1:] == pytest.approx(published[1:], abs=allowed)
