"""Model cards: README.md of a finished model, from its provenance, params and metrics; timings are left out."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from jinja2 import Environment, FileSystemLoader, StrictUndefined

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
from tinybert.report.tables import ABSENT, Table, count, fixed, percent, signed

# What opens or closes a construct of Markdown, HTML or a formula within a line.
SPECIAL = re.compile(r"([\\`*_\[\]<>|~&#!$])")
HUB_METRICS = {"matthews": "matthews_correlation", "pearson": "pearsonr", "spearman": "spearmanr"}
EXAMPLES = ("The shop was closed.", "It was shut.")
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

    @property
    def is_bert(self) -> bool:
        return self.model.model_type == "bert"


def write_task_card(folder: Path, of: Finished, task: Task, metrics: dict[str, dict]) -> None:
    """Writes README.md of a task model into its folder.

    Args:
        folder: An existing folder.
        of: The model: "teacher", a student or a pruned student.
        task: Its task.
        metrics: The files of the stages "prepare_task", "finetune_teacher" and, of this model, "quantize".
    """
    params, ready, is_teacher = of.params, getattr(of.params.tasks, task.name).finetuned_teacher, of.name == "teacher"
    is_synthetic = params.tasks.source == "synthetic"
    card_data = _card_data(of, "text-classification", is_english=params.tasks.source != "local")
    card_data.datasets = _hub_names(params.tasks, *([] if is_teacher else [params.corpus]))
    card_data.base_model = _hub_names(params.teacher, *([ready] if ready else []))
    card_data.tags = ["onnx", "text-classification", *([] if is_teacher else ["distillation"])]
    if ready or not is_synthetic:
        card_data.license = None
    if params.tasks.source == "hub":
        card_data.model_name = f"{of.name}-{task.name}"
        card_data.eval_results = _eval_results(task, params, metrics["quantize"])
    context = {
        "task": task, "is_teacher": is_teacher, "is_synthetic": is_synthetic, "ready": ready,
        "rows": ", ".join(f"{size:,} {split}" for split, size in metrics["prepare_task"]["examples"].items()),
        "share": percent(_read_last(of.provenance, f"tasks.{task.name}.train_fraction")),
        "copies": _read_last(of.provenance, f"tasks.{task.name}.augmented_copies"),
        "strategy": _read_last(of.provenance, "augmentation.strategy"), "folder": paths.final(task.name, of.name),
        "scores": _score_table(of, task, metrics).markdown(), "texts": EXAMPLES[: len(task.columns)],
        "sparsity": percent(linear_sparsity(of.model)) if "_pruned" in of.name else None,
        "collapsed": ", ".join(variant for variant in VARIANTS if metrics["quantize"][variant]["collapsed"]),
    }  # fmt: skip
    _write(folder, of, card_data, "task_card.md.j2", context)


def write_domain_card(folder: Path, of: Finished, metrics: dict[str, dict]) -> None:
    """Writes README.md of a domain student into its folder; `metrics`: the file of its stage evaluate_domain."""
    params = of.params
    card_data = _card_data(of, "fill-mask", is_english=params.corpus.source != "local")
    card_data.datasets, card_data.base_model = _hub_names(params.corpus), _hub_names(params.teacher)
    card_data.tags = ["fill-mask", "distillation"]
    rows = []
    for role in ("teacher", "student", "untrained"):
        found, alike = metrics[role], metrics["agreement"]["domain"] if role == "student" else {}
        perplexities = (fixed(found[corpus]["perplexity"], 2) for corpus in ("domain", "general"))
        cloze = (fixed(found["cloze"]["all"][rank]) for rank in ("top1", "top5"))
        rows.append((role, *cloze, *perplexities, *(fixed(alike.get(key)) for key in ("top1", "kl"))))
    columns = ("model", "cloze accuracy", "top 5", "perplexity, domain", "general", "same top-1", "KL")
    subjects = (f"{name}: {', '.join(map(escape, terms))}" for name, terms in params.filter.subjects.items())
    context = {
        "is_synthetic": params.corpus.source == "synthetic",
        "subjects": "; ".join(subjects), "questions": metrics["student"]["cloze"]["all"]["questions"],
        "folder": paths.final("domain", of.name), "scores": Table("", columns, rows).markdown(),
    }  # fmt: skip
    _write(folder, of, card_data, "domain_card.md.j2", context)


def escape(text: str) -> str:
    """The text in one line of Markdown that shows it as it is."""
    return SPECIAL.sub(r"\\\1", " ".join("".join(c if c.isprintable() else " " for c in text).split()))


def _write(folder: Path, of: Finished, card_data: ModelCardData, template: str, context: dict[str, Any]) -> None:
    context |= {
        "of": of, "params": of.params, "card_data": card_data.to_yaml(line_break="\n"), "license": card_data.license,
        "init": _init(of.provenance),
        "training": training_table(of.provenance).markdown() if of.provenance else "", "revision": code_revision(),
        "packages": ", ".join(f"{name} {version}" for name, version in package_versions().items()),
    }  # fmt: skip
    loader = FileSystemLoader(Path(__file__).parent)
    templates = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    templates.filters["plain"] = escape
    card = ModelCard(templates.get_template(template).render(context))
    with atomic_file(folder / "README.md") as handle:
        handle.write(re.sub(r"\n{3,}", "\n\n", str(card)).strip() + "\n")


def _card_data(of: Finished, pipeline_tag: str, *, is_english: bool) -> ModelCardData:
    """The YAML front matter. Only a model without third-party data or weights has the project's license."""
    is_ours = of.params.corpus.source == of.params.teacher.source == "synthetic"
    return ModelCardData(
        language="en" if is_english else None,
        license="apache-2.0" if is_ours else None,
        library_name="transformers" if of.is_bert else "onnx",
        pipeline_tag=pipeline_tag,
    )


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
        interval = " to ".join(signed(found["difference_95"][end]) for end in ("low", "high"))
        against = (ABSENT, ABSENT) if variant == "fp32" else (percent(found["agreement"]), interval)
        rows.append(
            (variant, *(fixed(found["dev"][m]) for m in task.metrics), *against, fixed(found["size_mb"]["raw"], 2))
        )
    note = (
        f"On {task.dev_splits[0]}. The variants are the ONNX files of these names. As FP32: share of rows with FP32's "
        "prediction; 95 %: paired bootstrap interval over rows."
    )
    return Table("", ("", *task.metrics, "as FP32", f"{task.headline} minus FP32's, 95 %", "MB"), rows, note=note)


def training_table(provenance: Provenance) -> Table:
    """A row for each stage that the model went through, skipped ones too."""
    columns = ("stage", "losses and their weights", "layer map", "epochs", "steps", "batch", "peak learning rate")
    return Table("Training", columns, list(map(_training_row, provenance)), names=3)


def _training_row(entry: dict[str, Any]) -> tuple[str, ...]:
    title, section, key = STAGES[entry["stage"]]
    params, training = entry["params"], entry["params"].get(key.format(**entry))
    losses, layer_map = "gold labels", ""
    if section:
        found = params[f"students.{entry['student']}.{section}"]
        if found is None:
            return (title, "skipped", "", "", "", "", "")
        if entry["stage"] != "prune":  # it reads the task's own training only
            training = found["training"] or training
        losses = _losses(found)
        if any(found["losses"].get(name) for name in MAPPED_LOSSES):
            layer_map = _layer_map(found["layer_map"] or params[f"students.{entry['student']}.layer_map"])
    if not entry["steps"]:
        return (title, "skipped", "", "", "", "", "")
    numbers = (count(entry["steps"]), count(training["batch_size"]), f"{training['learning_rate']:g}")
    return (title, losses, layer_map, count(training["epochs"]), *numbers)


def _losses(found: dict[str, Any]) -> str:
    """Each loss with its λ, and what else the losses read."""
    parts = [f"{name} {weight:g}" for name, weight in found["losses"].items() if weight]
    if found["losses"].get("prediction"):
        parts.append(f"T {found['temperature']:g}")
    parts += [f"α {found['alpha']:g}"] if found["alpha"] != 0.5 else []
    return ", ".join(parts + ([f"{found['relation_heads']} relation heads"] if found["relation_heads"] else []))


def _layer_map(found: str | list[int] | dict[str, Any]) -> str:
    if isinstance(found, dict):
        learnable = found["learnable"]
        return f"learnable (from {learnable['init']}, learning rate {learnable['learning_rate']:g})"
    return found if isinstance(found, str) else ", ".join(map(str, found))


def _init(provenance: Provenance) -> str:
    """Where a student's weights came from before any training; empty for a model that is no student."""
    entry = next((entry for entry in provenance if entry["stage"] == "general_distill"), None)
    if not entry:
        return ""
    found = entry["params"][f"students.{entry['student']}.init"]
    if layers := found["teacher"]:
        named = layers if isinstance(layers, str) else ", ".join(map(str, layers))
        return f"layers of the teacher ({named}), cut to its shape where that differs"
    if found["folder"]:
        return f"the model in {escape(found['folder'])}"
    if hub := found["hub"]:
        return f"{escape(hub['model'])} (revision {escape(hub['revision'])}) of the Hub"
    return "random weights"


def _read_last(provenance: Provenance, key: str) -> Any:
    """The value of a params key in the last stage that read it; None where none did."""
    return next((entry["params"][key] for entry in reversed(provenance) if key in entry["params"]), None)


def _hub_names(*sections: Any) -> list[str] | None:
    """The names on the Hub, each once, of those sections that take their data or model from there."""
    hubs = [section.hub for section in sections if getattr(section, "source", "hub") == "hub" and section.hub]
    return list(dict.fromkeys(getattr(hub, "dataset", None) or hub.model for hub in hubs)) or None
