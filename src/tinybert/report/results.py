"""All results of a run in one tidy frame. Params decide which files are read, not the content of folders."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tinybert.config.schema import Params
from tinybert.data.tasks import TASKS
from tinybert.evaluate.predictions import Predictions, read_predictions
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import read_json, read_jsonl
from tinybert.pipeline.paths import VARIANTS

COLUMNS = ["stage", "task", "model", "seed", "variant", "split", "metric", "value"]
# The leading keys of a stage's metrics file that are columns of the frame; the other keys are the metric's name.
LEVELS = {
    "evaluate": ("split", "variant"),
    "evaluate_domain": ("variant", "split"),
    "quantize": ("variant",),
    "latency": ("variant",),
    "tokenize": ("split",),
}
NO_SEED = -1
SYSTEMS = ("teacher", "student", "majority")


class Instance(NamedTuple):
    """A stage instance that writes metrics; `name` is what its files are called, empty without a matrix."""

    stage: str
    name: str = ""
    task: str = ""
    model: str = ""
    seed: int = NO_SEED

    @property
    def path(self) -> Path:
        return paths.metrics(self.stage, self.name)


def stage_instances(params: Params) -> list[Instance]:
    """Lists all stage instances that write metrics, in the order of the pipeline."""
    domain, tasks, seeds = params.domain.students, params.tasks.run, params.seeds
    found = [Instance(stage) for stage in ("prepare_corpus", "prepare_tokenizer", "filter_corpus")]
    found += [Instance("tokenize", corpus, model=corpus) for corpus in ("general", "domain")]
    found += [Instance("prepare_teacher", model="teacher")]
    found += [Instance("general_distill", student, model=student) for student in params.general.students]
    for stage, student, seed in product(("domain_distill", "evaluate_domain"), domain, seeds):
        found.append(Instance(stage, f"{student}-{seed}", "", student, seed))
    for stage, task in product(("prepare_task", "finetune_teacher", "augment"), tasks):
        found.append(Instance(stage, task, task))
    pairs = list(product(tasks, params.tasks.students))
    stages = ("task_distill_intermediate", "task_distill_prediction", "evaluate")
    for stage, (task, student), seed in product(stages, pairs, seeds):
        task_part = f"{task}/" if stage == "evaluate" else f"{task}-"
        found.append(Instance(stage, f"{task_part}{student}-{seed}", task, student, seed))
    for (task, student), percent in product(pairs, params.pruning.sparsities_percent):
        found.append(Instance("prune", f"{task}-{student}-{percent}", task, f"{student}_pruned{percent}", params.seed))
    for task, model in product(tasks, params.quantization.models):
        found.append(Instance("quantize", f"{task}-{model}", task, model, params.seed))
    return found


@dataclass(frozen=True, eq=False)  # identity is its hash: scores.py caches by it
class Results:
    """What the stages left.

    Attributes:
        params: The checked params.
        root: The project's folder.
        trees: The metrics file of each instance.
        frame: All numbers, one a row, with COLUMNS. Latencies are those of the stage "latency", durations have the
            variant "timing".
    """

    params: Params
    root: Path
    trees: dict[Instance, dict]
    frame: pd.DataFrame

    def select(self, stage: str, **columns: Any) -> pd.DataFrame:
        """Returns the rows of a stage that have these values in these columns."""
        chosen = self.frame["stage"] == stage
        for column, value in columns.items():
            chosen &= self.frame[column] == value
        return self.frame[chosen]

    def metrics(self, stage: str, **columns: Any) -> dict[str, float]:
        """Returns the metrics of one instance by name."""
        found = self.select(stage, **columns)
        return dict(zip(found["metric"], found["value"], strict=True))

    def value(self, stage: str, metric: str, **columns: Any) -> float:
        """Returns one number, NaN where it is not known."""
        return self.metrics(stage, **columns).get(metric, math.nan)

    def predictions(self, stage: str, name: str) -> dict[str, Predictions]:
        """Reads the predictions of an instance; empty where its file is absent."""
        return self._read(paths.predictions(stage, name), lambda path: read_predictions(path.read_text("utf-8")), {})

    def quiz_answers(self, student: str) -> list[dict]:
        """Reads the quiz, answered by the teacher and the student of the global seed; empty where it is absent."""

        def answers(path: Path) -> list[dict]:
            return [
                {name: str(row[name]) for name in ("prompt", "answer")}
                | {
                    who: [(str(a["token"]), float(a["probability"])) for a in row[who]]
                    for who in ("teacher", "student")
                }
                for row in read_json(path)
            ]

        return self._read(paths.quiz_answers(student, self.params.seed), answers, [])

    def curve(self, instance: Instance) -> pd.DataFrame:
        """Reads a loss curve, its numbers finite or NaN; empty where it is absent."""

        def curve(path: Path) -> pd.DataFrame:
            found = pd.read_csv(path, encoding="utf-8")
            if "step" not in found:
                raise ValueError("no column step")
            return found.apply(pd.to_numeric, errors="coerce").replace([np.inf, -np.inf], np.nan)

        return self._read(paths.curve(instance.stage, instance.name), curve, pd.DataFrame())

    def variations(self, task: str, limit: int) -> list[dict[str, str]]:
        """Reads the first training row of a task that has variations, and these; at most `limit` rows."""

        def rows(path: Path) -> list[dict[str, str]]:
            group: list[dict] = []
            for row in read_jsonl(path):
                if group and row["idx"] != group[0]["idx"]:
                    if len(group) > 1:
                        break
                    group = []
                group.append(row)
            return [{column: str(row[column]) for column in TASKS[task].columns} for row in group[:limit]]

        return self._read(paths.augmented(task), rows, [])

    def _read(self, path: Path, parse: Callable[[Path], Any], absent: Any) -> Any:
        return _parsed(self.root, path, parse) if (self.root / path).is_file() else absent


def load_results(params: Params, root: Path) -> Results:
    """Reads all metrics that params ask for; UserError with a line for each file that is missing or incomplete."""
    trees: dict[Instance, dict] = {}
    rows: list[tuple] = []
    mistakes = []
    for instance in stage_instances(params):
        try:
            trees[instance] = _mapping(root / instance.path)
            found = list(_rows(instance, trees[instance]))
            lacking = set(_required(instance)) - {row[4:7] for row in found}
            rows += found
            wrong = f"has no {' '.join(filter(None, min(lacking)))}" if lacking else ""
        except FileNotFoundError:
            wrong = "missing"
        except (ValueError, RecursionError):
            wrong = "damaged"
        if wrong:
            stage = instance.stage
            mistakes.append(f"{instance.path}: {wrong}; stage {stage} writes it; fix: dvc repro {stage}")
    if mistakes:
        raise UserError("\n".join(mistakes))
    for path, (owner, variant) in _measured_files(trees).items():
        if (root / path).is_file():
            rows += _rows(owner, _parsed(root, path, _mapping), variant)
    return Results(params, root, trees, pd.DataFrame(rows, columns=COLUMNS))


def _measured_files(instances: Iterable[Instance]) -> dict[Path, tuple[Instance, str]]:
    """The files of timings and latencies, which DVC need not restore: whose they are, and their variant."""
    files = {}
    for instance in instances:
        owner = instance
        if instance.stage == "evaluate":  # one process for all students of the task
            owner = Instance("evaluate", instance.task, instance.task)
        elif instance.stage == "evaluate_domain":
            owner = Instance("evaluate_domain")
        files[paths.timing(owner.stage, owner.name)] = (owner, "timing")
        if instance.stage == "quantize":
            files[paths.latency(instance.task, instance.model)] = (instance._replace(stage="latency"), "")
    return files


def _required(instance: Instance) -> Iterator[tuple[str, str, str]]:
    """(variant, split, metric) of the numbers without which there is no report."""
    task = TASKS[instance.task] if instance.task else None
    headline, dev_splits = (task.headline, task.dev_splits) if task else ("", ())
    match instance.stage:
        case "evaluate":
            yield from ((system, split, headline) for system in SYSTEMS for split in dev_splits)
            yield from (("", split, "collapsed") for split in dev_splits)
        case "evaluate_domain":
            for role in ("teacher", "student"):
                yield from ((role, corpus, "perplexity") for corpus in ("general", "domain"))
                yield role, "cloze", "all.top1"
        case "quantize":
            yield from ((variant, "", f"dev.{headline}") for variant in VARIANTS)
        case "prune":
            yield from (("", "", f"dev.{headline}"), ("", "", "sparsity"))
        case "prepare_task":
            yield "", "", f"majority.{headline}"
        case "prepare_teacher" | "finetune_teacher":
            yield "", "", "layers"
        case "task_distill_intermediate":
            yield "", "", "steps"
        case "general_distill" | "domain_distill" | "task_distill_prediction":
            yield from (("", "", "steps"), ("", "", "parameters"))


def _rows(instance: Instance, tree: dict, variant: str = "") -> Iterator[tuple]:
    """The numbers of a file as rows of the frame."""
    stage, _, task, model, seed = instance
    levels = () if variant else LEVELS.get(stage, ())
    for keys, value in _numbers(tree, ()):
        used = levels[: len(keys) - 1]
        found = {"variant": variant, "split": ""} | dict(zip(used, keys, strict=False))
        yield stage, task, model, seed, found["variant"], found["split"], ".".join(keys[len(used) :]), value


def _numbers(tree: dict, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], float]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _numbers(value, (*keys, key))
        elif isinstance(value, (int, float)):
            yield (*keys, key), float(value)


def _mapping(path: Path) -> dict:
    tree = read_json(path)
    if not isinstance(tree, dict):
        raise ValueError("no mapping")
    return tree


def _parsed(root: Path, path: Path, parse: Callable[[Path], Any]) -> Any:
    """What `parse` reads; whatever damage makes it raise becomes a line that names the file."""
    try:
        return parse(root / path)
    except UserError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OverflowError) as error:
        reason = "".join(c if c.isprintable() else " " for c in str(error))
        raise UserError(f"{path}: damaged ({reason:.100}); fix: run the stage that writes it again") from None
