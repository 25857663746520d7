"""What a training stage leaves behind: the model folder, the loss curve and the numbers of its training."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic

from tinybert.distill.metric_log import Point
from tinybert.distill.objective import DistillationLoss
from tinybert.distill.resume import Checkpoint
from tinybert.models.checkpoints import Model, OneModel, save_model, write_provenance
from tinybert.pipeline import paths
from tinybert.pipeline.files import atomic_folder
from tinybert.pipeline.process import is_main_process

if TYPE_CHECKING:
    from tinybert.stage import Stage


@dataclass(frozen=True)
class Trained(Generic[OneModel]):
    """A model after its training, what its objective learnt beside it, and the loss curve."""

    model: OneModel
    objective: DistillationLoss
    curve: list[Point]


def train_and_save(
    stage: "Stage",
    target: Path,
    train: Callable[..., Trained[OneModel]],
    *,
    source: Path | None = None,
    measure: Callable[[OneModel], dict] = lambda model: {},
) -> None:
    """Runs `train` with the stage's hooks of training.loop.train; writes model, curve and metrics.

    source: the folder of the model that goes on in this stage, if any. measure: further metrics of the trained model.
    An interrupted training goes on when the stage is started again; of several processes the main one writes.
    """
    checkpoint = Checkpoint.of(stage)
    trained = train(on_entry=stage.on_entry, checkpoint=checkpoint)
    if not is_main_process():
        return
    save_trained(trained.model, trained.objective, target, history=stage.provenance(trained.curve, source))
    stage.write_curve(trained.curve)
    stage.write_metrics(training_metrics(trained.model, trained.curve) | measure(trained.model))
    checkpoint.remove()


def save_trained(
    model: Model, objective: DistillationLoss, target: str | Path, *, history: Sequence[dict] = ()
) -> None:
    """Writes weights, configuration, tokenizer, what the objective learnt and the history: all that a later stage or
    a user needs.
    """
    with atomic_folder(target) as folder:
        save_model(model, folder)
        objective.save(folder)
        write_provenance(history, folder)
        shutil.copytree(paths.TOKENIZER, folder, dirs_exist_ok=True)


def training_metrics(model: Model, curve: list[Point]) -> dict:
    """Size, steps, and the last means of each loss term; the weights of a learnable layer map."""
    last = curve[-1] if curve else {"step": 0}
    learnt = {name: value for name, value in last.items() if name.startswith("map_")}
    terms = {k: v for k, v in last.items() if k not in ("step", "epoch", "learning_rate", *learnt)}
    metrics = {"parameters": model.parameter_count, "steps": last["step"], "loss": terms}
    return metrics | ({"layer_map": learnt} if learnt else {})
