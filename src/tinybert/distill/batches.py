"""The data of training runs: rows in a new random order each epoch, and their micro-batches.

Batches of rows of similar length would need less padding but cost score (docs/log.md, "batches of similar length").
Only attention computes padding here (models/outputs.py, RealTokens).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

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


class Batches:
    """Rows in random order, each once an epoch; the last batch is what remains.

    Args:
        rows: All of them.
        batch_size: Rows a step.
        seed: Decides the order, together with the epoch.
    """

    length_key: str  # of params.yaml; it sets how long rows are

    def __init__(self, rows: Encoded | Sequences, *, batch_size: int, seed: int) -> None:
        self.rows, self.batch_size, self.seed = rows, batch_size, seed
        self.longest_row_tokens = int(rows.lengths.max())

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch_size)

    def epoch(self, number: int, first: int = 0) -> Iterator[Batch]:
        """The batches of epoch `number` (from 0), beginning with step `first`; skipped steps cost nothing."""
        order = stream(self.seed, "order", number).permutation(len(self.rows))
        for step in range(first, len(self)):
            yield self.batch(order[step * self.batch_size : (step + 1) * self.batch_size], number, step)

    def batch(self, numbers: np.ndarray, epoch: int, step: int) -> Batch:
        """The rows `numbers` as the batch of a step."""
        raise NotImplementedError


class ExampleBatches(Batches):
    """Task examples."""

    rows: Encoded
    length_key = "max_length_tokens"

    def batch(self, numbers: np.ndarray, epoch: int, step: int) -> Batch:
        """The examples `numbers`."""
        return self.rows.batch(numbers)


class SequenceBatches(Batches):
    """Token sequences with new masks each epoch; without a masker plain text and no labels."""

    rows: Sequences
    length_key = "tokenize.sequence_tokens"

    def __init__(self, sequences: Sequences, masker: Masker | None, *, batch_size: int, seed: int) -> None:
        super().__init__(sequences, batch_size=batch_size, seed=seed)
        self.masker = masker

    def batch(self, numbers: np.ndarray, epoch: int, step: int) -> Batch:
        """The sequences `numbers`, masked."""
        return text_batch([self.rows[row] for row in numbers], self.masker, stream(self.seed, "masks", epoch, step))


@dataclass(frozen=True)
class MicroBatch:
    """Some rows of a batch, and their share of the units (Batch.counts) that losses are means over."""

    batch: Batch
    shares: dict[str, float]


def micro_batches(batch: Batch, *, processes: int, process: int, accumulation_steps: int) -> list[MicroBatch]:
    """The micro-batches that `process` (from 0) computes, one for each accumulation step.

    A loss that is a mean over a micro-batch, times the share, adds up over all micro-batches to the mean over the
    batch. The usual mean of means would give few masked tokens the weight of many.
    """
    counts = batch.counts()
    if processes == accumulation_steps == 1:
        return [MicroBatch(batch, dict.fromkeys(counts, 1.0))]
    # Rows are dealt in turn by length, so that processes have similar work.
    by_length = batch.mask.sum(dim=1).argsort(stable=True)
    found = []
    for first in range(process, processes * accumulation_steps, processes):
        if len(rows := by_length[first :: processes * accumulation_steps].sort().values):
            part = batch.rows(rows)
            shares = {unit: count / max(counts[unit], 1) for unit, count in part.counts().items()}
        else:
            # Every process takes part in each step, if only with a row of another whose share is 0.
            part, shares = batch.rows(torch.zeros(1, dtype=torch.int64)), dict.fromkeys(counts, 0.0)
        found.append(MicroBatch(part, shares))
    return found


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
