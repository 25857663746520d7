"""What a study found: does each claim hold, fail, or is it inconclusive; as tables for terminal and git."""

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from tinybert.evaluate.predictions import LOWER_IS_BETTER, ROW_METRICS, Predictions, paired_interval
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import atomic_file
from tinybert.report.rendering import Table, fixed, interval, render, signed
from tinybert.report.studies import Claim, Experiment, Study

RESULTS = Path("reports/studies")
HOLDS, FAILS, OPEN = "holds", "fails", "inconclusive"
SAME = "identical predictions: the setting had no effect"
OfSeeds = Mapping[int, Predictions]  # seed -> predictions
Measured = Mapping[tuple[str, str], OfSeeds]  # (task, variant)


@dataclass(frozen=True)
class Difference:
    """By how much a variant is better than another, mean over seeds, with its 95 % interval.

    For a metric of which less is better, it is how much less: a positive difference is always a better one.
    """

    mean: float
    low: float
    high: float


def difference(first: OfSeeds, second: OfSeeds, *, seed: int) -> Difference:
    """Compares two variants on the same rows and seeds: paired bootstrap over both; UserError if rows differ."""
    for number, found in first.items():
        if not np.array_equal(found.labels, second[number].labels):
            raise UserError(f"seed {number}: the variants were measured on different rows; remove their experiments")
    metric = next(iter(first.values())).metric
    sign = -1 if metric in LOWER_IS_BETTER else 1
    ours, theirs = ([found.predictions for found in side.values()] for side in (first, second))
    labels = [found.labels for found in first.values()]
    interval = paired_interval(ROW_METRICS[metric], ours, theirs, labels, seed=seed)
    low, high = sorted(sign * interval[end] for end in ("low", "high"))
    means = (mean(found.score for found in side.values()) for side in (first, second))
    return Difference(sign * (next(means) - next(means)), low, high)


def outcome(relation: str, found: Difference, margin: float) -> str:
    """The outcome from the interval: beats: above 0; equals: within ± margin; not_below: above -margin.

    A claim fails if all of the interval contradicts it: not above 0; beyond the margin on one side; below -margin.
    """
    if relation == "beats":
        holds, fails = found.low > 0, found.high <= 0
    elif relation == "equals":
        holds = -margin < found.low and found.high < margin
        fails = found.low > margin or found.high < -margin
    else:
        holds, fails = found.low > -margin, found.high < -margin
    return HOLDS if holds else FAILS if fails else OPEN


def judged(study: Study, claim: Claim, first: OfSeeds, second: OfSeeds, found: Difference) -> str:
    """The outcome of a claim.

    Variants that were trained apart need more: identical predictions mean that a setting was not in use, and the rows
    of one seed say nothing about the variance of training.
    """
    if not study.one_training:
        if all(np.array_equal(found.predictions, second[seed].predictions) for seed, found in first.items()):
            return SAME
        if len(first) == 1:
            return OPEN
    return outcome(claim.relation, found, study.margin)


def write_result(name: str, study: Study, measured: Measured, planned: Sequence[Experiment], *, seed: int) -> str:
    """Writes reports/studies/<name>.md and .svg; returns the tables as text for the terminal."""
    variants, claims = variants_table(study, measured, seed=seed), claims_table(study, measured, seed=seed)
    commands: dict[tuple[str, ...], list[str]] = {}
    for experiment in planned:
        commands.setdefault(experiment.overrides, []).append(experiment.variant)
    markdown = render("study.md.j2", name=name, study=study, variants=variants, claims=claims, commands=commands)
    for ending, text in {"md": markdown, "svg": dot_chart(measured)}.items():
        with atomic_file(RESULTS / f"{name}.{ending}") as handle:
            handle.write(text)
    return f"{study.question}\n\nVariants\n{variants.text()}\n\nClaims\n{claims.text()}\n"


def variants_table(study: Study, measured: Measured, *, seed: int) -> Table:
    """Mean, spread and seeds of each variant, and how much better it is than the first."""
    rows = []
    for (task, variant), found in measured.items():
        values, metric = [one.score for one in found.values()], next(iter(found.values())).metric
        reference = measured[task, next(iter(study.variants))]
        better = difference(found, reference, seed=seed) if found is not reference else None
        deviation = stdev(values) if len(values) > 1 else math.nan
        rows.append((task, variant, metric, fixed(mean(values)), fixed(deviation), str(len(values)), *_cells(better)))
    columns = ["task", "variant", "metric", "mean", "± over seeds", "seeds", "better than first by", "95 %"]
    return Table(pd.DataFrame(rows, columns=columns), names=3)


def claims_table(study: Study, measured: Measured, *, seed: int) -> Table:
    """Every claim on every task that was measured: what was published, what was found here."""
    rows = []
    for claim in study.claims:
        for task in claim.tasks or study.tasks:
            if (task, claim.variant) in measured:
                first, second = measured[task, claim.variant], measured[task, claim.other]
                found = difference(first, second, seed=seed)
                text = f"{claim.variant} {claim.relation.replace('_', ' ')} {claim.other}"
                rows.append((text, task, claim.published, judged(study, claim, first, second, found), *_cells(found)))
    columns = ["claim", "task", "published", "outcome", "difference", "95 %"]
    return Table(pd.DataFrame(rows, columns=columns), names=4)


def _cells(found: Difference | None) -> tuple[str, str]:
    return (signed(found.mean), interval(found.low, found.high)) if found else ("", "")


def dot_chart(measured: Measured) -> str:
    """An SVG file: for each task a row a variant, a dot a seed, a stroke at the mean."""
    tasks = list(dict.fromkeys(task for task, _ in measured))
    with matplotlib.rc_context({"svg.fonttype": "none", "text.parse_math": False, "svg.hashsalt": "study"}):
        variants = max(sum(task == one for one, _ in measured) for task in tasks)
        figure = Figure(figsize=(7, len(tasks) * (0.3 * variants + 0.6)), layout="constrained", facecolor="white")
        for axis, task in zip(figure.subplots(len(tasks), squeeze=False)[:, 0], tasks, strict=True):
            of_task = {variant: found for (one, variant), found in measured.items() if one == task}
            for row, found in enumerate(of_task.values()):
                scores = [one.score for one in found.values()]
                axis.scatter(scores, [row] * len(scores), color="C0", alpha=0.75)
                axis.scatter([mean(scores)], [row], marker="|", s=250, color="C1")
            axis.set_yticks(range(len(of_task)), list(of_task))
            axis.invert_yaxis()
            axis.set_title(task)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return text.getvalue()
