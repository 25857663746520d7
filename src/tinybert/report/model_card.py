"""Model cards: README.md of a finished model, from its provenance, params and metrics; timings are left out."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from huggingface_hub import EvalResult, ModelCardData

from tinybert.compress.pruning import linear_sparsity
from tinybert.config.load import StageParams
from tinybert.config.schema import Params
from tinybert.config.students import MAPPED_LOSSES
from tinybert.data.tasks import Task
from tinybert.models.checkpoints import Model
from tinybert.pipeline import paths
from tinybert.pipeline.files import atomic_file
from tinybert.pipeline.paths import VARIANTS
from tinybert.pipeline.tracking import code_revision, package_versions
from tinybert.report.rendering import ABSENT, Table, count, fixed, interval, percent, render

HUB_METRICS = {"matthews": "matthews_correlation", "pearson": "pearsonr", "spearman": "spearmanr"}
# stage -> its name for readers, the section of a student's config that it reads (None: gold labels alone), the params
# key of its training where that section has none of its own
STAGES: dict[str, tuple[str, str | None, str]] = {
    "general_distill": ("general distillation", "general", "general.training"),
    "domain_distill": ("domain distillation", "domain", "domain.training"),
    "finetune_teacher": ("fine-tuning", None, "tasks.{task}.teacher"),
    "task_distill_intermediate": ("task, phase 1", "intermediate", "tasks.{task}.intermediate"),
    "task_distill_prediction": ("task, phase 2", "prediction", "tasks.{task}.prediction"),
    "prune": ("pruning", "prediction", "tasks.{task}.pruning"),
}
Provenance = Sequence[dict[str, Any]]  # an entry for each stage that trained the model, with the params it read


@dataclass(frozen=True)
class Finished:
    """A finished model: its name, itself, how it was trained, and the params that its package stage declares."""

    name: str
    model: Model
    provenance: Provenance
    params: Params | StageParams


def write_task_card(folder: Path, of: Finished, task: Task, metrics: dict[str, dict]) -> None:
    """Writes README.md of a task model into its folder.

    Args:
        folder: An existing folder.
        of: The model: "teacher", a student or a pruned student.
        task: Its task.
        metrics: The files of the stages "prepare_task", "finetune_teacher" and, of this model, "quantize".
    """
    params, ready, is_teacher = of.params, getattr(of.params.tasks, task.name).finetuned_teacher, of.name == "teacher"
    is_synthetic, is_hub = (params.tasks.source == source for source in ("synthetic", "hub"))
    is_ours = is_synthetic and not ready and params.corpus.source == params.teacher.source == "synthetic"
    card_data = ModelCardData(
        language="en" if params.tasks.source != "local" else None,
        license="apache-2.0" if is_ours else None,
        library_name="transformers" if of.model.model_type == "bert" else "onnx",
        pipeline_tag="text-classification",
        tags=["onnx", "text-classification", *([] if is_teacher else ["distillation"])],
        datasets=_hub_names(params.tasks, *([] if is_teacher else [params.corpus])),
        base_model=_hub_names(params.teacher, *([ready] if ready else [])),
        model_name=f"{of.name}-{task.name}" if is_hub else None,
        eval_results=_eval_results(task, params, metrics["quantize"]) if is_hub else None,
    )
    _write(folder, of, card_data, "task_card.md.j2", {
        "task": task, "metrics": metrics, "is_teacher": is_teacher, "is_synthetic": is_synthetic, "ready": ready,
        "read_last": partial(_read_last, of.provenance), "folder": paths.final(task.name, of.name),
        "scores": _score_table(of, task, metrics).markdown(),
        "sparsity": linear_sparsity(of.model) if "_pruned" in of.name else None,
        "collapsed": [variant for variant in VARIANTS if metrics["quantize"][variant]["collapsed"]],
    })  # fmt: skip


def write_domain_card(folder: Path, of: Finished, metrics: dict[str, dict]) -> None:
    """Writes README.md of a domain student into its folder; `metrics`: the file of its stage evaluate_domain."""
    params, rows = of.params, []
    is_ours = params.corpus.source == params.teacher.source == "synthetic"
    card_data = ModelCardData(
        language="en" if params.corpus.source != "local" else None,
        license="apache-2.0" if is_ours else None,
        library_name="transformers",
        pipeline_tag="fill-mask",
        tags=["fill-mask", "distillation"],
        datasets=_hub_names(params.corpus),
        base_model=_hub_names(params.teacher),
    )
    for role in ("teacher", "student", "untrained"):
        found, alike = metrics[role], metrics["agreement"]["domain"] if role == "student" else {}
        perplexities = (fixed(found[corpus]["perplexity"], 2) for corpus in ("domain", "general"))
        cloze = (fixed(found["cloze"]["all"][rank]) for rank in ("top1", "top5"))
        rows.append((role, *cloze, *perplexities, *(fixed(alike.get(key)) for key in ("top1", "kl"))))
    columns = ["model", "cloze accuracy", "top 5", "perplexity, domain", "general", "same top-1", "KL"]
    _write(folder, of, card_data, "domain_card.md.j2", {
        "questions": metrics["student"]["cloze"]["all"]["questions"], "folder": paths.final("domain", of.name),
        "scores": Table(pd.DataFrame(rows, columns=columns), names=1).markdown(),
    })  # fmt: skip


def _write(folder: Path, of: Finished, card_data: ModelCardData, template: str, context: dict[str, Any]) -> None:
    first = next((entry for entry in of.provenance if entry["stage"] == "general_distill"), None)
    text = render(
        template, of=of, params=of.params, card_data=card_data.to_yaml(line_break="\n"), license=card_data.license,
        init=first["params"][f"students.{first['student']}.init"] if first else None,
        training=training_table(of.provenance).markdown() if of.provenance else "",
        revision=code_revision(), packages=package_versions(), **context,
    )  # fmt: skip
    with atomic_file(folder / "README.md") as handle:
        handle.write(re.sub(r"\n{3,}", "\n\n", text).strip() + "\n")


def _eval_results(task: Task, params: Params | StageParams, variants: dict[str, dict]) -> list[EvalResult]:
    """The FP32 scores as the Hub lists them, of its own data only."""
    hub, split = params.tasks.hub, task.dev_splits[0].replace("dev", "validation")
    return [
        EvalResult(
            task_type="text-classification", dataset_type=hub.dataset, dataset_name=f"GLUE {task.name}",
            dataset_config=task.name, dataset_split=split, dataset_revision=hub.revision,
            metric_type=HUB_METRICS.get(name, name), metric_value=round(value, 4),
        )
        for name, value in variants["fp32"]["dev"].items()
    ]  # fmt: skip


def _score_table(of: Finished, task: Task, metrics: dict[str, dict]) -> Table:
    references = {"majority class": metrics["prepare_task"]["majority"]}
    if of.name != "teacher":
        references["teacher"] = metrics["finetune_teacher"]["dev"]
    rows = [(name, *(fixed(found[m]) for m in task.metrics), *[ABSENT] * 3) for name, found in references.items()]
    for variant in VARIANTS:
        found = metrics["quantize"][variant]
        against = (percent(found["agreement"]), interval(**found["difference_95"]))
        against = (ABSENT, ABSENT) if variant == "fp32" else against
        scores = (fixed(found["dev"][m]) for m in task.metrics)
        rows.append((variant, *scores, *against, fixed(found["size_mb"]["raw"], 2)))
    columns = ["", *task.metrics, "as FP32", f"{task.headline} minus FP32's, 95 %", "MB"]
    return Table(pd.DataFrame(rows, columns=columns), names=1)


def training_table(provenance: Provenance) -> Table:
    """A row for each stage that the model went through, skipped ones too."""
    columns = ["stage", "losses and their weights", "layer map", "epochs", "steps", "batch", "peak learning rate"]
    return Table(pd.DataFrame(map(_training_row, provenance), columns=columns), names=3)


def _training_row(entry: dict[str, Any]) -> tuple[str, ...]:
    title, section, key = STAGES[entry["stage"]]
    params, training = entry["params"], entry["params"].get(key.format(**entry))
    found = params[f"students.{entry['student']}.{section}"] if section else None
    if not entry["steps"] or (section and found is None):
        return (title, "skipped", *[""] * 5)
    losses, layer_map = "gold labels", ""
    if found:
        if entry["stage"] != "prune":  # it reads the task's own training only
            training = found["training"] or training
        losses = _losses(found)
        if any(found["losses"].get(name) for name in MAPPED_LOSSES):
            layer_map = _layer_map(found["layer_map"] or params[f"students.{entry['student']}.layer_map"])
    numbers = (count(training["epochs"]), count(entry["steps"]), count(training["batch_size"]))
    return (title, losses, layer_map, *numbers, f"{training['learning_rate']:g}")


def _losses(found: dict[str, Any]) -> str:
    """Each loss with its λ, and what else the losses read."""
    parts = [f"{name} {weight:g}" for name, weight in found["losses"].items() if weight]
    parts += [f"T {found['temperature']:g}"] if found["losses"].get("prediction") else []
    parts += [f"α {found['alpha']:g}"] if found["alpha"] != 0.5 else []
    parts += [f"{found['relation_heads']} relation heads"] if found["relation_heads"] else []
    return ", ".join(parts)


def _layer_map(found: str | list[int] | dict[str, Any]) -> str:
    if isinstance(found, dict):
        learnable = found["learnable"]
        return f"learnable (from {learnable['init']}, learning rate {learnable['learning_rate']:g})"
    return found if isinstance(found, str) else ", ".join(map(str, found))


def _read_last(provenance: Provenance, key: str) -> Any:
    """The value of a params key in the last stage that read it; None where none did."""
    return next((entry["params"][key] for entry in reversed(provenance) if key in entry["params"]), None)


def _hub_names(*sections: Any) -> list[str] | None:
    """The names on the Hub, each once, of those sections that take their data or model from there."""
    hubs = [section.hub for section in sections if getattr(section, "source", "hub") == "hub" and section.hub]
    return list(dict.fromkeys(getattr(hub, "dataset", None) or hub.model for hub in hubs)) or None
