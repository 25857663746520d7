"""Training on task examples: the teacher's fine-tuning, both phases of task distillation, pruning."""

from collections.abc import Iterator

from tinybert.glue.encoding import Encoded
from tinybert.models.activations import Batch
from tinybert.models.bert import SequenceClassifier
from tinybert.objective import Objective
from tinybert.seeds import stream
from tinybert.training.loop import Settings, train
from tinybert.training.order import shuffled_batches
from tinybert.training.recorder import Point


class ExampleBatches:
    """Task examples in a new order each epoch."""

    length_key = "max_length_tokens"

    def __init__(self, examples: Encoded, *, batch_size: int, seed: int) -> None:
        self.examples, self.batch_size, self.seed = examples, batch_size, seed
        self.longest_row_tokens = int(examples.lengths.max())

    def __len__(self) -> int:
        return -(-len(self.examples) // self.batch_size)

    def epoch(self, number: int, first: int = 0) -> Iterator[Batch]:
        """The batches of one epoch, from its step `first` on."""
        order = stream(self.seed, "order", number)
        batches = shuffled_batches(self.examples.lengths, batch_size=self.batch_size, rng=order)
        for rows in batches[first:]:
            yield self.examples.batch(rows)


def train_on_task(
    model: SequenceClassifier, objective: Objective, examples: Encoded, *, training, params, **run
) -> list[Point]:
    """Trains `model` in place on `examples` with the settings of a `training` section; returns the loss curve.

    `run`: teacher, title and hooks of training.loop.train.
    """
    batches = ExampleBatches(examples, batch_size=training.batch_size, seed=params.seed)
    return train(model, objective, batches, Settings(training, params.optimizer, params.seed, params.precision), **run)
