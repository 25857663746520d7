"""Training on token blocks: the teacher's masked LM, and general and domain distillation."""

from collections.abc import Iterator

import numpy as np
from tokenizers import Tokenizer

from tinybert.data.sequences import Sequences
from tinybert.distill.loop import Settings, train
from tinybert.distill.masking import Masker, text_batch
from tinybert.distill.metric_log import Point
from tinybert.distill.objective import DistillationLoss
from tinybert.distill.sampler import shuffled_batches
from tinybert.models.checkpoints import Model
from tinybert.models.outputs import Batch
from tinybert.pipeline.process import stream

SAMPLE_BLOCKS = 256
SAMPLE_BATCH_SIZE = 32


class SequenceBatches:
    """Token blocks in a new order each epoch, newly masked; without `masker` the plain text, and no labels."""

    length_key = "tokenize.sequence_tokens"

    def __init__(self, blocks: Sequences, masker: Masker | None, *, batch_size: int, seed: int) -> None:
        self.blocks, self.masker, self.batch_size, self.seed = blocks, masker, batch_size, seed
        self.longest_row_tokens = int(blocks.lengths.max())

    def __len__(self) -> int:
        return -(-len(self.blocks) // self.batch_size)

    def epoch(self, number: int, first: int = 0) -> Iterator[Batch]:
        """The batches of one epoch, from its step `first` on."""
        batches = shuffled_batches(len(self.blocks), batch_size=self.batch_size, seed=self.seed, epoch=number)
        for step, rows in enumerate(batches[first:], start=first):
            masks = stream(self.seed, "masks", number, step)
            yield text_batch([self.blocks[row] for row in rows], self.masker, masks)


def sample_batches(blocks: Sequences) -> Iterator[Batch]:
    """Plain text of some blocks, spread evenly over all: what a start of a student measures the teacher on."""
    rows = [blocks[index] for index in np.linspace(0, len(blocks) - 1, num=min(SAMPLE_BLOCKS, len(blocks)), dtype=int)]
    for start in range(0, len(rows), SAMPLE_BATCH_SIZE):
        yield text_batch(rows[start : start + SAMPLE_BATCH_SIZE], None, stream(0, "sample"))


def train_on_text(
    model: Model,
    objective: DistillationLoss,
    blocks: Sequences,
    *,
    tokenizer: Tokenizer,
    training,
    params,
    **run,
) -> list[Point]:
    """Trains `model` in place on `blocks` with the settings of a `training` section; returns the loss curve.

    The text is masked only where a loss reads predicted tokens: the layer losses alone are distilled on
    plain text (TinyBERT's general distillation). `run`: teacher, title and hooks of training.loop.train.
    """
    masker = Masker.of(params.masking, tokenizer) if objective.reads_predictions else None
    batches = SequenceBatches(blocks, masker, batch_size=training.batch_size, seed=params.seed)
    return train(model, objective, batches, Settings(training, params.optimizer, params.seed, params.precision), **run)
