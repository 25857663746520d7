"""Model cards: README.md of a finished model, from its provenance, params and metrics; timings are left out."""

import re
from collections import ChainMap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import EvalResult, ModelCardData

from tinybert.compress.pruning import linear_sparsity
from tinybert.config.load import StageParams
from tinybert.config.schema import Params
from tinybert.config.students import MAPPED_LOSSES
from tinybert.config.tasks import Task, teacher_source
from tinybert.evaluate.scoring import score_drops
from tinybert.models.model_folders import Model
from tinybert.pipeline import paths
from tinybert.pipeline.files import write_file
from tinybert.pipeline.process import code_revision, package_versions
from tinybert.report.rendering import render

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


class Finished(NamedTuple):
    """A finished model: its name, itself, how it was trained, and the params that its package stage declares."""

    name: str
    model: Model
    provenance: Sequence[dict[str, Any]]  # an entry for each stage that trained the model, with the params it read
    params: Params | StageParams


def write_task_card(folder: Path, finished: Finished, task: Task, metrics: dict[str, dict], chosen: str) -> None:
    """Writes README.md of a task model into its folder, which exists.

    Args:
        finished: The model: "teacher", a student or a pruned student.
        metrics: The files of the stages "prepare_task", "finetune_teacher" and, of this model, "quantize".
        chosen: The INT8 variant to use.
    """
    params, settings, is_teacher = finished.params, finished.params.tasks[task.name], finished.name == "teacher"
    third_party, _ = teacher_source(params.tasks, task.name) or (None, "")
    data, ready = settings.data, settings.finetuned_teacher
    is_synthetic, is_hub = (not task.is_own and params.tasks.source == source for source in ("synthetic", "hub"))
    on_text = any(entry["stage"] == "general_distill" and entry["steps"] for entry in finished.provenance)
    is_given = ready or third_party
    is_ours = is_synthetic and not is_given and params.corpus.source == params.teacher.source == "synthetic"
    card_data = ModelCardData(
        language=params.language, license="apache-2.0" if is_ours else None,
        library_name="transformers" if finished.model.model_type == "bert" else "onnx",
        pipeline_tag="text-classification",
        tags=["onnx", "text-classification", *([] if is_teacher else ["distillation"])],
        datasets=_hub_names(data or params.tasks, params.corpus if on_text else None),
        base_model=_hub_names(None if is_teacher and is_given else params.teacher, third_party),
        model_name=f"{finished.name}-{task.name}" if is_hub else None,
        eval_results=_eval_results(task, params, metrics["quantize"]) if is_hub else None,
    )  # fmt: skip
    _write(folder, finished, card_data, "task_card.md.j2", {
        "task": task, "data": data, "metrics": metrics,
        "is_teacher": is_teacher, "on_text": on_text, "is_synthetic": is_synthetic, "ready": ready,
        # The value of a params key in the last stage that read it; None if none did.
        "read_last": ChainMap(*(entry["params"] for entry in finished.provenance[::-1])).get,
        "folder": paths.final(task.name, finished.name), "third_party": third_party,
        "sparsity": linear_sparsity(finished.model) or None,
        "chosen": chosen, "drop": score_drops(metrics["quantize"], task.headline)[chosen],
        "is_portable": params.quantization.method == "smoothed",
        "variants": {name: metrics["quantize"][name] for name in paths.VARIANTS},
        "collapsed": [variant for variant in paths.VARIANTS if metrics["quantize"][variant]["collapsed"]],
    })  # fmt: skip


def write_domain_card(folder: Path, finished: Finished, metrics: dict[str, dict]) -> None:
    """Writes README.md of a domain student into its folder; `metrics`: the file of its stage evaluate_domain."""
    params = finished.params
    is_ours = params.corpus.source == params.teacher.source == "synthetic"
    card_data = ModelCardData(
        language=params.language, license="apache-2.0" if is_ours else None,
        library_name="transformers", pipeline_tag="fill-mask", tags=["fill-mask", "distillation"],
        datasets=_hub_names(params.corpus), base_model=_hub_names(params.teacher),
    )  # fmt: skip
    context = {"metrics": metrics, "folder": paths.final("domain", finished.name)}
    _write(folder, finished, card_data, "domain_card.md.j2", context)


def _write(folder: Path, finished: Finished, card_data: ModelCardData, template: str, context: dict[str, Any]) -> None:
    first = next((entry for entry in finished.provenance if entry["stage"] == "general_distill"), None)
    text = render(
        template, finished=finished, params=finished.params, license=card_data.license,
        card_data=card_data.to_yaml(line_break="\n"), revision=code_revision(), packages=package_versions(),
        init=first["params"][f"students.{first['student']}.init"] if first else None,
        stages=list(map(_training, finished.provenance)), **context,
    )  # fmt: skip
    write_file(folder / "README.md", re.sub(r"\n{3,}", "\n\n", text).strip() + "\n")


def _eval_results(task: Task, params: Params | StageParams, variants: dict[str, dict]) -> list[EvalResult]:
    """The FP32 scores as the Hub lists them, of its own data only."""
    is_heldout, hub = params.tasks.heldout_fraction > 0, params.tasks.hub
    split = "train" if is_heldout else task.dev_splits[0].replace("dev", "validation")
    return [
        EvalResult(
            task_type="text-classification", dataset_type=hub.dataset, dataset_name=f"GLUE {task.name}",
            dataset_config=task.name, dataset_split=split, dataset_revision=hub.revision,
            metric_type=HUB_METRICS.get(name, name), metric_value=round(value, 4),
        )
        for name, value in variants["fp32"]["dev"].items()
    ]  # fmt: skip


def _training(entry: dict[str, Any]) -> dict[str, Any]:
    """A training stage of the model; `training` is None if it was skipped, `losses` is None for gold labels only."""
    title, section, key = STAGES[entry["stage"]]
    params, training = entry["params"], entry["params"].get(key.format(**entry))
    losses = params[f"students.{entry['student']}.{section}"] if section else None
    if not entry["steps"] or (section and losses is None):
        return {"title": title, "training": None}
    layer_map = ""
    if losses:
        if entry["stage"] != "prune":  # it reads the task's own training only
            training = losses["training"] or training
        if any(losses["losses"].get(name) for name in MAPPED_LOSSES):
            layer_map = losses["layer_map"] or params[f"students.{entry['student']}.layer_map"]
    return {"title": title, "training": training, "losses": losses, "layer_map": layer_map, "steps": entry["steps"]}


def _hub_names(*sections: Any) -> list[str] | None:
    """The names on the Hub, each once, of those sections that take their data or model from there."""
    given = filter(None, sections)
    hubs = [section.hub for section in given if getattr(section, "source", "hub") == "hub" and section.hub]
    return list(dict.fromkeys(getattr(hub, "dataset", None) or hub.model for hub in hubs)) or None
