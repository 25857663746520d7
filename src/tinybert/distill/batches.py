"""The data of training runs: task examples and token sequences, in a random order of their own each epoch.

Batches of rows of similar length would need less padding but teach less (docs/log.md, "batches of like length"). Only
attention computes padding here (models/outputs.py, RealTokens).
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from tinybert.data.encoding import Encoded
from tinybert.data.sequences import Sequences
from tinybert.data.tasks import Task
from tinybert.distill.masking import Masker, text_batch
from tinybert.models.checkpoints import Classifier
from tinybert.models.outputs import Batch, best_device
from tinybert.pipeline.process import stream

PREDICTION_BATCH_SIZE = 64
SAMPLE_SEQUENCES = 256
SAMPLE_BATCH_SIZE = 32


def shuffled_batches(rows: int, *, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """The numbers of `rows` rows, each once, in batches of `batch_size`; the last batch is what remains."""
    order = stream(seed, "order", epoch).permutation(rows)
    return [order[start : start + batch_size] for start in range(0, rows, batch_size)]


class ExampleBatches:
    """Task examples in random order."""

    length_key = "max_length_tokens"

    def __init__(self, examples: Encoded, *, batch_size: int, seed: int) -> None:
        self.examples, self.batch_size, self.seed = examples, batch_size, seed
        self.longest_row_tokens = int(examples.lengths.max())

    def __len__(self) -> int:
        return -(-len(self.examples) // self.batch_size)

    def epoch(self, number: int, first: int = 0) -> Iterator[Batch]:
        """The batches of epoch `number`, beginning with step `first`."""
        batches = shuffled_batches(len(self.examples), batch_size=self.batch_size, seed=self.seed, epoch=number)
        for rows in batches[first:]:
            yield self.examples.batch(rows)


class SequenceBatches:
    """Token sequences in random order with new masks each epoch; without a masker plain text and no labels."""

    length_key = "tokenize.sequence_tokens"

    def __init__(self, sequences: Sequences, masker: Masker | None, *, batch_size: int, seed: int) -> None:
        self.sequences, self.masker, self.batch_size, self.seed = sequences, masker, batch_size, seed
        self.longest_row_tokens = int(sequences.lengths.max())

    def __len__(self) -> int:
        return -(-len(self.sequences) // self.batch_size)

    def epoch(self, number: int, first: int = 0) -> Iterator[Batch]:
        """The batches of epoch `number`, beginning with step `first`."""
        batches = shuffled_batches(len(self.sequences), batch_size=self.batch_size, seed=self.seed, epoch=number)
        for step, rows in enumerate(batches[first:], start=first):
            masks = stream(self.seed, "masks", number, step)
            yield text_batch([self.sequences[row] for row in rows], self.masker, masks)


def sample_batches(sequences: Sequences) -> Iterator[Batch]:
    """Plain text of sequences spread evenly over all, on which subcloning measures the teacher."""
    chosen = np.linspace(0, len(sequences) - 1, num=min(SAMPLE_SEQUENCES, len(sequences)), dtype=int)
    for start in range(0, len(chosen), SAMPLE_BATCH_SIZE):
        rows = [sequences[index] for index in chosen[start : start + SAMPLE_BATCH_SIZE]]
        yield text_batch(rows, None, stream(0, "sample"))


@torch.no_grad()
def predict(model: Classifier, examples: Encoded, task: Task) -> np.ndarray:
    """A task model's predictions in the order of the rows: (rows,) int64 classes, or float32 scores."""
    device = best_device()
    model.config.check_length(int(examples.lengths.max(initial=0)), f"tasks.{task.name}.max_length_tokens")
    model.to(device).eval()
    logits = np.empty((len(examples), len(model.labels)), dtype=np.float32)
    for indices, batch in examples.batches(PREDICTION_BATCH_SIZE):
        logits[indices] = model(batch.to(device)).logits.cpu().numpy()
    return decide(logits, task)


def decide(logits: np.ndarray, task: Task) -> np.ndarray:
    """Logits (rows, classes) -> class numbers, or (rows, 1) -> scores."""
    return logits[:, 0] if task.is_regression else logits.argmax(-1)


def labelled_by_teacher(examples: Encoded, teacher: Classifier, task: Task) -> Encoded:
    """Gives augmented rows the teacher's prediction as label (Tang et al. 2019, sec. 3.3).

    The gold label of the original row need not be true of its variation.
    """
    if examples.varied is None or not examples.varied.any():
        return examples
    return replace(examples, labels=np.where(examples.varied, predict(teacher, examples, task), examples.gold))
