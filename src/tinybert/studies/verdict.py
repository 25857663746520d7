"""Does a published claim hold here, fail here, or can this budget not tell?"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

import numpy as np

from tinybert.evaluate.predictions import LOWER_IS_BETTER, ROW_METRICS, Predictions, paired_interval
from tinybert.pipeline.errors import UserError
from tinybert.studies.study import Claim, Study

HOLDS, FAILS, OPEN = "holds here", "fails here", "this budget cannot tell"
SAME = "the same answers: nothing changed"

Measured = Mapping[tuple[str, str], Mapping[int, Predictions]]  # (task, variant) -> seed -> answers


@dataclass(frozen=True)
class Difference:
    """What a variant scores more than another, mean over seeds, with its 95 % interval.

    Of a metric of which less is better, what it scores less: a positive difference is always a better one.
    """

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Finding:
    """A claim on one task, and what was found."""

    claim: Claim
    task: str
    difference: Difference
    verdict: str


def scores(answers: Mapping[int, Predictions]) -> list[float]:
    """The score of each seed."""
    return [found.score for found in answers.values()]


def spread(values: Sequence[float]) -> float | None:
    """Standard deviation (of a sample); None of a single value."""
    return stdev(values) if len(values) > 1 else None


def difference(first: Mapping[int, Predictions], second: Mapping[int, Predictions], *, seed: int) -> Difference:
    """Of two variants by the answers of the same seeds to the same rows: paired bootstrap over both.

    UserError where the rows of a seed are not the same.
    """
    for number, found in first.items():
        if not np.array_equal(found.labels, second[number].labels):
            raise UserError(f"seed {number}: the variants were measured on different rows; remove their experiments")
    metric = next(iter(first.values())).metric
    sign = -1 if metric in LOWER_IS_BETTER else 1
    ours, theirs = ([found.predictions for found in answers.values()] for answers in (first, second))
    labels = [found.labels for found in first.values()]
    interval = paired_interval(ROW_METRICS[metric], ours, theirs, labels, seed=seed)
    low, high = sorted(sign * interval[end] for end in ("low", "high"))
    return Difference(sign * (mean(scores(first)) - mean(scores(second))), low, high)


def verdict(relation: str, found: Difference, margin: float) -> str:
    """By the whole interval: beats: above 0; equals: within ± margin; not_below: above -margin.

    It fails when the whole interval contradicts: not above 0, beyond the margin on one side, below -margin.
    """
    if relation == "beats":
        holds, fails = found.low > 0, found.high <= 0
    elif relation == "equals":
        holds = -margin < found.low and found.high < margin
        fails = found.low > margin or found.high < -margin
    else:
        holds, fails = found.low > -margin, found.high < -margin
    return HOLDS if holds else FAILS if fails else OPEN


def findings(study: Study, measured: Measured, *, tasks: Sequence[str], seed: int) -> Iterator[Finding]:
    """Every claim of the study on every task that it speaks of and that was measured."""
    for claim in study.claims:
        for task in claim.tasks or study.tasks:
            if task in tasks:
                first, second = (measured[task, variant] for variant in (claim.variant, claim.other))
                found = difference(first, second, seed=seed)
                told = verdict(claim.relation, found, study.margin)
                yield Finding(claim, task, found, told if study.one_training else trained_apart(first, second, told))


def trained_apart(first: Mapping[int, Predictions], second: Mapping[int, Predictions], told: str) -> str:
    """The verdict on variants that were each trained: rows alone, of one seed, tell nothing of the chance in training,
    and equal answers say that a setting was not in use.
    """
    if all(np.array_equal(found.predictions, second[seed].predictions) for seed, found in first.items()):
        return SAME
    return told if len(first) > 1 else OPEN
