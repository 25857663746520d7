"""The teacher at work: asked about each batch as it comes."""

import torch
from accelerate import Accelerator

from tinybert.models.activations import Activations, Batch, Wanted
from tinybert.models.bert import BertModel
from tinybert.objective import Objective


class LiveTeacher:
    """The teacher's answers to a batch, as the objective wants them: evaluation mode, no gradient."""

    def __init__(self, model: BertModel | None, objective: Objective, accelerator: Accelerator) -> None:
        self.objective, self.accelerator = objective, accelerator
        self.model = model.to(accelerator.device).eval() if objective.reads_teacher else None

    def __call__(self, batch: Batch) -> Activations | None:
        """What the losses of this step read; None where they read no teacher."""
        return self.ask(batch, self.objective.teacher_wants) if self.model else None

    @torch.no_grad()
    def ask(self, batch: Batch, wanted: Wanted) -> Activations:
        """The wanted activations, in the precision of the run."""
        with self.accelerator.autocast():
            return self.model(batch, wanted)
