"""The teacher at work: asked about each batch as it comes."""

import torch
from accelerate import Accelerator

from tinybert.distill.objective import Objective
from tinybert.models.checkpoints import Model
from tinybert.models.outputs import Activations, Batch, Wanted


class LiveTeacher:
    """The teacher's answers to a batch, as the objective wants them: evaluation mode, no gradient."""

    def __init__(self, model: Model, objective: Objective, accelerator: Accelerator) -> None:
        self.objective, self.accelerator = objective, accelerator
        self.model = model.to(accelerator.device).eval()

    def __call__(self, batch: Batch) -> Activations:
        """What the losses of this step read."""
        return self.ask(batch, self.objective.teacher_wants)

    @torch.no_grad()
    def ask(self, batch: Batch, wanted: Wanted) -> Activations:
        """The wanted activations, in the precision of the run."""
        with self.accelerator.autocast():
            return self.model(batch, wanted)
