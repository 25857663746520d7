"""Training on task examples: the teacher's fine-tuning, both phases of task distillation, pruning."""

from collections.abc import Iterator

from tinybert.data.encoding import Encoded
from tinybert.distill.loop import Settings, train
from tinybert.distill.metric_log import Point
from tinybert.distill.objective import DistillationLoss
from tinybert.distill.sampler import shuffled_batches
from tinybert.distill.teacher_cache import CachedTeacher, TeacherCache
from tinybert.models.checkpoints import Classifier
from tinybert.models.outputs import Batch


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
        batches = shuffled_batches(len(self.examples), batch_size=self.batch_size, seed=self.seed, epoch=number)
        for rows in batches[first:]:
            yield self.examples.batch(rows)


def train_on_task(
    model: Classifier,
    objective: DistillationLoss,
    examples: Encoded,
    *,
    training,
    params,
    seed: int,
    store: TeacherCache | None = None,
    **run,
) -> list[Point]:
    """Trains `model` in place on `examples` with the settings of a `training` section; returns the loss curve.

    `seed` decides the order of the examples, dropout and what else is drawn. The teacher's answers are kept in `store`,
    where there is one. `run`: teacher, title and hooks of training.loop.train.
    """
    batches = ExampleBatches(examples, batch_size=training.batch_size, seed=seed)
    settings = Settings(training, params.optimizer, seed, params.precision)
    kept_for = (lambda live: CachedTeacher(live, store, examples)) if store else None
    return train(model, objective, batches, settings, kept_for=kept_for, **run)
