"""What a training stage leaves behind: the model folder and the numbers of its training."""

import shutil
from pathlib import Path

from tinybert import paths
from tinybert.files import atomic_folder
from tinybert.models.bert import BertModel
from tinybert.models.folder import save_model
from tinybert.objective import Objective
from tinybert.training.recorder import Point


def save_trained(model: BertModel, objective: Objective, target: str | Path) -> None:
    """Writes weights, configuration, tokenizer, what the objective learnt: all that a later stage or a user needs."""
    with atomic_folder(target) as folder:
        save_model(model, folder)
        objective.save(folder)
        shutil.copytree(paths.TOKENIZER, folder, dirs_exist_ok=True)


def training_metrics(model: BertModel, curve: list[Point]) -> dict:
    """Size, steps, and the last means of each loss term; the weights of a learnable layer map."""
    last = curve[-1] if curve else {"step": 0}
    learnt = {name: value for name, value in last.items() if name.startswith("map_")}
    terms = {k: v for k, v in last.items() if k not in ("step", "epoch", "learning_rate", *learnt)}
    metrics = {"parameters": model.parameter_count, "steps": last["step"], "loss": terms}
    return metrics | ({"layer_map": learnt} if learnt else {})
