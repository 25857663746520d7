"""What the stages left: metrics, latencies, timings, curves, answers, found by the lists of params alone."""

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinybert.compress.serving import VARIANTS
from tinybert.config.schema import Params
from tinybert.data.tasks import TASKS
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import read_json, read_jsonl

Curve = dict[str, list[float | None]]  # column -> its numbers in the order of steps; None: no number there


def stage_instances(params: Params) -> list[tuple[str, str]]:
    """All (stage, instance) pairs that write metrics, in the order of the pipeline; "" is a stage without a matrix."""
    students = [f"{task}-{student}" for task in params.tasks.run for student in params.tasks.students]
    percents = params.pruning.sparsities_percent
    return [
        *((stage, "") for stage in ("prepare_corpus", "prepare_tokenizer", "filter_corpus")),
        *(("tokenize", corpus) for corpus in ("general", "domain")),
        ("prepare_teacher", ""),
        *(("general_distill", student) for student in params.general.students),
        *(("domain_distill", student) for student in params.domain.students),
        *(("evaluate_domain", student) for student in params.domain.students),
        *((stage, task) for stage in ("prepare_task", "finetune_teacher", "augment") for task in params.tasks.run),
        *(("task_distill_intermediate", instance) for instance in students),
        *(("task_distill_prediction", instance) for instance in students),
        *(("evaluate", instance) for instance in students),
        *(("repeat_task_distill", f"{instance}-{seed}") for instance in students for seed in params.seeds),
        *(("prune", f"{instance}-{percent}") for instance in students for percent in percents),
        *(("quantize", f"{task}-{model}") for task in params.tasks.run for model in params.quantization.models),
    ]


@dataclass(frozen=True)
class Results:
    """Everything the report shows. metrics: (stage, instance) -> the content of its metrics file."""

    params: Params
    root: Path
    metrics: dict[tuple[str, str], dict]

    def value(self, stage: str, instance: str, *keys: str) -> Any:
        """The entry under `keys` in a metrics file; UserError when the file has none."""
        node = self.metrics[stage, instance]
        for key in keys:
            if not isinstance(node, dict) or key not in node:
                file = paths.metrics(stage, instance)
                raise UserError(f"{file}: has no {'.'.join(keys)}; run the stage again: {_rerun(stage, instance)}")
            node = node[key]
        return node

    def timing(self, stage: str, instance: str) -> dict | None:
        """Seconds and peak memory of the last run of a stage here, which may have had other settings where DVC restored
        the outputs of these; None when it never ran here.
        """
        return self._optional(paths.timing(stage, instance), dict)

    def latency(self, task: str, model: str) -> dict | None:
        """Latencies of the ONNX forms of a task model; None when they are not there."""
        return self._optional(paths.latency(task, model), dict)

    def answers(self, student: str) -> list[dict]:
        """The quiz answered by teacher and student; empty when it is not there."""
        return self._optional(paths.quiz_answers(student), list) or []

    def curve(self, stage: str, instance: str) -> Curve:
        """The loss curve of a stage, by column; empty when it is not there."""
        path = self.root / paths.curve(stage, instance)
        if not path.is_file():
            return {}
        try:
            with open(path, encoding="utf-8", newline="") as handle:
                rows = list(csv.DictReader(handle, restkey="", strict=True))
            if rows and "step" not in rows[0]:
                raise ValueError("no column step")
        except (ValueError, csv.Error) as error:
            file = paths.curve(stage, instance)
            raise UserError(f"{file}: no table ({error}); run the stage again: {_rerun(stage, instance)}") from None
        return {column: [_number(row[column]) for row in rows] for column in rows[0] if column} if rows else {}

    def variations(self, task: str, limit: int) -> list[dict]:
        """The first augmented rows of a task that belong to one original, which comes first; at most `limit`."""
        path = self.root / paths.augmented(task)
        if not path.is_file():
            return []
        group: list[dict] = []
        for row in read_jsonl(path):
            if group and row.get("idx") != group[0].get("idx"):
                if len(group) > 1:
                    break
                group = []
            group.append(row)
        return group[:limit]

    def _optional(self, path: Path, kind: type) -> Any:
        if not (self.root / path).is_file():
            return None
        try:
            return _named(read_json(self.root / path), path, kind)
        except ValueError:
            raise UserError(f"{path}: no valid JSON; remove it, or run the stage that writes it again") from None


def load_results(params: Params, root: Path) -> Results:
    """Reads all metrics files that params ask for; UserError with a line for each that is missing or broken."""
    metrics, mistakes = {}, []
    for stage, instance in stage_instances(params):
        path = paths.metrics(stage, instance)
        try:
            metrics[stage, instance] = _named(read_json(root / path), path, dict)
        except FileNotFoundError:
            mistakes.append(f"{path}: missing; stage {stage} writes it: {_rerun(stage, instance)}")
        except ValueError:
            mistakes.append(f"{path}: no valid JSON; stage {stage} writes it: {_rerun(stage, instance)}")
    if mistakes:
        raise UserError("\n".join(mistakes))
    return Results(params, root, metrics)


def onnx_models(results: Results) -> Iterator[tuple[str, str, str, dict]]:
    """(task, model, form, its metrics) of each quantized or FP32 ONNX file."""
    for task in results.params.tasks.run:
        for model in results.params.quantization.models:
            for form in VARIANTS:
                for keys in (("dev", TASKS[task].headline), ("difference_95", "low"), ("size_mb", "raw")):
                    results.value("quantize", f"{task}-{model}", form, *keys)
                yield task, model, form, results.value("quantize", f"{task}-{model}", form)


def latency_ms(results: Results, task: str, model: str, form: str, batch: str, of: str = "median") -> float | None:
    """Latency of one batch in milliseconds (median, p10 or p90); None when it was not measured here.

    batch: batch_<n> of full rows, or dev_batch_<n> of dev rows.
    """
    if model not in results.params.quantization.models:  # its file may be left from earlier params
        return None
    return (results.latency(task, model) or {}).get(form, {}).get(batch, {}).get(of)


def pruned_models(results: Results) -> Iterator[tuple[str, str, int, dict]]:
    """(task, student, target percent, its metrics) of each pruned student."""
    for task in results.params.tasks.run:
        for student in results.params.tasks.students:
            for target in results.params.pruning.sparsities_percent:
                instance = f"{task}-{student}-{target}"
                results.value("prune", instance, "dev", TASKS[task].headline)
                yield task, student, target, results.metrics["prune", instance]


def student_of(params: Params, model: str) -> str | None:
    """The GLUE student that a task model is, pruned or not; None for the teacher."""
    owners = {name: name for name in params.tasks.students}
    owners |= {f"{name}_pruned{percent}": name for name in owners for percent in params.pruning.sparsities_percent}
    return owners.get(model)


def majority_score(results: Results, task: str) -> float:
    """What guessing the majority class scores in the task's headline metric on its first dev split."""
    return results.value("prepare_task", task, "majority", TASKS[task].headline)


class Entries(dict):
    """A mapping in a file that some stage wrote; a key that is missing is told with the name of the file."""

    def __init__(self, values: dict, file: str) -> None:
        super().__init__(values)
        self.file = file

    def __missing__(self, key: str):
        raise UserError(f"{self.file}: has no {key} where it is needed; run the stage that writes it again")


def _named(tree: Any, path: Path, kind: type) -> Any:
    """The tree of a file with its mappings as Entries; ValueError where it is not of this kind."""
    if not isinstance(tree, kind):
        raise ValueError(f"no {kind.__name__}")
    return _with_entries(tree, str(path))


def _with_entries(tree: Any, file: str) -> Any:
    if isinstance(tree, dict):
        return Entries({key: _with_entries(value, file) for key, value in tree.items()}, file)
    return [_with_entries(value, file) for value in tree] if isinstance(tree, list) else tree


def _rerun(stage: str, instance: str) -> str:
    return f"dvc repro {stage}@{instance}" if instance else f"dvc repro {stage}"


def _number(text: str | None) -> float | None:
    """A CSV cell; empty ones come where a curve has no such term."""
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None
