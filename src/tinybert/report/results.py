"""All results of a run in one tidy frame, and frames of systems with scores and costs that are computed from it.

Params decide which files are read, not the content of folders.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from tinybert.config.schema import Params
from tinybert.config.tasks import Task, read_task
from tinybert.evaluate.scoring import choose_variant
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError, check_all
from tinybert.pipeline.files import flatten, one_line, read_json

COLUMNS = ["stage", "task", "model", "seed", "variant", "split", "metric", "value", "is_headline"]
# The leading keys of a stage's metrics file that are columns of the frame; the other keys are the metric's name.
LEVELS = {
    **dict.fromkeys(("evaluate", "baselines", "finetune_student"), ("split", "variant")),
    "evaluate_domain": ("variant", "split"),
    "tokenize": ("split",),
    **dict.fromkeys(("quantize", "latency"), ("variant",)),
}
BASELINES = {"tfidf": "TF-IDF", "static": "static embeddings"}  # with their names for readers
SYSTEMS = ("teacher", "student", "majority")
SCORED_BY = ("majority", "baselines", "finetune_student", "evaluate", "teacher")  # the order of display
PLACES = ["task", "split", "metric"]
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


@dataclass(eq=False)  # identity is its hash: the frames below are cached by it
class Results:
    """What the stages left.

    Attributes:
        tasks: The task of each name.
        trees: The metrics file of each instance.
        frame: All numbers, one a row, with COLUMNS. Latencies are those of the stage "latency", durations have the
            variant "timing". is_headline: whether the metric, on whatever rows, is the task's headline metric.
    """

    params: Params
    root: Path
    tasks: dict[str, Task]
    trees: dict[Instance, dict]
    frame: pd.DataFrame = field(default_factory=pd.DataFrame)

    def select(self, stage: str, **columns: Any) -> pd.DataFrame:
        """Returns the rows of a stage that have these values in these columns."""
        chosen = self.frame["stage"] == stage
        for column, value in columns.items():
            chosen &= self.frame[column] == value
        return self.frame[chosen]

    def value(self, stage: str, **columns: Any) -> float:
        """Returns one number, NaN if it is not known."""
        return next(iter(self.select(stage, **columns)["value"]), math.nan)

    def read(self, path: Path, parse: Callable[[Path], Any], absent: Any) -> Any:
        """Returns what `parse` reads from a file that DVC need not restore, or `absent`; UserError if it is damaged."""
        try:
            return parse(self.root / path) if (self.root / path).is_file() else absent
        except UserError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OverflowError) as error:
            fix = "run the stage that writes it again"
            raise UserError(f"{path}: damaged ({one_line(error):.100}); fix: {fix}") from None


def load_results(params: Params, root: Path) -> Results:
    """Reads all metrics that params ask for; UserError with a line for each file that is missing or damaged."""
    names, instances = params.tasks.run, stage_instances(params)
    tasks = dict(zip(names, check_all(partial(read_task, name, root) for name in names), strict=True))
    trees = check_all(partial(_read_metrics, root, instance, tasks) for instance in instances)
    results = Results(params, root, tasks, dict(zip(instances, trees, strict=True)))
    rows = [row for instance, tree in results.trees.items() for row in _rows(instance, tree)]
    for instance in stage_instances(params, TIMING_FILES):
        timing = results.read(paths.timing(instance.stage, instance.name), _mapping, {})
        rows += _rows(instance, {"timing": timing}, ("variant",))
    for instance in stage_instances(params, {"latency": "{task}-{model}"}):
        rows += _rows(instance, results.read(paths.latency(instance.task, instance.model), _mapping, {}))
    results.frame = frame = pd.DataFrame(rows, columns=COLUMNS[:-1])
    headlines = frame["task"].map({name: task.headline for name, task in tasks.items()})
    frame["is_headline"] = frame["metric"].str.rpartition(".")[2] == headlines
    return results


def _read_metrics(root: Path, instance: Instance, tasks: Mapping[str, Task]) -> dict:
    """A metrics file; UserError if it, or a number without which there is no report, is missing."""
    try:
        tree = _mapping(root / instance.path)
        lacking = set(_required(instance, tasks)) - {row[4:7] for row in _rows(instance, tree)}
        if not lacking:
            return tree
        wrong = f"has no {' '.join(filter(None, min(lacking)))}"
    except (OSError, ValueError, RecursionError) as error:
        wrong = "missing" if isinstance(error, FileNotFoundError) else "damaged"
    raise UserError(f"{instance.path}: {wrong}; stage {instance.stage} writes it; fix: dvc repro {instance.stage}")


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
            yield from product(paths.VARIANTS, [""], [f"dev.{headline}", "size_mb.raw"])
        case "prune":
            yield from product([""], [""], [f"dev.{headline}", "sparsity"])
        case "general_distill" | "domain_distill" | "task_distill_prediction":
            yield from product([""], [""], ["steps", "parameters"])


def _rows(instance: Instance, tree: dict, levels: tuple[str, ...] | None = None) -> Iterator[tuple]:
    """The numbers of a file as rows of the frame."""
    stage, _, task, model, seed = instance
    levels = LEVELS.get(stage, ()) if levels is None else levels
    for key, value in flatten(tree, "."):
        if isinstance(value, (int, float)):
            *leading, metric = key.split(".", len(levels))
            place = dict(zip(levels, leading, strict=False))
            yield stage, task, model, seed, place.get("variant", ""), place.get("split", ""), metric, float(value)


def _mapping(path: Path) -> dict:
    tree = read_json(path)
    if not isinstance(tree, dict):
        raise ValueError("no mapping")
    return tree


def wide(found: pd.DataFrame, index: list[str]) -> pd.DataFrame:
    """Rows of the tidy frame with a column for each metric; "score" is the task's headline metric."""
    found = found.assign(metric=found["metric"].mask(found["is_headline"], "score"))
    return found.pivot_table(index=index, columns="metric", values="value", sort=False)


@lru_cache(maxsize=64)
def task_systems(results: Results) -> pd.DataFrame:
    """The scores, means over seeds, and the costs of all systems on the tasks.

    Returns:
        One row for each system, task, split and metric, the headline metric first: task, student, split, metric,
        is_headline, teacher, score, std (over seeds, NaN of one), majority, retention (plain), above_majority, and
        collapsed (how many seeds are). A retention whose denominator is not positive is NaN. stage, which wrote them,
        "majority" or "teacher"; model, the name to show; parameters, flops (of a dev row, mean) and row_ms (of the FP32
        ONNX variant), NaN if not known. The rows of one task, split and metric: majority class, linear baselines,
        fine-tuned students, students, teacher.
    """
    found = results.frame[results.frame["stage"].isin(SCORED_BY) & results.frame["split"].str.startswith("dev")]
    found = found.rename(columns={"model": "student"})
    place = ["stage", "task", "student", "split"]
    scores = found[found["variant"].isin(SYSTEMS)].pivot_table(
        index=[*place, "metric", "is_headline"], columns="variant", values="value", aggfunc=["mean", "std"], sort=False
    )
    frame = scores[["mean"]].droplevel(0, axis="columns").rename(columns={"student": "score"})
    frame = frame.assign(std=scores.get(("std", "student"), math.nan)).reset_index()
    score, guess, teacher = frame["score"], frame["majority"], frame["teacher"]
    frame["retention"] = (score / teacher).where(teacher > 0)
    frame["above_majority"] = ((score - guess) / (teacher - guess)).where(teacher > guess)
    collapsed = found[found["metric"] == "collapsed"].groupby(place)["value"].sum().rename("collapsed")
    frame = frame.join(collapsed, on=place)
    unknown = dict.fromkeys(("std", "retention", "above_majority"), math.nan)
    first = frame[frame["stage"] == "evaluate"].drop_duplicates(PLACES).assign(**unknown, collapsed=0)
    references = [first.assign(stage=name, student=name, score=first[name]) for name in ("majority", "teacher")]
    frame = pd.concat([frame, *references])
    frame = frame.sort_values("stage", key=lambda stages: stages.map(SCORED_BY.index), kind="stable")
    frame = pd.concat([group for _, group in frame.groupby(PLACES, sort=False)], ignore_index=True)
    is_tuned = frame["stage"] == "finetune_student"
    frame["model"] = frame["student"].replace(BASELINES).mask(is_tuned, frame["student"] + " fine-tuned")
    costs = results.frame[results.frame["split"] == "costs"].rename(columns={"model": "student"})
    costs.loc[costs["variant"] == "teacher", ["stage", "student"]] = "teacher"
    times = onnx_systems(results).query("variant == 'fp32'").set_index(["task", "model"])["row_ms"]
    place = ["stage", "task", "student"]
    frame = frame.join(wide(costs, place), on=place).join(times, on=["task", "student"])
    return frame.assign(row_ms=frame["row_ms"].mask(is_tuned))  # the fine-tuned are not exported


@lru_cache(maxsize=64)
def domain_scores(results: Results) -> pd.DataFrame:
    """Scores of the teacher, the domain students and an untrained student.

    Returns:
        One row for each model, its name the index. Columns ("mean", key) and ("std", key) over seeds; keys are
        <corpus>.perplexity, cloze.<subject>.top1, agreement.domain.top1 and so on, and parameters. Without domain
        students no rows, and columns for perplexity and accuracy only.
    """
    students, found = results.params.domain.students, results.select("evaluate_domain")
    if not students:
        keys = ("domain.perplexity", "cloze.all.top1")
        return pd.DataFrame(columns=pd.MultiIndex.from_product([("mean", "std"), keys]), dtype=float)
    is_student = found["variant"].isin(["student", "agreement"])
    # All students are compared with one teacher and one untrained model.
    is_first = (found["model"] == students[0]) & (found["seed"] == results.params.seed)
    prefix = found["variant"].map({"agreement": "agreement."}).fillna("")
    names = found["model"].where(is_student, found["variant"])
    found = found.assign(key=prefix + found["split"] + "." + found["metric"], name=names)[is_student | is_first]
    frame = found.pivot_table(index="name", columns="key", values="value", aggfunc=["mean", "std"], sort=False)
    frame = frame.reindex(["teacher", *students, "untrained"])
    parameters = [results.value("domain_distill", model=model, metric="parameters") for model in students]
    frame["mean", "parameters"] = [results.value("prepare_teacher", metric="parameters"), *parameters, parameters[0]]
    return frame


@lru_cache(maxsize=64)
def onnx_systems(results: Results) -> pd.DataFrame:
    """The ONNX variants of the task models.

    Returns:
        One row for each task, model and variant: these, student (the model before pruning), the metrics of stage
        quantize and batch_<n>.median, .p10 and .p90 (ms of n full rows), score, row_ms (ms of a dev row in the largest
        batches); NaN if not measured. chosen: by stage package. beats: the score is above the majority class's.
        sound: beats, and a student that did not collapse. best_size, best_speed: beats, and on the Pareto front of
        score against size or row_ms.
    """
    largest = max(results.params.quantization.latency.batch_sizes)
    batch_ms = f"dev_batch_{largest}.median"
    frame = wide(pd.concat([results.select("quantize"), results.select("latency")]), ["task", "model", "variant"])
    frame = frame.reindex(columns=frame.columns.union([batch_ms, "dev_examples", "collapsed"], sort=False))
    rows = frame["dev_examples"].groupby(["task", "model"]).transform("max").clip(upper=largest)
    frame = frame.assign(row_ms=frame[batch_ms] / rows).drop(columns=[batch_ms, "dev_examples"]).reset_index()
    frame = frame[frame["variant"].isin(paths.VARIANTS)].reset_index(drop=True)
    drop = results.params.quantization.max_score_drop
    measured = [(key.task, key.model, tree) for key, tree in results.trees.items() if key.stage == "quantize"]
    chosen = {(task, model, choose_variant(tree, results.tasks[task].headline, drop)) for task, model, tree in measured}
    frame["chosen"] = [tuple(key) in chosen for key in frame[["task", "model", "variant"]].values]
    unpruned = frame["model"].str.replace(r"_pruned\d+$", "", regex=True)
    frame["student"] = frame["model"].where(frame["model"].isin(results.params.tasks.students), unpruned)
    frame["beats"] = frame["score"] > frame["task"].map(majority_scores(results))
    fallen = results.select("evaluate", metric="collapsed").query("value > 0").set_index(["task", "model"]).index
    has_fallen = frame.set_index(["task", "student"]).index.isin(fallen) | (frame["collapsed"] > 0)
    frame["sound"] = frame["beats"] & (frame["student"] != "teacher") & ~has_fallen
    for name, cost in (("best_size", "size_mb.raw"), ("best_speed", "row_ms")):
        best = [index for _, of_task in frame.groupby("task") for index in pareto(of_task, cost)]
        frame[name] = frame.index.isin(best) & frame["beats"]
    return frame


def pruned_students(results: Results) -> pd.DataFrame:
    """Scores of the pruned students.

    Returns:
        One row for each: task, student, target (%), the metrics of stage prune, score, unpruned (the score of the
        global seed, from which it was pruned), and majority.
    """
    frame = wide(results.select("prune", variant=""), ["task", "model"]).reset_index()
    frame[["student", "target"]] = frame["model"].str.extract(r"(.+)_pruned(\d+)$")
    scores = results.select("evaluate", seed=results.params.seed, variant="student", is_headline=True)
    unpruned = scores.drop_duplicates(["task", "model"]).set_index(["task", "model"])["value"].rename("unpruned")
    return frame.join(unpruned, on=["task", "student"]).assign(majority=frame["task"].map(majority_scores(results)))


def majority_scores(results: Results) -> pd.Series:
    """The majority class's headline score on the first dev split by task."""
    return results.select("prepare_task", is_headline=True).set_index("task")["value"]


def pareto(frame: pd.DataFrame, cost: str) -> list[int]:
    """The index of the rows that no other equals or beats in score and cost, cheapest first; of equals the first."""
    ordered = frame.dropna(subset=[cost]).sort_values([cost, "score"], ascending=[True, False], kind="stable")
    best_cheaper = ordered["score"].cummax().shift(fill_value=-math.inf)
    return list(ordered.index[ordered["score"] > best_cheaper])
