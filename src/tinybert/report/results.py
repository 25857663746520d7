"""All results of a run in one tidy frame. Params decide which files are read, not the content of folders."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from tinybert.config.schema import Params
from tinybert.data.tasks import Task, read_task
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError, check_all
from tinybert.pipeline.files import read_json
from tinybert.pipeline.paths import VARIANTS

COLUMNS = ["stage", "task", "model", "seed", "variant", "split", "metric", "value", "is_headline"]
# The leading keys of a stage's metrics file that are columns of the frame; the other keys are the metric's name.
LEVELS = {
    "evaluate": ("split", "variant"),
    "baselines": ("split", "variant"),
    "finetune_student": ("split", "variant"),
    "evaluate_domain": ("variant", "split"),
    "quantize": ("variant",),
    "latency": ("variant",),
    "tokenize": ("split",),
}
BASELINES = ("tfidf", "static")
SYSTEMS = ("teacher", "student", "majority")
# stage -> what its metrics files are called
METRICS_FILES = {
    "prepare_corpus": "",
    "prepare_tokenizer": "",
    "filter_corpus": "",
    "tokenize": "{corpus}",
    "prepare_teacher": "",
    "general_distill": "{general_student}",
    "domain_distill": "{domain_student}-{seed}",
    "evaluate_domain": "{domain_student}-{seed}",
    "prepare_task": "{task}",
    "finetune_teacher": "{task}",
    "augment": "{task}",
    "task_distill_intermediate": "{task}-{student}-{seed}",
    "task_distill_prediction": "{task}-{student}-{seed}",
    "evaluate": "{task}-{student}/{seed}",
    "baselines": "{task}-{baseline}",
    "finetune_student": "{task}-{student}/{seed}",
    "prune": "{task}-{student}-{sparsity}",
    "quantize": "{task}-{model}",
}
# One process, one timing, for several files.
TIMING_FILES = METRICS_FILES | {"evaluate_domain": "", "baselines": "{task}"}
TIMING_FILES |= dict.fromkeys(("evaluate", "finetune_student"), "{task}-{student}")


class Instance(NamedTuple):
    """A stage instance that writes metrics; `name` is what its files are called, empty without a matrix."""

    stage: str
    name: str = ""
    task: str = ""
    model: str = ""
    seed: int | str = ""

    @property
    def path(self) -> Path:
        return paths.metrics(self.stage, self.name)


def stage_instances(params: Params, names: Mapping[str, str] = METRICS_FILES) -> list[Instance]:
    """Lists what wrote these files, one for each combination of the values that params have for the braces."""
    models = {"corpus": ("general", "domain"), "general_student": params.general.students,
              "domain_student": params.domain.students, "student": params.tasks.students,
              "model": params.quantization.models, "baseline": BASELINES}  # fmt: skip
    lists = models | {"task": params.tasks.run, "seed": params.seeds, "sparsity": params.pruning.sparsities_percent}
    found = []
    for stage, name in names.items():
        axes = re.findall(r"{(\w+)}", name)
        for values in product(*(lists[axis] for axis in axes)):
            item: dict[str, Any] = dict(zip(axes, values, strict=True))
            model = "".join(item[axis] for axis in models if axis in item)
            model += f"_pruned{item['sparsity']}" if "sparsity" in item else ""
            found.append(Instance(stage, name.format(**item), item.get("task", ""), model, item.get("seed", "")))
    return found


@dataclass(frozen=True, eq=False)  # identity is its hash: scores.py caches by it
class Results:
    """What the stages left.

    Attributes:
        params: The checked params.
        root: The project's folder.
        tasks: The task of each name.
        trees: The metrics file of each instance.
        frame: All numbers, one a row, with COLUMNS. Latencies are those of the stage "latency", durations have the
            variant "timing". is_headline: whether the metric, on whatever rows, is the task's headline metric.
    """

    params: Params
    root: Path
    tasks: dict[str, Task]
    trees: dict[Instance, dict]
    frame: pd.DataFrame

    def select(self, stage: str, **columns: Any) -> pd.DataFrame:
        """Returns the rows of a stage that have these values in these columns."""
        chosen = self.frame["stage"] == stage
        for column, value in columns.items():
            chosen &= self.frame[column] == value
        return self.frame[chosen]

    def value(self, stage: str, **columns: Any) -> float:
        """Returns one number, NaN where it is not known."""
        return next(iter(self.select(stage, **columns)["value"]), math.nan)

    def read(self, path: Path, parse: Callable[[Path], Any], absent: Any) -> Any:
        """Returns what `parse` reads from a file that DVC need not restore, or `absent`; UserError if it is damaged."""
        try:
            return parse(self.root / path) if (self.root / path).is_file() else absent
        except UserError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OverflowError) as error:
            reason = "".join(c if c.isprintable() else " " for c in str(error))
            raise UserError(f"{path}: damaged ({reason:.100}); fix: run the stage that writes it again") from None


def load_results(params: Params, root: Path) -> Results:
    """Reads all metrics that params ask for; UserError with a line for each file that is missing or damaged."""
    results = Results(params, root, {}, {}, pd.DataFrame())
    check_all(partial(_read_task, results, name) for name in params.tasks.run)  # they say which numbers there must be
    check_all(partial(_read_metrics, results, instance) for instance in stage_instances(params))
    rows = [row for instance, tree in results.trees.items() for row in _rows(instance, tree)]
    for instance in stage_instances(params, TIMING_FILES):
        timing = results.read(paths.timing(instance.stage, instance.name), _mapping, {})
        rows += _rows(instance, {"timing": timing}, ("variant",))
    for instance in stage_instances(params, {"latency": "{task}-{model}"}):
        rows += _rows(instance, results.read(paths.latency(instance.task, instance.model), _mapping, {}))
    frame = pd.DataFrame(rows, columns=COLUMNS[:-1])
    headlines = frame["task"].map({name: task.headline for name, task in results.tasks.items()})
    frame["is_headline"] = frame["metric"].str.rpartition(".")[2] == headlines
    return Results(params, root, results.tasks, results.trees, frame)


def _read_task(results: Results, name: str) -> None:
    results.tasks[name] = read_task(name, results.root)


def _read_metrics(results: Results, instance: Instance) -> None:
    """UserError if the file, or a number without which there is no report, is missing."""
    try:
        tree = results.trees[instance] = _mapping(results.root / instance.path)
        lacking = set(_required(instance, results.tasks)) - {row[4:7] for row in _rows(instance, tree)}
        wrong = f"has no {' '.join(filter(None, min(lacking)))}" if lacking else ""
    except (OSError, ValueError, RecursionError) as error:
        wrong = "missing" if isinstance(error, FileNotFoundError) else "damaged"
    if wrong:
        stage = instance.stage
        raise UserError(f"{instance.path}: {wrong}; stage {stage} writes it; fix: dvc repro {stage}")


def _required(instance: Instance, tasks: Mapping[str, Task]) -> Iterator[tuple[str, str, str]]:
    """(variant, split, metric) of the numbers that a stage must have written."""
    task = tasks.get(instance.task)
    headline, splits = (task.headline, task.dev_splits) if task else ("", ())
    match instance.stage:
        case "evaluate" | "baselines" | "finetune_student":
            yield from product(SYSTEMS, splits, [headline])
            yield from product([""], splits, ["collapsed"])
        case "evaluate_domain":
            yield from product(["teacher", "student"], ["general", "domain"], ["perplexity"])
            yield from product(["teacher", "student"], ["cloze"], ["all.top1"])
        case "quantize":
            yield from product(VARIANTS, [""], [f"dev.{headline}", "size_mb.raw"])
        case "prune":
            yield from product([""], [""], [f"dev.{headline}", "sparsity"])
        case "general_distill" | "domain_distill" | "task_distill_prediction":
            yield from product([""], [""], ["steps", "parameters"])


def _rows(instance: Instance, tree: dict, levels: tuple[str, ...] | None = None) -> Iterator[tuple]:
    """The numbers of a file as rows of the frame."""
    stage, _, task, model, seed = instance
    levels = LEVELS.get(stage, ()) if levels is None else levels
    for keys, value in _numbers(tree):
        used = levels[: len(keys) - 1]
        found = dict(zip(used, keys, strict=False))
        metric = ".".join(keys[len(used) :])
        yield stage, task, model, seed, found.get("variant", ""), found.get("split", ""), metric, value


def _numbers(tree: dict, *outer: str) -> Iterator[tuple[tuple[str, ...], float]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _numbers(value, *outer, key)
        elif isinstance(value, (int, float)):
            yield (*outer, key), float(value)


def _mapping(path: Path) -> dict:
    tree = read_json(path)
    if not isinstance(tree, dict):
        raise ValueError("no mapping")
    return tree
