"""The training of a finished model, from the history beside its weights, as its card tells it."""

from collections.abc import Sequence
from typing import Any

from tinybert.config.students import MAPPED_LOSSES
from tinybert.report.markdown import escape
from tinybert.report.table import Table, count

# stage -> its name for readers, the section of a student's recipe that it reads (none: gold labels alone), the params
# key of its training where the recipe has none of its own.
STAGES = {
    "general_distill": ("general distillation", "general", "general.training"),
    "domain_distill": ("domain distillation", "domain", "domain.training"),
    "finetune_teacher": ("fine-tuning", None, "tasks.{task}.teacher"),
    "task_distill_intermediate": ("task, phase 1", "intermediate", "tasks.{task}.intermediate"),
    "task_distill_prediction": ("task, phase 2", "prediction", "tasks.{task}.prediction"),
    "prune": ("pruning", "prediction", "tasks.{task}.pruning"),
}


def training_table(history: Sequence[dict[str, Any]]) -> Table:
    """A row for each stage that the model went through, skipped ones too."""
    columns = ("stage", "losses and their weights", "layer map", "epochs", "steps", "batch", "peak learning rate")
    return Table("Training", columns, [_row(entry) for entry in history], names=3)


def start(history: Sequence[dict[str, Any]]) -> str:
    """Where the student's weights came from before any training, in words; empty for a model that is no student."""
    for entry in history:
        if entry["stage"] == "general_distill":
            found = entry["params"][f"students.{entry['student']}.init"]
            return "It started from " + _start(found) + "."
    return ""


def params_of(history: Sequence[dict[str, Any]], key: str) -> Any:
    """The value of a params key in the last stage that read it; None where none did."""
    found = [entry["params"][key] for entry in history if key in entry["params"]]
    return found[-1] if found else None


def _start(found: dict[str, Any]) -> str:
    if found["teacher"]:
        layers = found["teacher"]
        named = layers if isinstance(layers, str) else ", ".join(map(str, layers))
        return f"layers of the teacher ({named}), cut to its shape where that differs"
    if found["folder"]:
        return f"the model in {escape(found['folder'])}"
    if found["hub"]:
        return f"{escape(found['hub']['model'])} (revision {escape(found['hub']['revision'])}) of the Hub"
    return "random weights"


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    title, section, key = STAGES[entry["stage"]]
    params, training = entry["params"], entry["params"].get(key.format(**entry))
    losses, layer_map = "gold labels", ""
    if section:
        recipe = params[f"students.{entry['student']}.{section}"]
        if recipe is None:
            return (title, "skipped", "", "", "", "", "")
        if entry["stage"] != "prune":  # for which the recipe's own training does not count
            training = recipe["training"] or training
        losses = _losses(recipe)
        if {name for name, weight in recipe["losses"].items() if weight} & set(MAPPED_LOSSES):
            layer_map = _layer_map(recipe["layer_map"] or params[f"students.{entry['student']}.layer_map"])
    if not entry["steps"]:
        return (title, "skipped", "", "", "", "", "")
    numbers = (count(entry["steps"]), count(training["batch_size"]), f"{training['learning_rate']:g}")
    return (title, losses, layer_map, count(training["epochs"]), *numbers)


def _losses(recipe: dict[str, Any]) -> str:
    """Each loss with its λ, and what else the losses read where it matters."""
    parts = [f"{name} {weight:g}" for name, weight in recipe["losses"].items() if weight]
    if recipe["losses"].get("prediction"):
        parts.append(f"T {recipe['temperature']:g}")
    if recipe["alpha"] != 0.5:
        parts.append(f"α {recipe['alpha']:g}")
    if recipe["relation_heads"]:
        parts.append(f"{recipe['relation_heads']} relation heads")
    return ", ".join(parts)


def _layer_map(found: str | list[int] | dict[str, Any]) -> str:
    if isinstance(found, dict):
        learnable = found["learnable"]
        return f"learnable (from {learnable['init']}, learning rate {learnable['learning_rate']:g})"
    return found if isinstance(found, str) else ", ".join(map(str, found))
