"""Rows of a task as token ids, a share of them, and batches padded to the longest."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer

from tinybert.config.tasks import Task
from tinybert.models.outputs import Batch, pad
from tinybert.pipeline import paths
from tinybert.pipeline.files import read_jsonl
from tinybert.pipeline.process import stream

CHUNK_ROWS = 10_000


def read_rows(task: Task, split: str) -> list[dict]:
    """The rows of a split that stage prepare_task wrote."""
    return list(read_jsonl(paths.task_rows(task.name) / f"{split}.jsonl"))


@dataclass(frozen=True)
class Encoded:
    """Tokenized examples of different lengths."""

    input_ids: list[np.ndarray]  # of each row (length,) int64
    token_type_ids: list[np.ndarray]  # likewise; 1 for the second text of a pair
    # (rows,) int64 classes, (rows,) float32 scores or (rows, labels) float32 0 and 1; None for unlabeled rows
    labels: np.ndarray | None
    varied: np.ndarray | None = None  # (rows,) bool, augmented or unlabeled: the teacher labels them

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def gold(self) -> np.ndarray:
        """The labels, of rows that have some."""
        assert self.labels is not None
        return self.labels

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row: (rows,) int64."""
        return np.array([len(ids) for ids in self.input_ids])

    def batch(self, indices: Sequence[int] | np.ndarray) -> Batch:
        """The rows `indices`, padded to the longest of them."""
        numbers = np.asarray(indices)
        labels = None if self.labels is None else torch.from_numpy(self.labels[numbers])
        input_ids, mask = pad([self.input_ids[i] for i in indices])
        token_type_ids, _ = pad([self.token_type_ids[i] for i in indices])
        return Batch(input_ids, mask, token_type_ids, labels, numbers=torch.from_numpy(numbers))

    def batches(self, batch_size: int) -> Iterator[tuple[np.ndarray, Batch]]:
        """Yields (indices, batch) for evaluation: all rows once, rows of similar length together.

        The longest come first, so that later batches fit into the memory already allocated.
        """
        order = np.argsort(-self.lengths, kind="stable")
        for start in range(0, len(order), batch_size):
            indices = order[start : start + batch_size]
            yield indices, self.batch(indices)


def label_array(labels: Iterable, task: Task) -> np.ndarray:
    """The "label" of rows as Encoded.labels has them."""
    if not task.is_multilabel:
        return np.array(list(labels), dtype=np.float32 if task.is_regression else np.int64)
    of_rows = list(labels)
    found = np.zeros((len(of_rows), len(task.labels)), dtype=np.float32)
    for row, ids in zip(found, of_rows, strict=True):
        row[ids] = 1.0
    return found


def encode(rows: Sequence[dict], task: Task, tokenizer: Tokenizer, *, max_length_tokens: int) -> Encoded:
    """Tokenizes the task's text columns, [CLS] a [SEP] or [CLS] a [SEP] b [SEP], longest part cut first."""
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length_tokens, strategy="longest_first")
    texts = [tuple(row[column] for column in task.columns) for row in rows]
    input_ids, token_type_ids = [], []
    for start in range(0, len(texts), CHUNK_ROWS):  # the tokenizer's results are many times as large as the ids
        chunk = texts[start : start + CHUNK_ROWS]
        for encoding in tokenizer.encode_batch([text if len(text) > 1 else text[0] for text in chunk]):
            input_ids.append(np.asarray(encoding.ids, dtype=np.int64))
            token_type_ids.append(np.asarray(encoding.type_ids, dtype=np.int64))
    tokenizer.no_truncation()
    labels = label_array((row["label"] for row in rows), task) if rows and "label" in rows[0] else None
    varied = np.array([row.get("augmented", False) for row in rows], dtype=bool)
    return Encoded(input_ids, token_type_ids, labels, varied)


def fraction_of(rows: Sequence[dict], fraction: float, *, seed: int) -> list[dict]:
    """Draws a fraction in (0, 1] of `rows`, at least one row, by the seed; keeps their order.

    A smaller fraction is a subset of a larger one, so that a series of fractions differs only in the amount of data.
    """
    wanted = max(1, round(fraction * len(rows)))
    ranks = stream(seed, "train_fraction").permutation(len(rows))
    return [row for row, rank in zip(rows, ranks, strict=True) if rank < wanted]
