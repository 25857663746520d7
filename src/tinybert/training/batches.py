"""What the loop reads: shuffled batches of masked blocks or of task examples, the same for the same seed."""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch

from tinybert.corpus.blocks import Blocks
from tinybert.glue.encoding import Encoded, pad
from tinybert.models.activations import Batch
from tinybert.training.masking import Masker


class Batches(Protocol):
    """Data of a training run: as many steps in each epoch, and any epoch can be asked for."""

    def __len__(self) -> int:
        """Steps an epoch."""

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of epoch `number` (from 0), in an order that only the seed and the number decide."""


class BlockBatches:
    """Token blocks, newly masked in each epoch; without `masker` the plain text, and no labels."""

    def __init__(self, blocks: Blocks, masker: Masker | None, *, batch_size: int, seed: int) -> None:
        self.blocks, self.masker, self.batch_size, self.seed = blocks, masker, batch_size, seed

    def __len__(self) -> int:
        return -(-len(self.blocks) // self.batch_size)

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of one epoch."""
        order = np.random.default_rng((self.seed, number)).permutation(len(self.blocks))
        for step in range(len(self)):
            rows = order[step * self.batch_size : (step + 1) * self.batch_size]
            rng = np.random.default_rng((self.seed, number, step))
            yield block_batch([self.blocks[row] for row in rows], self.masker, rng)


def block_batch(rows: list[np.ndarray], masker: Masker | None, rng: np.random.Generator) -> Batch:
    """Padded blocks with the positions and labels of what `masker` hides."""
    input_ids, mask = pad(rows)
    positions = labels = None
    if masker:
        positions, labels = masker(input_ids.numpy(), rng)  # changes input_ids in place
        positions, labels = torch.from_numpy(positions), torch.from_numpy(labels)
    return Batch(input_ids, mask, torch.zeros_like(input_ids), labels, positions)


class ExampleBatches:
    """Task examples in a new order each epoch."""

    def __init__(self, examples: Encoded, *, batch_size: int, seed: int) -> None:
        self.examples, self.batch_size, self.seed = examples, batch_size, seed

    def __len__(self) -> int:
        return -(-len(self.examples) // self.batch_size)

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of one epoch."""
        order = np.random.default_rng((self.seed, number)).permutation(len(self.examples))
        for start in range(0, len(order), self.batch_size):
            yield self.examples.batch(order[start : start + self.batch_size])
