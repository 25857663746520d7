"""Predictions of task models."""

import numpy as np
import torch

from tinybert.data.encoding import Encoded
from tinybert.data.tasks import Task
from tinybert.models.checkpoints import Classifier
from tinybert.models.outputs import best_device

EVALUATION_BATCH_SIZE = 64


@torch.no_grad()
def predict(model: Classifier, examples: Encoded, task: Task) -> np.ndarray:
    """Class numbers (rows,) int64, or scores float32 for a regression, in the order of the rows."""
    device = best_device()
    model.config.check_length(int(examples.lengths.max(initial=0)), f"tasks.{task.name}.max_length_tokens")
    model.to(device).eval()
    logits = np.empty((len(examples), len(model.labels)), dtype=np.float32)
    for indices, batch in examples.batches(EVALUATION_BATCH_SIZE):
        logits[indices] = model(batch.to(device)).logits.cpu().numpy()
    return decide(logits, task)


def decide(logits: np.ndarray, task: Task) -> np.ndarray:
    """Logits (rows, classes) -> class numbers, or (rows, 1) -> scores."""
    return logits[:, 0] if task.is_regression else logits.argmax(-1)
