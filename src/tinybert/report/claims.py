"""Claims: the files of studies/, what predictions say about their claims, and a page of all claims.

The evidence of a study is a folder: the predictions of all variants for each task and seed, and about.json. The page
follows from such folders alone.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Literal, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from pydantic import Field, ValidationError

from tinybert.config.fields import AboveZero, ConfigModel, ListOf, Name, NonEmptyList, NonEmptyStr, PositiveInt
from tinybert.config.load import read_yaml
from tinybert.config.schema import Params
from tinybert.data.tasks import TASKS
from tinybert.evaluate.scoring import (
    LOWER_IS_BETTER,
    ROW_METRICS,
    Predictions,
    paired_interval,
    read_predictions,
    save_predictions,
)
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import atomic_file, atomic_folder, read_json, write_json
from tinybert.report.charts import GREY, INK, STYLE, svg_text
from tinybert.report.rendering import Table, fixed, interval, render, signed, table

STUDIES = Path("studies")
HOLDS, FAILS, OPEN = "holds", "fails", "inconclusive"
SAME = "identical predictions: the setting had no effect"
MOST_SEEDS = 100  # a claim that needs more is one for more rows
OfSeeds = Mapping[int, Predictions]  # seed -> predictions
Measured = Mapping[tuple[str, str], OfSeeds]  # (task, variant)
Place = Annotated[str, Field(pattern=r"^[a-z_]+/[^:]+:[a-z0-9_{}-]+$")]


class Variant(ConfigModel):
    """Overrides for `dvc exp run -S`; `student` and `measured` where they differ from the study's."""

    set: ListOf[NonEmptyStr] = ()
    student: Name | None = None
    measured: Place | None = None


class Claim(ConfigModel):
    """What was published: a variant beats another, equals it, is not below it, or keeps a share of its score."""

    claim: Annotated[str, Field(pattern=r"^\S+ (beats|equals|not_below|keeps 0?\.\d+ of) \S+$")]
    tasks: NonEmptyList[Name] | None = None
    published: NonEmptyStr

    @property
    def sides(self) -> tuple[str, str]:
        """The variant that the claim is about, and the one it is compared with."""
        words = self.claim.split()
        return words[0], words[-1]

    @property
    def relation(self) -> str:
        return self.claim.split()[1]

    @property
    def share(self) -> float:
        """The share of the other variant's score that is claimed: 1 except for `keeps`."""
        return float(self.claim.split()[2]) if self.relation == "keeps" else 1.0


class Study(ConfigModel):
    """A file of studies/; the first variant is what the others are compared with.

    Attributes:
        tasks: GLUE tasks, or what `evaluate_domain` predicts.
        measured: <stage>/<instance>:<system> of the predictions; {task}, {student} and {seed} are filled in.
        repeat: What a further seed repeats: the student's distillation, or the whole pipeline with its teacher.
        set: Overrides of every variant; {task} in one gives one for each task.
        one_training: The variants come from one trained model, so rows are the only source of variance.
    """

    question: NonEmptyStr
    source: NonEmptyStr
    tasks: NonEmptyList[Name]
    student: Name
    measured: Place = "evaluate/{task}-{student}/{seed}:student"
    repeat: Literal["student", "pipeline"] = "student"
    seeds: PositiveInt = 3
    margin: AboveZero = 0.01
    one_training: bool = False
    set: ListOf[NonEmptyStr] = ()
    variants: dict[Name, Variant] = Field(min_length=2)
    claims: NonEmptyList[Claim]

    def check(self) -> None:
        for claim in self.claims:
            for name in claim.sides:
                if name not in self.variants:
                    raise ValueError(f"claims: unknown variant (got {name}); allowed: {', '.join(self.variants)}")
            for task in claim.tasks or ():
                if task not in self.tasks:
                    raise ValueError(f"claims: unknown task (got {task}); allowed: {', '.join(self.tasks)}")
        for name in self.variants:
            if self.repeat == "student" and "{seed}" not in self.measured_of(name):
                raise ValueError(f"repeat: student needs {{seed}} in measured (got {name}'s); fix: repeat: pipeline")

    def measured_of(self, variant: str) -> str:
        """The place of a variant's predictions, {task} and {seed} still open."""
        chosen = self.variants[variant]
        return (chosen.measured or self.measured).replace("{student}", chosen.student or self.student)

    def choose_tasks(self, asked: Sequence[str] | None, params: Params) -> list[str]:
        """The tasks asked for, or all that params have settings for; UserError if there is none."""
        usable = [task for task in self.tasks if task not in TASKS or getattr(params.tasks, task, None)]
        if unknown := [task for task in asked or () if task not in usable]:
            raise UserError(f"--tasks: not in this study or in params.yaml (got {unknown[0]}); allowed: {usable}")
        if not usable:
            raise UserError(f"params.yaml has settings for none of the study's tasks: {', '.join(self.tasks)}")
        return list(asked or usable)


def load_study(name: str) -> Study:
    """Reads studies/<name>.yaml; UserError naming the studies that there are, or the key that is wrong."""
    path = STUDIES / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(path.stem for path in STUDIES.glob("*.yaml")))
        raise UserError(f"NAME: no such study (got {name}); allowed: {known}")
    try:
        return Study.model_validate(read_yaml(path))
    except ValidationError as error:
        lines = (f"{path}: {'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise UserError("\n".join(lines)) from None


class Difference(NamedTuple):
    """By how much a variant is better than another, mean over seeds, with its 95 % interval; positive is better."""

    mean: float
    low: float
    high: float


def difference(first: OfSeeds, second: OfSeeds, *, seed: int, share: float = 1.0) -> Difference:
    """Compares a variant with `share` times the score of another on the same rows and seeds; UserError if rows differ.

    The interval comes from a paired bootstrap over rows and seeds.
    """
    for number, found in first.items():
        if not np.array_equal(found.labels, second[number].labels):
            raise UserError(f"seed {number}: variants were measured on different rows; fix: remove their experiments")
    metric = next(iter(first.values())).metric
    sign = -1 if metric in LOWER_IS_BETTER else 1
    ours, theirs = ([found.predictions for found in side.values()] for side in (first, second))
    labels = [found.labels for found in first.values()]
    ends = paired_interval(ROW_METRICS[metric], ours, theirs, labels, seed=seed, share=share)
    lead = mean(found.score for found in first.values()) - share * mean(found.score for found in second.values())
    return Difference(sign * lead, *sorted(sign * end for end in ends.values()))


def outcome(study: Study, relation: str, first: OfSeeds, second: OfSeeds, found: Difference) -> str:
    """The outcome of a claim from the interval: beats, keeps: above 0; equals: within ± margin; not_below: > -margin.

    A claim fails if the entire interval contradicts it: not above 0; beyond the margin on one side; below -margin.
    Variants that were trained separately need more: identical predictions mean that a setting was not in use, and the
    rows of one seed do not show the variance of training.
    """
    if not study.one_training:
        if all(np.array_equal(one.predictions, second[seed].predictions) for seed, one in first.items()):
            return SAME
        if len(first) == 1:
            return OPEN
    margin = study.margin
    holds, fails = {
        "beats": (found.low > 0, found.high <= 0),
        "keeps": (found.low > 0, found.high <= 0),
        "equals": (-margin < found.low and found.high < margin, found.low > margin or found.high < -margin),
        "not_below": (found.low > -margin, found.high < -margin),
    }[relation]
    return HOLDS if holds else FAILS if fails else OPEN


def variants_table(study: Study, measured: Measured, *, seed: int) -> Table:
    """Mean, spread and seeds of each variant, and how much better it is than the first."""
    rows = []
    for (task, variant), found in measured.items():
        scores = pd.Series([one.score for one in found.values()])
        reference, metric = measured[task, next(iter(study.variants))], next(iter(found.values())).metric
        better = difference(found, reference, seed=seed) if found is not reference else Difference(*[math.nan] * 3)
        rows.append((task, variant, metric, scores.mean(), scores.std(), len(scores), *better))
    columns = ["task", "variant", "metric", "mean", "std", "seeds", "better", "low", "high"]
    return table(pd.DataFrame(rows, columns=columns), columns[:3], {
        "mean": (fixed, "mean"), "± over seeds": (fixed, "std"), "seeds": ("{:.0f}".format, "seeds"),
        "better than first by": (signed, "better"), "95 %": (interval, "low", "high"),
    })  # fmt: skip


def seeds_needed(study: Study, claim: Claim, first: OfSeeds, second: OfSeeds, found: Difference) -> str:
    """How many training seeds would decide an inconclusive claim, if the measured difference stayed as it is.

    The interval's half-width is taken as the root of a part from the rows, which further seeds leave as it is, and one
    from the seeds, Student's t times their standard error. Returns "more rows" if no number up to MOST_SEEDS suffices.
    """
    from scipy.stats import t

    count, share = len(first), claim.share
    if count == 1:
        return "2 or more"
    deviation = stdev(one.score - share * second[seed].score for seed, one in first.items())

    def of_seeds(seeds: int) -> float:
        return float(t.ppf(0.975, seeds - 1)) * deviation / math.sqrt(seeds)

    of_rows = max(0.0, (found.high - found.low) ** 2 / 4 - of_seeds(count) ** 2)
    # How far the difference is from the value at which the claim turns from true to false.
    distance = {
        "equals": abs(abs(found.mean) - study.margin),
        "not_below": abs(found.mean + study.margin),
    }.get(claim.relation, abs(found.mean))
    enough = (n for n in range(count + 1, MOST_SEEDS + 1) if of_rows + of_seeds(n) ** 2 < distance**2)
    return str(next(enough, "more rows"))


def judged(study: Study, measured: Measured, *, seed: int) -> pd.DataFrame:
    """A row for each claim and task that was measured: what was published, what was found, and the outcome."""
    rows = []
    for claim in study.claims:
        for task in claim.tasks or study.tasks:
            first, second = (measured.get((task, side)) for side in claim.sides)
            if first is None or second is None:
                continue
            found = difference(first, second, seed=seed, share=claim.share)
            result = outcome(study, claim.relation, first, second, found)
            needed = seeds_needed(study, claim, first, second, found) if result == OPEN else ""
            rows.append((claim.claim.replace("not_below", "not below"), task, claim.published, *found, result, needed))
    columns = ["claim", "task", "published", "difference", "low", "high", "outcome", "needed"]
    return pd.DataFrame(rows, columns=columns)


def claims_table(claims: pd.DataFrame) -> Table:
    """The rows of `judged` as they are shown."""
    shown = {
        "difference, 95 %": (_with_interval, "difference", "low", "high"),
        "outcome": (str, "outcome"),
        "seeds needed": (str, "needed"),
    }
    return table(claims, ["claim", "task", "published"], shown)


def _with_interval(value: float, low: float, high: float) -> str:
    return f"{signed(value)} [{signed(low)}, {signed(high)}]"


def save_evidence(folder: Path, study: Study, measured: Measured, about: Mapping[str, object]) -> None:
    """Replaces the folder of a study's evidence: <task>-<seed>.json with the predictions by variant, and about.json."""
    with atomic_folder(folder) as target:
        write_json(target / "about.json", about)
        for task in dict.fromkeys(task for task, _ in measured):
            of_task = {variant: measured[task, variant] for variant in study.variants}
            for seed in next(iter(of_task.values())):
                systems = {variant: found[seed] for variant, found in of_task.items()}
                save_predictions(target / f"{task}-{seed}.json", systems)


def read_evidence(folder: Path) -> dict[tuple[str, str], dict[int, Predictions]]:
    """Reads the predictions that `save_evidence` wrote."""
    measured: dict[tuple[str, str], dict[int, Predictions]] = {}
    for path in sorted(folder.glob("*-*.json")):
        task, seed = path.stem.rsplit("-", 1)
        for variant, found in read_predictions(path.read_text(encoding="utf-8")).items():
            measured.setdefault((task, variant), {})[int(seed)] = found
    return measured


def write_page(folder: Path) -> Table:
    """Writes the page of all studies that have evidence in `folder`, README.md and a chart each; returns its table."""
    sections, every = [], []
    for about in sorted(folder.glob("*/about.json")):
        name = about.parent.name
        study, measured, details = load_study(name), read_evidence(about.parent), read_json(about)
        seed = details["params"]["seed"]
        claims, variants = judged(study, measured, seed=seed), variants_table(study, measured, seed=seed)
        with atomic_file(about.parent / "claims.svg") as handle:
            handle.write(_chart(claims, name))
        sections.append({"name": name, "study": study, "about": details, "variants": variants})
        every.append(claims)
    if not every:
        raise UserError(f"{folder}: no evidence; fix: run a study first")
    shown = claims_table(pd.concat(every))
    with atomic_file(folder / "README.md") as handle:
        handle.write(render("claims.md.j2", claims=shown, sections=sections))
    return shown


def _chart(claims: pd.DataFrame, name: str) -> str:
    """An SVG of the differences with their intervals, a line for each claim and task."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7, 0.6 + 0.25 * len(claims)), layout="constrained")
        axis = figure.subplots()
        places = np.arange(len(claims))[::-1]
        reach = np.abs([claims["low"] - claims["difference"], claims["high"] - claims["difference"]])
        axis.errorbar(claims["difference"], places, xerr=reach, fmt="o", markersize=4, capsize=2)
        axis.axvline(0, color=GREY, linewidth=0.8)
        labels = [f"{claim}, {task}" for claim, task in zip(claims["claim"], claims["task"], strict=True)]
        axis.set(xlabel="difference with its 95 % interval", yticks=places, yticklabels=labels)
        return svg_text(figure, name).replace(INK, GREY)
