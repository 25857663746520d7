"""The data of training runs: rows in a new random order each epoch, masked text, and micro-batches.

Batches of rows of similar length would need less padding but cost score (docs/log.md, "batches of similar length").
Models compute little padding anyway (models/outputs.py, RealTokens).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer

from tinybert.config.schema import Masking
from tinybert.config.tasks import Task
from tinybert.data.encoding import Encoded
from tinybert.data.sequences import Sequences
from tinybert.data.tokenizer import SPECIAL_TOKENS
from tinybert.models.model_folders import TaskModel
from tinybert.models.outputs import Batch, best_device, pad
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.process import stream

PREDICTION_BATCH_SIZE = 64
TEXT_BATCH_SIZE = 32


@dataclass(frozen=True)
class Masker:
    """Chooses tokens to predict and corrupts them (Devlin et al. 2019, sec. 3.1).

    Attributes:
        settings: How many tokens are chosen, and which of them become [MASK] or any token of the vocabulary.
        special_ids: Tokens that are never chosen.
    """

    settings: Masking
    special_ids: tuple[int, ...]
    mask_id: int
    vocabulary_size: int

    @classmethod
    def of(cls, masking: Masking, tokenizer: Tokenizer) -> "Masker":
        """A masker with the tokenizer's special tokens."""
        special = {token: id for token in SPECIAL_TOKENS if (id := tokenizer.token_to_id(token)) is not None}
        return cls(masking, tuple(special.values()), special["[MASK]"], tokenizer.get_vocab_size())

    def __call__(self, input_ids: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Corrupts token ids (batch, length) int64 in place, at random by `rng`.

        Returns:
            Flat positions and original ids, both (predicted tokens,) int64; at least one, so that a mean exists.
        """
        tokens = input_ids.reshape(-1)  # a view
        ordinary = np.flatnonzero(~np.isin(tokens, self.special_ids))
        if not len(ordinary):
            raise UserError("masking: a batch has special tokens only; the text does not fit the tokenizer")
        # Exactly that share of a batch: arrays of nearly equal size in all steps fragment memory less.
        count = max(1, round(self.settings.rate * len(ordinary)))
        chosen = np.sort(rng.choice(ordinary, count, replace=False))
        labels = tokens[chosen].copy()
        fate, settings = rng.random(len(chosen)), self.settings
        masked = fate < settings.mask_fraction
        replaced = ~masked & (fate < settings.mask_fraction + settings.random_fraction)
        tokens[chosen[masked]] = self.mask_id
        tokens[chosen[replaced]] = rng.integers(self.vocabulary_size, size=replaced.sum())
        return chosen, labels


def text_batch(sequences: list[np.ndarray], masker: Masker | None, rng: np.random.Generator) -> Batch:
    """Pads sequences; with a masker they are corrupted and labeled, otherwise they stay plain text."""
    input_ids, mask = pad(sequences)
    positions = labels = None
    if masker:
        input_ids[~mask] = masker.special_ids[0]  # [PAD], which is never chosen; its id need not be 0
        positions, labels = map(torch.from_numpy, masker(input_ids.numpy(), rng))  # changes input_ids in place
    return Batch(input_ids, mask, torch.zeros_like(input_ids), labels, positions)


def spread_batches(sequences: Sequences, masker: Masker | None = None, *, limit: int, seed: int = 0) -> list[Batch]:
    """At most `limit` sequences, spread evenly over all and masked once, so that every model sees the same masks."""
    chosen = np.linspace(0, len(sequences) - 1, num=min(limit, len(sequences)), dtype=np.int64)
    masks = stream(seed, "examination")  # the name is part of the seed: another name would draw other masks
    parts = [chosen[start : start + TEXT_BATCH_SIZE] for start in range(0, len(chosen), TEXT_BATCH_SIZE)]
    return [text_batch([sequences[row] for row in part], masker, masks) for part in parts]


class Batches:
    """Rows in an order that the seed and the epoch determine, each once per epoch; the last batch may be smaller.

    Args:
        rows: Examples of a task, the same in every epoch, or sequences of text.
        masker: Masks sequences, with new masks in each epoch; without one they stay plain text, without labels.
    """

    def __init__(self, rows: Encoded | Sequences, masker: Masker | None = None, *, batch_size: int, seed: int) -> None:
        self.rows, self.masker, self.batch_size, self.seed = rows, masker, batch_size, seed
        self.longest_row_tokens = int(rows.lengths.max())
        # The key of params.yaml that sets the length of rows.
        self.length_key = "max_length_tokens" if isinstance(rows, Encoded) else "tokenize.sequence_tokens"

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch_size)

    def epoch(self, number: int, first: int = 0) -> Iterator[Batch]:
        """The batches of epoch `number` (from 0), beginning with step `first`; skipped steps cost nothing."""
        order = stream(self.seed, "order", number).permutation(len(self.rows))
        for step in range(first, len(self)):
            chosen = order[step * self.batch_size : (step + 1) * self.batch_size]
            if isinstance(self.rows, Encoded):
                yield self.rows.batch(chosen)
            else:
                masks = stream(self.seed, "masks", number, step)
                yield text_batch([self.rows[row] for row in chosen], self.masker, masks)


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


def predict(model: TaskModel, examples: Encoded, task: Task) -> np.ndarray:
    """A task model's predictions in the order of the rows: (rows,) int64 classes or float32 scores, as `decide`."""
    model.config.check_length(int(examples.lengths.max(initial=0)), f"tasks.{task.name}.max_length_tokens")
    return decide(logits_of(model, examples), task)


@torch.no_grad()
def logits_of(model: TaskModel, examples: Encoded) -> np.ndarray:
    """A task model's logits in the order of the rows: (rows, classes) float32."""
    device = best_device()
    model.to(device).eval()
    logits = np.empty((len(examples), len(model.labels)), dtype=np.float32)
    for indices, batch in examples.batches(PREDICTION_BATCH_SIZE):
        logits[indices] = model(batch.to(device)).logits.cpu().numpy()
    return logits


def decide(logits: np.ndarray, task: Task) -> np.ndarray:
    """Logits (rows, classes) -> class numbers, or (rows, 1) -> scores, or (rows, labels) -> 0 and 1, int64."""
    if task.is_multilabel:
        return (logits > 0).astype(np.int64)  # a probability above one half
    return logits[:, 0] if task.is_regression else logits.argmax(-1)
