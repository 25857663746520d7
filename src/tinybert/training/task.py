"""Training on task examples: the teacher's fine-tuning, both phases of task distillation, pruning."""

from tinybert.glue.encoding import Encoded
from tinybert.models.bert import SequenceClassifier
from tinybert.objective import Objective
from tinybert.training.batches import ExampleBatches
from tinybert.training.loop import Point, Settings, train


def train_on_task(
    model: SequenceClassifier, objective: Objective, examples: Encoded, *, training, params, **run
) -> list[Point]:
    """Trains `model` in place on `examples` with the settings of a `training` section; returns the loss curve.

    `run`: teacher, title and hooks of training.loop.train.
    """
    batches = ExampleBatches(examples, batch_size=training.batch_size, seed=params.seed)
    return train(model, objective, batches, Settings(training, params.optimizer, params.seed, params.precision), **run)
