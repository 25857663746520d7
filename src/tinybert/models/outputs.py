"""What models read and return: batches of real tokens, the outputs a loss asks for, and the outputs."""

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
    """Which outputs a forward pass computes and returns; nothing else is computed.

    Attributes:
        hidden: Indices of hidden states: 0 = embedding output, m = output of layer m.
        scores: Layers (1-based) whose unmasked pre-softmax attention scores are returned.
        qkv: Layers whose queries, keys and values are returned.
        logits: Whether the head runs.
        only_first: Whether the last layer computes only the first token of each row, which is all that a classifier's
            head reads. Equal up to rounding.
    """

    hidden: frozenset[int] = frozenset()
    scores: frozenset[int] = frozenset()
    qkv: frozenset[int] = frozenset()
    logits: bool = True
    only_first: bool = False

    def of_layer(self, number: int) -> frozenset[str]:
        """The fields of ModelOutput that one layer fills."""
        layers = {"hidden": self.hidden, "scores": self.scores} | dict.fromkeys(("queries", "keys", "values"), self.qkv)
        return frozenset(name for name, numbers in layers.items() if number in numbers)

    @property
    def top_layer(self) -> int:
        """The highest layer that is read when the head does not run."""
        return max(self.hidden | self.scores | self.qkv, default=0)


@dataclass(frozen=True)
class ModelOutput:
    """The requested outputs of one forward pass, of teacher and student alike.

    Only real tokens are stored, row after row (`RealTokens`); scores alone are padded.

    Attributes:
        hidden: index -> (tokens, width).
        scores: layer -> (batch, heads, queries, keys), q·kᵀ/√d before mask and softmax.
        queries: layer -> (tokens, width), all heads side by side; likewise keys and values.
        logits: (batch, classes), or (predicted tokens, vocabulary) of a masked LM; None when not requested.
    """

    hidden: dict[int, Tensor] = field(default_factory=dict)
    scores: dict[int, Tensor] = field(default_factory=dict)
    queries: dict[int, Tensor] = field(default_factory=dict)
    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)
    logits: Tensor | None = None

    @property
    def required_logits(self) -> Tensor:
        """The logits of a pass that computed them."""
        assert self.logits is not None
        return self.logits


@dataclass(frozen=True)
class DistillationTargets(ModelOutput):
    """The teacher's outputs under the layer map.

    hidden and scores are keyed by student layer; queries, keys and values by teacher layer, because the map weighs the
    relations computed from them.
    """


class RealTokens:
    """Where the real tokens of padded rows are: models compute these alone, and only attention sees rows.

    `mask` is (batch, length) bool, True on real tokens. In a graph that is being exported their number is unknown:
    there every place counts as a token, nothing is moved, and `rows` and `at` do not exist.
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
        assert self.index is not None
        return self.index // self.mask.shape[1]

    @property
    def first_rows(self) -> Rows:
        """The index of each row's first token, [CLS], among the tokens."""
        if self.index is None:
            return slice(None), slice(1)
        lengths = self.mask.sum(dim=1)
        return lengths.cumsum(0) - lengths

    def unpad(self, rows: Tensor) -> Tensor:
        """(batch, length, …) -> (tokens, …)."""
        return rows if self.index is None else rows.flatten(0, 1).index_select(0, self.index)

    def pad(self, tokens: Tensor) -> Tensor:
        """(tokens, width) -> (batch, length, width), zeros at padding."""
        if self.index is None:
            return tokens
        padded = tokens.new_zeros(self.mask.numel(), tokens.shape[-1])
        return padded.index_copy_(0, self.index, tokens).unflatten(0, self.mask.shape)

    def first(self, tokens: Tensor) -> Tensor:
        """[CLS] of each row: (tokens, width), or first tokens alone, -> (batch, width)."""
        if self.index is None:
            return tokens[:, 0]
        return tokens if len(tokens) == len(self.mask) else tokens[self.first_rows]

    def at(self, tokens: Tensor, places: Tensor) -> Tensor:
        """The tokens (…, width) at `places`, int64 indices of real tokens in the flattened mask."""
        assert self.index is not None
        return tokens[torch.searchsorted(self.index, places)]

    def attend(self, attention: nn.Module, qkv: tuple[Tensor, Tensor, Tensor], scores: Tensor | None = None) -> Tensor:
        """The context (queries, width) of a SelfAttention within each row.

        qkv: (tokens, width) each; the queries may be those of one token of each row. scores: those of the padded
        queries and keys, if computed already.
        """
        query, key, value = qkv
        is_one_each = self.index is not None and len(query) < len(key)
        if scores is None:  # otherwise queries and keys are not read again
            query, key = query[:, None] if is_one_each else self.pad(query), self.pad(key)
        context = attention(query, key, self.pad(value), self.mask[:, None, None, :], scores)
        return context[:, 0] if is_one_each else self.unpad(context)


@dataclass(frozen=True)
class Batch:
    """Padded token ids with their labels.

    Attributes:
        input_ids: (batch, length) int64.
        mask: (batch, length) bool, True on real tokens.
        token_type_ids: (batch, length) int64, the segment of each token.
        labels: (batch,) int64 classes or float scores; (predicted tokens,) int64 token ids for a masked LM; None if no
            loss reads them.
        positions: (predicted tokens,) int64 indices into the flattened tokens, in the order of the labels; None for
            classifiers.
        numbers: (batch,) int64 row numbers in the data set; None for text, which is masked again in each epoch.
    """

    input_ids: Tensor
    mask: Tensor
    token_type_ids: Tensor
    labels: Tensor | None = None
    positions: Tensor | None = None
    numbers: Tensor | None = None

    @property
    def gold(self) -> Tensor:
        """The labels of a batch that has some."""
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
            # A chosen row gets a new number and a new width, and with them its predicted tokens new positions.
            place = torch.full((len(self.input_ids),), -1)
            place[chosen] = torch.arange(len(chosen))
            row, column = place[positions // self.mask.shape[1]], positions % self.mask.shape[1]
            labelled, positions = row >= 0, (row * length + column)[row >= 0]
        input_ids, mask, segments = (part[chosen, :length] for part in (self.input_ids, self.mask, self.token_type_ids))
        labels = None if self.labels is None else self.labels[labelled]
        numbers = None if self.numbers is None else self.numbers[chosen]
        return Batch(input_ids, mask, segments, labels, positions, numbers)

    def counts(self) -> dict[str, int]:
        """What losses are means over: rows, predictions (rows of logits), real tokens, real (query, key) pairs."""
        lengths = self.mask.sum(dim=1)
        predictions = len(lengths) if self.positions is None else len(self.positions)
        pairs = int(lengths.square().sum())
        return {"rows": len(lengths), "predictions": predictions, "tokens": int(lengths.sum()), "pairs": pairs}


def best_device() -> torch.device:
    """The GPU if there is one, a separate one for each of several processes; otherwise the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    return torch.device("cpu")


def pad(rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Integer rows of different lengths -> (rows, longest) int64 with zeros at the end, and the mask of real tokens."""
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(lengths.max()) < lengths[:, None]
    values = np.zeros(mask.shape, dtype=np.int64)
    values[mask] = np.concatenate(rows)
    return torch.from_numpy(values), torch.from_numpy(mask)
