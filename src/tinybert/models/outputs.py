"""What a model exposes to a loss: the request for it, the result, and the batch they belong to."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

Rows = Tensor | tuple[slice, slice]  # an index into hidden states


@dataclass(frozen=True)
class OutputSpec:
    """Which activations a forward pass computes and returns; what is not wanted is not computed.

    hidden: indices of hidden states, 0 = embedding output, m = output of layer m.
    scores: layers (1-based) whose unmasked pre-softmax attention scores are returned.
    qkv: layers whose queries, keys and values are returned.
    logits: whether the head runs.
    only_first: whether the last layer computes the first token of each row alone, all that a classifier's head reads.
    """

    hidden: frozenset[int] = frozenset()
    scores: frozenset[int] = frozenset()
    qkv: frozenset[int] = frozenset()
    logits: bool = True
    only_first: bool = False

    @property
    def top_layer(self) -> int:
        """The highest layer that is read when the head does not run."""
        return max(self.hidden | self.scores | self.qkv, default=0)


@dataclass(frozen=True)
class ModelOutput:
    """The wanted outputs of one forward pass: one type for teacher and student.

    Tokens are the real ones of the batch, row after row (`RealTokens`); scores alone are padded.

    hidden: index -> (tokens, width).
    scores: layer -> (batch, heads, query, key), q·kᵀ/√d before mask and softmax.
    queries, keys, values: layer -> (tokens, width), all heads side by side.
    logits: (batch, classes), or (predicted tokens, vocabulary) for a masked LM; None when not wanted.
    """

    hidden: dict[int, Tensor] = field(default_factory=dict)
    scores: dict[int, Tensor] = field(default_factory=dict)
    queries: dict[int, Tensor] = field(default_factory=dict)
    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)
    logits: Tensor | None = None

    @property
    def required_logits(self) -> Tensor:
        """The logits, of a pass of which they were wanted."""
        assert self.logits is not None
        return self.logits


@dataclass(frozen=True)
class DistillationTargets(ModelOutput):
    """What a student imitates: the teacher's activations under the layer map.

    hidden, scores: by student layer. queries, keys, values: by teacher layer still, for it is their relations that a
    map weighs, not they.
    """


class RealTokens:
    """Where the real tokens of padded rows are; models compute on these alone, and only attention on rows.

    mask: (batch, length) bool, True on real tokens. In a graph that is exported, where nobody knows their number,
    every place counts as a token, nothing is moved, and `rows` and `at` are not there.
    """

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask
        self.index: Tensor | None = None  # (tokens,) int64 places in the flattened mask; None: nothing is moved
        if not torch.onnx.is_in_onnx_export():
            self.index = mask.flatten().nonzero().squeeze(1)

    @property
    def columns(self) -> Tensor:
        """The place of each token in its row: (tokens,) int64."""
        length = self.mask.shape[1]
        return torch.arange(length, device=self.mask.device) if self.index is None else self.index % length

    @property
    def rows(self) -> Tensor:
        """The row of each token: (tokens,) int64."""
        assert self.index is not None  # no graph is exported that asks
        return self.index // self.mask.shape[1]

    def unpad(self, rows: Tensor) -> Tensor:
        """(batch, length, …) -> (tokens, …)."""
        return rows if self.index is None else rows.flatten(0, 1).index_select(0, self.index)

    def pad(self, tokens: Tensor) -> Tensor:
        """(tokens, width) -> (batch, length, width), zeros at padding."""
        if self.index is None:
            return tokens
        padded = tokens.new_zeros(self.mask.numel(), tokens.shape[-1])
        return padded.index_copy_(0, self.index, tokens).unflatten(0, self.mask.shape)

    @property
    def first_rows(self) -> Rows:
        """The index of each row's first token, [CLS], among the tokens."""
        if self.index is None:
            return slice(None), slice(1)
        lengths = self.mask.sum(dim=1)
        return lengths.cumsum(0) - lengths

    def first(self, tokens: Tensor) -> Tensor:
        """(tokens, width), or (batch, width) of first tokens alone -> (batch, width): [CLS] of each row."""
        if self.index is None:
            return tokens[:, 0]
        return tokens if len(tokens) == len(self.mask) else tokens[self.first_rows]

    def attend(self, attention: nn.Module, qkv: tuple[Tensor, Tensor, Tensor], scores: Tensor | None = None) -> Tensor:
        """Attention within each row.

        Args:
            attention: A SelfAttention.
            qkv: Queries, keys and values, (tokens, width) each; the queries may be those of one token of each row.
            scores: Those of `attention` between the padded queries and keys, if they are computed already.

        Returns:
            The context of the queries, (queries, width).
        """
        query, key, value = qkv
        is_one_each = self.index is not None and len(query) < len(key)
        if scores is None:  # else queries and keys are not read again
            query, key = query[:, None] if is_one_each else self.pad(query), self.pad(key)
        context = attention(query, key, self.pad(value), self.mask[:, None, None, :], scores)
        return context[:, 0] if is_one_each else self.unpad(context)

    def at(self, tokens: Tensor, places: Tensor) -> Tensor:
        """(tokens, width), int64 places of real tokens in the flattened mask -> the tokens there."""
        assert self.index is not None  # as for rows
        return tokens[torch.searchsorted(self.index, places)]


@dataclass(frozen=True)
class Batch:
    """Padded token ids with their labels.

    input_ids, token_type_ids: (batch, length) int64. mask: (batch, length) bool, True on real tokens.
    labels: (batch,) int64 classes or float scores; for a masked LM (predicted tokens,) int64 token ids;
    None where no loss reads them.
    positions: (predicted tokens,) int64 indices into the flattened (batch·length) tokens, in the order
    of the labels; None for classifiers.
    numbers: (batch,) int64, which row of its data set each row is; None for text, which is masked anew each time.
    """

    input_ids: Tensor
    mask: Tensor
    token_type_ids: Tensor
    labels: Tensor | None = None
    positions: Tensor | None = None
    numbers: Tensor | None = None

    @property
    def gold(self) -> Tensor:
        """The labels, of a batch that has some."""
        assert self.labels is not None
        return self.labels

    @cached_property
    def real(self) -> RealTokens:
        """Where its real tokens are."""
        return RealTokens(self.mask)

    def to(self, device: torch.device) -> "Batch":
        """The same batch on `device`."""
        input_ids, mask, segments = (part.to(device) for part in (self.input_ids, self.mask, self.token_type_ids))
        optional = (self.labels, self.positions, self.numbers)
        return Batch(input_ids, mask, segments, *(None if part is None else part.to(device) for part in optional))

    def rows(self, chosen: Tensor) -> "Batch":
        """The rows `chosen` (int64, ascending), padded to the longest of them."""
        length = int(self.mask[chosen].sum(dim=1).max())
        labelled, positions = chosen, self.positions
        if positions is not None:
            place = torch.full((len(self.input_ids),), -1)
            place[chosen] = torch.arange(len(chosen))
            row, column = place[positions // self.mask.shape[1]], positions % self.mask.shape[1]
            labelled, positions = row >= 0, (row * length + column)[row >= 0]
        input_ids, mask, segments = (part[chosen, :length] for part in (self.input_ids, self.mask, self.token_type_ids))
        labels = None if self.labels is None else self.labels[labelled]
        numbers = None if self.numbers is None else self.numbers[chosen]
        return Batch(input_ids, mask, segments, labels, positions, numbers)

    def counts(self) -> dict[str, int]:
        """What losses are means over: rows, predictions (logits rows), real tokens, real (query, key) pairs."""
        lengths = self.mask.sum(dim=1)
        predictions = len(lengths) if self.positions is None else len(self.positions)
        pairs = int(lengths.square().sum())
        return {"rows": len(lengths), "predictions": predictions, "tokens": int(lengths.sum()), "pairs": pairs}


def best_device() -> torch.device:
    """The GPU where there is one, of several processes each its own; else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    return torch.device("cpu")


def pad(rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Ragged rows -> (rows, longest) int64, zeros behind the end, and the bool mask of what is real."""
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(lengths.max()) < lengths[:, None]
    values = np.zeros(mask.shape, dtype=np.int64)
    values[mask] = np.concatenate(rows)
    return torch.from_numpy(values), torch.from_numpy(mask)
