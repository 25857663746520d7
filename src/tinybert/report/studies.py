"""Studies: published comparisons as DVC experiments, `tinybert study NAME`.

Runs the experiments of studies/<name>.yaml that are missing, one after another, and writes reports/studies/<name>.md.
An experiment is named <study>-<variant>-<digest>, the digest one of its settings, stages and code: what ran once is
found again, by this study or another, and an interrupted study resumes.
"""

import argparse
import fcntl
import hashlib
import json
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Annotated, Literal, NamedTuple

import numpy as np
import pandas as pd
from pydantic import Field, ValidationError

from tinybert.config.fields import AboveZero, ConfigModel, ListOf, Name, NonEmptyList, NonEmptyStr, PositiveInt
from tinybert.config.load import check_params, load_params, read_yaml
from tinybert.config.schema import Params
from tinybert.data.tasks import TASKS
from tinybert.evaluate.scoring import LOWER_IS_BETTER, ROW_METRICS, Predictions, paired_interval, read_predictions
from tinybert.pipeline.code_digest import code_digest
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import atomic_file, read_json, write_json
from tinybert.pipeline.tracking import git
from tinybert.report.rendering import Table, fixed, interval, render, signed, table

FOLDER, RESULTS = Path("studies"), Path("reports/studies")
NOTE = Path(".dvc/tmp/study.json")  # there while an experiment runs, and after a kill
LOCK = Path(".dvc/tmp/study.lock")
UNUSED = ("report", "package")  # stages that change no prediction
HOLDS, FAILS, OPEN = "holds", "fails", "inconclusive"
SAME = "identical predictions: the setting had no effect"
OfSeeds = Mapping[int, Predictions]  # seed -> predictions
Measured = Mapping[tuple[str, str], OfSeeds]  # (task, variant)
Place = Annotated[str, Field(pattern=r"^[a-z_]+/[^:]+:[a-z0-9_{}-]+$")]


class Variant(ConfigModel):
    """Overrides for `dvc exp run -S`; `student` and `measured` where they differ from the study's."""

    set: ListOf[NonEmptyStr] = ()
    student: Name | None = None
    measured: Place | None = None


class Claim(ConfigModel):
    """What was published: a variant beats another, equals it within the study's margin, or is not below it."""

    claim: Annotated[str, Field(pattern=r"^\S+ (beats|equals|not_below) \S+$")]
    tasks: NonEmptyList[Name] | None = None
    published: NonEmptyStr


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
            for name in claim.claim.split()[::2]:
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


@dataclass(frozen=True)
class Experiment:
    """A DVC experiment: whose predictions it makes for which seeds, by which overrides, running which stages."""

    name: str
    variant: str
    seeds: tuple[int, ...]
    overrides: tuple[str, ...]
    stages: tuple[str, ...]

    @property
    def digest(self) -> str:
        return self.name.rsplit("-", 1)[1]


def main(argv: Sequence[str] | None = None) -> None:
    """Runs a study and prints its tables."""
    parser = argparse.ArgumentParser(prog="tinybert study", description=__doc__)
    parser.add_argument("name", help="a file of studies/, without .yaml")
    parser.add_argument("--tasks", nargs="+", help="only some of the study's tasks")
    parser.add_argument("--seeds", type=int, choices=range(1, 1000), metavar="N", help="instead of the study's number")
    options = parser.parse_args(argv)
    print(conduct(options.name, tasks=options.tasks, seeds=options.seeds))


def conduct(name: str, *, tasks: Sequence[str] | None, seeds: int | None) -> str:
    """Runs the experiments that are missing, compares, writes the result; returns the tables as text."""
    with _only_study():
        check_disturbed_workspace()
        study, params = load_study(name), load_params()
        tasks = study.choose_tasks(tasks, params)
        planned = plan(name, study, params, tasks=tasks, seeds=seeds or study.seeds)
        found_as = finished()
        # Variants with the same settings are one experiment.
        missing = {one.digest: one for one in planned if one.digest not in found_as}
        names = ", ".join(one.variant for one in missing.values()) or "-"
        print(f"{len(planned)} experiments, {len(missing)} to run: {names}")
        for experiment in missing.values():
            run(experiment)
            found_as[experiment.digest] = experiment.name
        measured: dict = {(task, variant): {} for task in tasks for variant in study.variants}
        for one in planned:
            for task in tasks:
                measured[task, one.variant] |= dict(predictions_of(study, one, found_as[one.digest], task))
    variants, claims = (make(study, measured, seed=params.seed) for make in (variants_table, claims_table))
    with atomic_file(RESULTS / f"{name}.md") as handle:
        handle.write(render("study.md.j2", name=name, study=study, variants=variants, claims=claims, planned=planned))
    return f"{study.question}\n\nVariants\n{variants.text()}\n\nClaims\n{claims.text()}\n"


def load_study(name: str) -> Study:
    """Reads studies/<name>.yaml; UserError naming the studies that there are, or the key that is wrong."""
    path = FOLDER / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(path.stem for path in FOLDER.glob("*.yaml")))
        raise UserError(f"NAME: no such study (got {name}); allowed: {known}")
    try:
        return Study.model_validate(read_yaml(path))
    except ValidationError as error:
        lines = (f"{path}: {'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise UserError("\n".join(lines)) from None


def plan(name: str, study: Study, params: Params, *, tasks: Sequence[str], seeds: int) -> list[Experiment]:
    """All experiments of a study in the order of its variants; UserError if a setting is rejected."""
    stages = tuple(sorted({study.measured_of(variant).split("/")[0] for variant in study.variants}))
    code = [code_digest(path.stem) for path in sorted(Path("stages").glob("[a-z]*.py")) if path.stem not in UNUSED]
    numbers, tree, planned = tuple(range(params.seed, params.seed + seeds)), read_yaml("params.yaml"), []
    for variant in study.variants:
        for group in [numbers] if study.repeat == "student" else [(number,) for number in numbers]:
            overrides = tuple(_overrides(study, variant, params, tasks, group))
            settings = changed_params(tree, overrides, f"study {name}, variant {variant}")
            content = json.dumps([settings.model_dump(mode="json"), stages, code], sort_keys=True)
            digest = hashlib.sha256(content.encode()).hexdigest()[:10]
            planned.append(Experiment(f"{name}-{variant}-{digest}", variant, group, overrides, stages))
    return planned


def _overrides(
    study: Study, variant: str, params: Params, tasks: Sequence[str], seeds: tuple[int, ...]
) -> Iterator[str]:
    student = study.variants[variant].student or study.student
    glue_tasks = [task for task in tasks if task in TASKS]
    if glue_tasks:
        yield f"tasks.run=[{','.join(glue_tasks)}]"
        yield f"tasks.students=[{student}]"
        yield f"quantization.models=[teacher,{student}]"
        yield "quantization.max_score_drop=null"  # a study reports what a variant loses
    elif student not in params.domain.students:
        raise UserError(f"domain.students: lacks {student}, which the study compares; fix: add it to params.yaml")
    if student not in params.general.students:
        yield f"general.students=[{','.join((*params.general.students, student))}]"
    if study.repeat == "pipeline":
        yield f"seed={seeds[0]}"
    yield f"seeds=[{','.join(map(str, seeds))}]"
    for text in (*study.set, *study.variants[variant].set):
        text = text.replace("{student}", student)
        yield from [text.replace("{task}", task) for task in glue_tasks] if "{task}" in text else [text]


def changed_params(tree: dict, overrides: Sequence[str], origin: str) -> Params:
    """Applies the overrides of a `dvc exp run -S` to a plain tree and checks it; errors begin with `origin`."""
    from dvc.exceptions import DvcException
    from dvc.utils.hydra import apply_overrides

    with TemporaryDirectory() as folder:
        path = Path(folder) / "params.json"  # read many times as fast as YAML
        write_json(path, tree)
        try:
            apply_overrides(path, list(overrides))
        except DvcException as error:
            raise UserError(f"{origin}: {' '.join(str(error.__cause__ or error).split())}") from None
        return check_params(read_json(path), origin)


def run(experiment: Experiment) -> None:
    """Runs the experiment in a temporary copy of the project; UserError if a stage fails; finished stages are kept."""
    print(f"\n=== {experiment.name}: {' '.join(experiment.overrides)}", flush=True)
    settings = [part for override in experiment.overrides for part in ("-S", override)]
    command = ["exp", "run", "--temp", "--name", experiment.name, *settings, *experiment.stages]
    write_json(NOTE, _workspace())
    code = _run_to_end([sys.executable, "-m", "dvc", *command])
    NOTE.unlink()
    if code:
        raise UserError(f"experiment {experiment.name} failed; fix what is reported above, then run the study again")


def _run_to_end(command: list[str]) -> int:
    """The exit code. Ctrl-C reaches DVC too, which gets the time to restore the workspace."""
    process = subprocess.Popen(command)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.wait()
        raise


def finished() -> dict[str, str]:
    """digest -> name of the experiments that exist, whatever commit they began at."""
    command = [sys.executable, "-m", "dvc", "exp", "list", "--all-commits", "--name-only"]
    listed = subprocess.run(command, capture_output=True, text=True)
    if listed.returncode:
        raise UserError(f"dvc exp list failed: {' '.join(listed.stderr.split())}; a study needs git and .dvc")
    return {name.rsplit("-", 1)[1]: name for name in listed.stdout.split() if "-" in name}


def predictions_of(study: Study, experiment: Experiment, name: str, task: str) -> Iterator[tuple[int, Predictions]]:
    """(seed, predictions) of an experiment's variant for a task, as DVC keeps them under the experiment's name."""
    import dvc.api

    place, system = study.measured_of(experiment.variant).replace("{task}", task).split(":")
    for seed in experiment.seeds:
        file = f"reports/predictions/{place.replace('{seed}', str(seed))}.json"
        try:
            found = read_predictions(dvc.api.read(file, rev=name))[system]
        except Exception as error:
            reason = " ".join(str(error).split())
            raise UserError(
                f"experiment {name}: {file} cannot be read ({reason}); fix: dvc exp remove {name}"
            ) from None
        yield seed, found


@contextmanager
def _only_study() -> Iterator[None]:
    """UserError if another study runs: each would mistake the other's stash for that of a killed one."""
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    with open(LOCK, "a", encoding="utf-8") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError("another study runs in this project; run the command again when it has ended") from None
        yield


def check_disturbed_workspace() -> None:
    """UserError with the commands that restore the workspace, if a kill left it as DVC has it for some seconds.

    To set up an experiment DVC stashes uncommitted changes and leaves the branch for some seconds.
    """
    if not NOTE.is_file():
        return
    before, now = read_json(NOTE), _workspace()
    commands = []
    if before["branch"] and not now["branch"]:
        commands.append(f"git checkout --force {before['branch']}")
    if now["stash"] not in ("", before["stash"]):
        commands.append("git stash pop")
    if commands:
        raise UserError(
            "the study was killed while DVC had put the workspace's changes aside; fix: restore them with "
            f"{' && '.join(commands)} (if nothing is missing: rm {NOTE}), then run the study again"
        )
    NOTE.unlink()


def _workspace() -> dict[str, str]:
    """The branch, empty where none is checked out, and the newest commit of the stash, empty where there is none."""
    stash = git("rev-parse", "--verify", "--quiet", "refs/stash")
    return {"branch": git("symbolic-ref", "--short", "HEAD"), "stash": stash}


class Difference(NamedTuple):
    """By how much a variant is better than another, mean over seeds, with its 95 % interval; positive is better."""

    mean: float
    low: float
    high: float


def difference(first: OfSeeds, second: OfSeeds, *, seed: int) -> Difference:
    """Compares two variants on the same rows and seeds: paired bootstrap over both; UserError if rows differ."""
    for number, found in first.items():
        if not np.array_equal(found.labels, second[number].labels):
            raise UserError(f"seed {number}: variants were measured on different rows; fix: remove their experiments")
    metric = next(iter(first.values())).metric
    sign = -1 if metric in LOWER_IS_BETTER else 1
    ours, theirs = ([found.predictions for found in side.values()] for side in (first, second))
    ends = paired_interval(ROW_METRICS[metric], ours, theirs, [found.labels for found in first.values()], seed=seed)
    lead = mean(found.score for found in first.values()) - mean(found.score for found in second.values())
    return Difference(sign * lead, *sorted(sign * end for end in ends.values()))


def outcome(study: Study, relation: str, first: OfSeeds, second: OfSeeds, found: Difference) -> str:
    """The outcome of a claim from the interval: beats: above 0; equals: within ± margin; not_below: above -margin.

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


def claims_table(study: Study, measured: Measured, *, seed: int) -> Table:
    """Every claim on every task that was measured: what was published, what was found here."""
    rows = []
    for claim in study.claims:
        variant, relation, other = claim.claim.split()
        for task in claim.tasks or study.tasks:
            if (task, variant) in measured:
                first, second = measured[task, variant], measured[task, other]
                found = difference(first, second, seed=seed)
                result = outcome(study, relation, first, second, found)
                rows.append((claim.claim.replace(" not_below ", " not below "), task, claim.published, result, *found))
    columns = ["claim", "task", "published", "outcome", "difference", "low", "high"]
    numbers = {"difference": (signed, "difference"), "95 %": (interval, "low", "high")}
    return table(pd.DataFrame(rows, columns=columns), columns[:4], numbers)
