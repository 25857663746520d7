"""What a training leaves behind: the model folder, and the numbers of the run."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from tinybert.distill.metric_log import Entry
from tinybert.distill.objective import DistillationLoss
from tinybert.models.checkpoints import Model, save_model, write_provenance
from tinybert.pipeline import paths
from tinybert.pipeline.files import atomic_folder


def save_trained(model: Model, loss: DistillationLoss, target: Path, provenance: Sequence[dict] = ()) -> None:
    """Writes all that a later stage or a user needs.

    Args:
        model: Its weights and configuration.
        loss: What it learnt beside the model.
        target: The folder; replaced as a whole.
        provenance: The stages that the model went through (Stage.provenance).
    """
    with atomic_folder(target) as folder:
        save_model(model, folder)
        loss.save(folder)
        write_provenance(provenance, folder)
        shutil.copytree(paths.TOKENIZER, folder, dirs_exist_ok=True)


def training_metrics(model: Model, curve: Sequence[Entry]) -> dict:
    """Parameters, steps, the last means of each loss term, and the weights of a learnable layer map."""
    last = curve[-1] if curve else {"step": 0}
    layer_map = {name: value for name, value in last.items() if name.startswith("map_")}
    terms = {key: value for key, value in last.items() if key not in ("step", "epoch", "learning_rate", *layer_map)}
    metrics = {"parameters": model.parameter_count, "steps": last["step"], "loss": terms}
    return metrics | ({"layer_map": layer_map} if layer_map else {})
