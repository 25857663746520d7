"""The code shared by stages that train a model: resuming, reporting, and saving the result."""

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from tinybert.config.fields import Training
from tinybert.distill.batches import Batches
from tinybert.distill.loop import LiveTeacher, Pruner, Settings, train
from tinybert.distill.metric_log import Entry, TrainRun
from tinybert.distill.objective import DistillationLoss
from tinybert.distill.resume import Checkpoint
from tinybert.distill.task_distillation import TaskDistillation
from tinybert.distill.task_teacher import TaskTeacher
from tinybert.distill.teacher_cache import TeacherCache
from tinybert.models.checkpoints import Classifier, Model, save_model, write_provenance
from tinybert.models.foreign import ForeignClassifier, PredictedTeacher
from tinybert.pipeline import paths
from tinybert.pipeline.files import atomic_folder
from tinybert.pipeline.process import is_main_process
from tinybert.stage import Stage


@dataclass
class StageTraining:
    """A model that a stage trains: `run`, then `save` and `finish` in the main process.

    Attributes:
        loss: Trained with the model.
        target: The folder that the model is saved in.
        source: The folder of the model that this stage continues, if any.
        curve: Of the run; empty without one.
    """

    stage: Stage
    model: Model
    loss: DistillationLoss
    target: Path
    source: Path | None = None
    curve: list[Entry] = field(default_factory=list)

    def __post_init__(self) -> None:
        folder, fingerprint = self.stage.checkpoint_folder(), self.stage.fingerprint()
        self.checkpoint = Checkpoint(folder, fingerprint, is_writer=is_main_process())

    def run(
        self,
        batches: Batches,
        training: Training,
        seed: int,
        *,
        teacher: LiveTeacher | None = None,
        pruner: Pruner | None = None,
    ) -> None:
        """Trains the model, or continues an interrupted run."""
        settings = self._settings(training, seed, pruner)
        self.curve = train(self.model, self.loss, batches, settings, teacher=teacher, run=self._reported())

    def distill(self, teacher: TaskTeacher, rows: Iterable[dict], training: Training, seed: int) -> None:
        """Distills a task student on training rows, or continues an interrupted run."""
        cache = TeacherCache.of(self.stage.params.tasks.teacher_cache_gb)
        student = cast(Classifier, self.model)
        distillation = TaskDistillation(student, teacher.model, self.loss, teacher.task, cache)
        examples = teacher.read_both(rows)
        self.curve = distillation.run(*examples, self._settings(training, seed), self._reported())

    def _settings(self, training: Training, seed: int, pruner: Pruner | None = None) -> Settings:
        params = self.stage.params
        return Settings(training, params.optimizer, seed, params.precision, pruner)

    def _reported(self) -> TrainRun:
        title = " ".join([self.stage.name, *self.stage.items.values()])
        return TrainRun(title, self.stage.log_entry, self.checkpoint)

    def save(self) -> None:
        """Writes the model folder and the loss curve."""
        save_trained(self.model, self.loss, self.target, self.stage.provenance(self.curve, self.source))
        self.stage.write_curve(self.curve)

    def finish(self, measured: dict | None = None) -> None:
        """Writes the metrics of the run and other measurements; removes the checkpoint."""
        self.stage.write_metrics(training_metrics(self.model, self.curve) | (measured or {}))
        self.checkpoint.remove()


def save_trained(model: Model, loss: DistillationLoss, target: Path, provenance: Sequence[dict] = ()) -> None:
    """Replaces the folder `target` by the trained model and all that later stages need.

    Args:
        model: Its weights and configuration.
        loss: Its projections and map weights are saved with the model.
        target: The folder.
        provenance: The stages that the model went through (Stage.provenance).
    """
    with atomic_folder(target) as folder:
        save_model(model, folder)
        loss.save(folder)
        write_provenance(provenance, folder)
        if not isinstance(model, (ForeignClassifier, PredictedTeacher)):  # they read rows in their own way
            shutil.copytree(paths.TOKENIZER, folder, dirs_exist_ok=True)


def training_metrics(model: Model, curve: Sequence[Entry]) -> dict:
    """Parameters, steps, the last means of each loss term, and the weights of a learnable layer map."""
    last = curve[-1] if curve else {"step": 0}
    layer_map = {name: value for name, value in last.items() if name.startswith("map_")}
    terms = {key: value for key, value in last.items() if key not in ("step", "epoch", "learning_rate", *layer_map)}
    metrics = {"parameters": model.parameter_count, "steps": last["step"], "loss": terms}
    return metrics | ({"layer_map": layer_map} if layer_map else {})
