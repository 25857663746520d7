"""Claims: the files of studies/, the outcomes of their claims by saved predictions, and a page of all claims.

The evidence of a study is a folder: <task>-<seed>.json with the predictions of all variants, and about.json, a list of
the runs that made them. The page follows from these folders and the files of studies/.
"""

import math
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any, Literal, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from pydantic import Field, ValidationError
from scipy.stats import sem, t

from tinybert.config.fields import AboveZero, ConfigModel, ListOf, Name, NonEmptyList, NonEmptyStr, PositiveInt
from tinybert.config.load import describe_mistake, read_yaml
from tinybert.config.schema import Params
from tinybert.evaluate.scoring import ROW_METRICS, Predictions, paired_interval, read_predictions, save_predictions
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import atomic_folder, read_json, write_file, write_json
from tinybert.report.charts import GREY, INK, STYLE, svg_text
from tinybert.report.rendering import ABSENT, TextTable, interval, render, signed, spread, table
from tinybert.synthetic import examples as synthetic

STUDIES = Path("studies")
HOLDS, FAILS, OPEN = "holds", "fails", "inconclusive"
SAME = "identical predictions: the setting had no effect"
MAX_SEEDS = 100
OfSeeds = Mapping[int, Predictions]  # seed -> predictions
VariantPredictions = Mapping[tuple[str, str], OfSeeds]  # (task, variant)
LearnedMap = Mapping[str, Mapping[str, float]]  # seed -> weights, by student and teacher layer
LearnedMaps = Mapping[str, Mapping[str, LearnedMap]]  # task -> variant -> map
Place = Annotated[str, Field(pattern=r"^[a-z_]+/[^:]+:[a-z0-9_{}-]+$")]


class Variant(ConfigModel):
    """Overrides for `dvc exp run -S`; `student` and `measured` if they differ from the study's."""

    set: ListOf[NonEmptyStr] = ()
    student: Name | None = None
    measured: Place | None = None


class Claim(ConfigModel):
    """What was published: a variant beats, equals, is not below or keeps a share of another, or learns its map."""

    claim: Annotated[str, Field(pattern=r"^\S+ (beats|equals|not_below|keeps 0?\.\d+ of|learns_map_of) \S+$")]
    tasks: NonEmptyList[Name] | None = None
    published: NonEmptyStr

    @property
    def sides(self) -> tuple[str, str]:
        """The variant that the claim is about, and the one it is compared with."""
        words = self.claim.split()
        return words[0], words[-1]

    @property
    def share(self) -> float:
        """The claimed share of the other variant's score; 1 except for `keeps`."""
        return float(self.claim.split()[2]) if " keeps " in self.claim else 1.0

    @property
    def is_of_maps(self) -> bool:
        """Whether it compares learnable layer maps instead of scores."""
        return " learns_map_of " in self.claim

    def limits(self, margin: float) -> tuple[float, float]:
        """The open interval of differences for which the claim is true."""
        least = 0.0 if " beats " in self.claim or " keeps " in self.claim else -margin
        return least, margin if " equals " in self.claim or self.is_of_maps else math.inf


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

    def choose_tasks(self, asked: Collection[str] | None, params: Params) -> list[str]:
        """The tasks asked for, or the study's that params have settings and rows for; UserError if there is none."""
        sections = params.tasks.__pydantic_extra__ or {}
        if params.tasks.source == "synthetic":  # some of GLUE's tasks have no synthetic rows
            sections = {task: own for task, own in sections.items() if own.data or task in synthetic.TASKS}
        known = self.tasks if self.measured.startswith("evaluate_domain/") else sections
        usable = [task for task in self.tasks if task in known]
        if unknown := [task for task in asked or () if task not in known]:
            raise UserError(f"--tasks: no section or rows (got {unknown[0]}); allowed: {', '.join(known)}; fix: add it")
        if not usable:
            raise UserError(f"tasks: none of the study's has a section in params.yaml (got {', '.join(sections)}); "
                            f"allowed: {', '.join(self.tasks)}; fix: add one")  # fmt: skip
        return list(asked or usable)

    def in_order(self, measured: VariantPredictions) -> list[str]:
        """The tasks that were measured: first the study's in its order."""
        return sorted({task for task, _ in measured}, key=lambda task: ((*self.tasks, task).index(task), task))


def load_study(name: str) -> Study:
    """Reads studies/<name>.yaml; UserError naming the studies that there are, or the key that is wrong."""
    path = STUDIES / f"{name}.yaml"
    if not path.is_file():
        raise UserError(f"NAME: no such study (got {name}); allowed: {', '.join(study_names())}; fix: correct NAME")
    try:
        return Study.model_validate(read_yaml(path))
    except ValidationError as error:
        # Without "_mismatch" the message quotes the pattern; params.yaml's words are for patterns of names.
        found = [item | {"type": item["type"].removesuffix("_mismatch")} for item in error.errors()]
        raise UserError("\n".join(f"{path}: {describe_mistake(item)}" for item in found)) from None


def study_names() -> list[str]:
    """The files of studies/, without .yaml."""
    return sorted(path.stem for path in STUDIES.glob("*.yaml"))


class Difference(NamedTuple):
    """By how much a variant is better than another, mean over seeds, with its 95 % interval; positive is better."""

    mean: float
    low: float
    high: float


def difference(first: OfSeeds, second: OfSeeds, *, seed: int, share: float = 1.0) -> Difference:
    """Compares a variant with `share` times another's score, by a paired bootstrap over rows and training seeds.

    Args:
        first: The predictions of one variant.
        second: Those of the other, of the same rows and seeds.
        seed: Of the bootstrap.
        share: Of the second's score; if a lower score is better, the second's is divided by it.
    """
    metric = next(iter(first.values())).metric
    sign, factor = (-1, 1 / share) if metric == "perplexity" else (1, share)
    predictions, reference = ([found.predictions for found in side.values()] for side in (first, second))
    labels = [found.labels for found in first.values()]
    ends = paired_interval(ROW_METRICS[metric], predictions, reference, labels, seed=seed, share=factor).values()
    ours, theirs = (mean(found.score for found in side.values()) for side in (first, second))
    return Difference(sign * (ours - factor * theirs), *sorted(sign * end for end in ends))


def map_difference(first: LearnedMap, second: LearnedMap) -> Difference:
    """The mean absolute difference of two learned layer maps' weights, with Student's interval over seeds.

    Weights that are 1 in both are left out: a student layer with one teacher layer has no choice. 0 if none remain.
    """
    pairs = [[(weight, second[seed][name]) for name, weight in weights.items()] for seed, weights in first.items()]
    found = [mean([abs(ours - theirs) for ours, theirs in run if min(ours, theirs) < 1] or [0.0]) for run in pairs]
    half = float(t.ppf(0.975, len(found) - 1) * sem(found)) if len(found) > 1 else math.nan
    return Difference(mean(found), mean(found) - half, mean(found) + half)


def outcome(study: Study, claim: Claim, first: OfSeeds, second: OfSeeds, found: Difference) -> str:
    """The outcome of a claim: it holds or fails if the entire interval says so, otherwise it is inconclusive.

    Variants that were trained separately need more: identical predictions mean that a setting was not in use, and the
    rows of one seed do not show the variance of training.
    """
    if not study.one_training:
        if all(np.array_equal(one.predictions, second[seed].predictions) for seed, one in first.items()):
            return SAME
        if len(first) == 1:
            return OPEN
    least, most = claim.limits(study.margin)
    if least < found.low and found.high < most:
        return HOLDS
    return FAILS if found.high <= least or found.low >= most else OPEN


def seeds_needed(count: int, deviation: float, of_rows: float, distance: float) -> str:
    """How many training seeds would decide an inconclusive claim, if the difference stayed as it is.

    The squared half-width for n seeds is taken as of_rows² + (t · deviation / √n)², t being Student's. This is an upper
    bound, because the interaction of rows and seeds averages out too.

    Args:
        count: Of the seeds measured.
        deviation: The standard deviation of their differences.
        of_rows: Half-width of the interval of a single seed, over rows only.
        distance: Of the difference from the value at which the claim becomes true or false.
    """
    if of_rows >= distance:
        return "more rows"
    for seeds in range(count + 1, MAX_SEEDS + 1):
        if of_rows**2 + float(t.ppf(0.975, seeds - 1)) ** 2 * deviation**2 / seeds < distance**2:
            return f"{seeds} seeds"
    return f"over {MAX_SEEDS} seeds"


def what_decides(study: Study, claim: Claim, first: OfSeeds, second: OfSeeds, *, seed: int) -> str:
    """What would decide an inconclusive claim, in a few words."""
    if study.one_training:
        return "more rows"
    if len(first) == 1 or claim.is_of_maps:
        return "more seeds"
    singles = [difference({one: first[one]}, {one: second[one]}, seed=seed, share=claim.share) for one in first]
    found, of_rows = mean(one.mean for one in singles), mean((one.high - one.low) / 2 for one in singles)
    distance = min(abs(found - limit) for limit in claim.limits(study.margin))
    return seeds_needed(len(first), stdev(one.mean for one in singles), of_rows, distance)


def judge_claims(study: Study, measured: VariantPredictions, *, seed: int, maps: LearnedMaps) -> pd.DataFrame:
    """A row for each claim and task that was measured: what was published, what was found, and the outcome."""
    rows = []
    for claim in study.claims:
        for task in claim.tasks or study.in_order(measured):
            first, second = (measured.get((task, side)) for side in claim.sides)
            learned = [map_of for side in claim.sides if (map_of := maps.get(task, {}).get(side))]
            if first is None or second is None or (claim.is_of_maps and len(learned) < 2):
                continue
            metric = "map weights" if claim.is_of_maps else next(iter(first.values())).metric
            compared = map_difference(*learned) if claim.is_of_maps else None
            found = compared or difference(first, second, seed=seed, share=claim.share)
            result = outcome(study, claim, first, second, found)
            if result == OPEN:
                result += f" ({what_decides(study, claim, first, second, seed=seed)})"
            shown = claim.claim.replace(" not_below ", " not below ").replace(" learns_map_of ", " learns the map of ")
            rows.append((shown, task, metric, claim.published, *found, result))
    return pd.DataFrame(rows, columns=["claim", "task", "metric", "published", "difference", "low", "high", "outcome"])


def _with_interval(value: float, low: float, high: float) -> str:
    return ABSENT if math.isnan(value) else f"{signed(value)} ({interval(low, high)})"


def variants_table(study: Study, measured: VariantPredictions, *, seed: int) -> TextTable:
    """Mean, spread and seeds of each variant, and how much better it is than the first."""
    rows = []
    for task in study.in_order(measured):
        reference = measured.get((task, next(iter(study.variants))))
        for variant in study.variants:
            if (found := measured.get((task, variant))) is None:
                continue
            scores, metric = pd.Series([one.score for one in found.values()]), next(iter(found.values())).metric
            better = Difference(math.nan, math.nan, math.nan)
            if reference and found is not reference:
                better = difference(found, reference, seed=seed)
            rows.append((task, variant, metric, scores.mean(), scores.std(), len(scores), *better))
    columns = ["task", "variant", "metric", "mean", "std", "seeds", "better", "low", "high"]
    return table(pd.DataFrame(rows, columns=columns), columns[:3], {
        "mean": (spread, "mean", "std"), "seeds": ("{:.0f}".format, "seeds"),
        "better than first (95 %)": (_with_interval, "better", "low", "high"),
    })  # fmt: skip


def save_evidence(folder: Path, study: Study, measured: VariantPredictions, about: Mapping[str, Any]) -> None:
    """Replaces the evidence of the tasks that were measured; that of the study's other tasks stays.

    Args:
        folder: Of the study's evidence.
        about: What describes the run: revision, processor, overrides, params, layer_maps.

    Raises:
        UserError: The variants were measured on different rows.
    """
    tasks = study.in_order(measured)
    earlier = read_json(folder / "about.json") if (folder / "about.json").is_file() else []
    others = [run | {"tasks": left} for run in earlier if (left := [one for one in run["tasks"] if one not in tasks])]
    with atomic_folder(folder) as target:
        for task in (task for run in others for task in run["tasks"]):
            for path in folder.glob(f"{task}-*.json"):
                shutil.copy(path, target)
        for task in tasks:
            for seed, first in measured[task, next(iter(study.variants))].items():
                systems = {variant: measured[task, variant][seed] for variant in study.variants}
                for variant, found in systems.items():
                    if not np.array_equal(found.labels, first.labels):
                        where, fix = f"{folder.name}, {task}, seed {seed}, {variant}", "remove them by dvc exp remove"
                        raise UserError(f"{where}: its rows differ from those of the first variant; fix: {fix}")
                save_predictions(target / f"{task}-{seed}.json", systems)
        write_json(target / "about.json", [*others, dict(about) | {"tasks": tasks}])


def read_evidence(folder: Path) -> dict[tuple[str, str], dict[int, Predictions]]:
    """Reads the predictions that `save_evidence` wrote."""
    measured: dict[tuple[str, str], dict[int, Predictions]] = {}
    for path in sorted(folder.glob("*-*.json"), key=lambda path: int(path.stem.rsplit("-", 1)[1])):
        task, seed = path.stem.rsplit("-", 1)
        for variant, found in read_predictions(path.read_text(encoding="utf-8")).items():
            measured.setdefault((task, variant), {})[int(seed)] = found
    return measured


def write_page(folder: Path) -> TextTable:
    """Writes README.md and a chart for each study with evidence in `folder`; returns the table of claims."""
    sections, frames = [], []
    for about in sorted(folder.glob("[!.]*/about.json")):  # a kill may leave hidden folders
        name = about.parent.name
        if name not in study_names():
            raise UserError(f"{about.parent}: no such study in {STUDIES} (got {name}); fix: rm -r {about.parent}")
        study, measured, runs = load_study(name), read_evidence(about.parent), read_json(about)
        seed = runs[0]["params"]["seed"]
        maps = {task: by_variant for run in runs for task, by_variant in run["layer_maps"].items()}
        claims = judge_claims(study, measured, seed=seed, maps=maps)
        variants = variants_table(study, measured, seed=seed)
        if len(claims):
            write_file(about.parent / "claims.svg", _chart(claims, name))
        sections.append({"name": name, "study": study, "runs": runs, "variants": variants, "claims": len(claims)})
        frames.append(claims.assign(study=name))
    if not frames:
        known = ", ".join(study_names())
        raise UserError(f"--folder: no study has run (got {folder}); fix: tinybert study NAME; allowed: {known}")
    shown = table(pd.concat(frames, ignore_index=True), ["study", "claim", "task", "published"], {
        "difference (95 %)": (_with_interval, "difference", "low", "high"), "outcome": (str, "outcome"),
    })  # fmt: skip
    write_file(folder / "README.md", render("claims.md.j2", claims=shown, sections=sections))
    return shown


def _chart(claims: pd.DataFrame, name: str) -> str:
    """An SVG of the differences with their intervals: a panel for each metric, a line for each claim and task."""
    by_metric = list(claims.groupby("metric", sort=False))
    with matplotlib.rc_context(STYLE):
        heights = [1 + len(rows) for _, rows in by_metric]
        figure = Figure(figsize=(7, 0.25 * sum(heights) + 0.4), layout="constrained")
        panels = figure.subplots(len(by_metric), squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
        for (metric, rows), axis in zip(by_metric, panels, strict=True):
            places = np.arange(len(rows))[::-1]
            axis.hlines(places, rows["low"], rows["high"])
            axis.plot(rows["difference"], places, "o", markersize=4)
            axis.axvline(0, color=GREY, linewidth=0.8)
            labels = [f"{claim}, {task}" for claim, task in zip(rows["claim"], rows["task"], strict=True)]
            axis.set(xlabel=f"difference in {metric}, 95 %", yticks=places, yticklabels=labels)
        return svg_text(figure, name).replace(INK, GREY)
