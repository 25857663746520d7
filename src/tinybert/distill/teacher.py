"""The teacher at work: asked about each batch as it comes."""

import torch
from accelerate import Accelerator

from tinybert.distill.objective import DistillationLoss
from tinybert.models.checkpoints import Model
from tinybert.models.outputs import Batch, ModelOutput, OutputSpec


class LiveTeacher:
    """The teacher's answers to a batch, as the objective wants them: evaluation mode, no gradient."""

    def __init__(self, model: Model, objective: DistillationLoss, accelerator: Accelerator) -> None:
        self.objective, self.accelerator = objective, accelerator
        self.model = model.to(accelerator.device).eval()

    def __call__(self, batch: Batch) -> ModelOutput:
        """What the losses of this step read."""
        return self.ask(batch, self.objective.teacher_spec)

    @torch.no_grad()
    def ask(self, batch: Batch, wanted: OutputSpec) -> ModelOutput:
        """The wanted activations, in the precision of the run."""
        with self.accelerator.autocast():
            return self.model(batch, wanted)
