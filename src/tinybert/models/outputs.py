"""What models read and return: batches of real tokens, the outputs a loss asks for, and the outputs."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinybert.pipeline.errors import UserError

QUERIES_MULTIPLE = 8  # rows with some queries are padded to a multiple of this: oneDNN compiles fewer kernels


@dataclass(frozen=True)
class OutputSpec:
    """Which outputs a forward pass computes and returns; nothing else is computed."""

    hidden: frozenset[int] = frozenset()  # hidden states: 0 is the embedding output, m the output of layer m
    scores: frozenset[int] = frozenset()  # layers (1-based) whose unmasked pre-softmax attention scores are returned
    logits: bool = True  # whether the head runs

    @property
    def layers(self) -> dict[str, frozenset[int]]:
        """Field of ModelOutput -> the layers that fill it."""
        return {"hidden": self.hidden, "scores": self.scores}


@dataclass(frozen=True)
class ModelOutput:
    """The requested outputs by layer; only real tokens are stored (`RealTokens`), except for padded scores."""

    hidden: dict[int, Tensor] = field(default_factory=dict)  # (tokens, width)
    scores: dict[int, Tensor] = field(default_factory=dict)  # (batch, heads, queries, keys), before mask and softmax
    logits: Tensor | None = None  # (batch, classes), or (predicted tokens, vocabulary) of a masked LM

    @property
    def required_logits(self) -> Tensor:
        """The logits of a pass that computed them."""
        assert self.logits is not None
        return self.logits


@dataclass(frozen=True)
class DistillationTargets(ModelOutput):
    """The teacher's outputs under the layer map: hidden and scores by student layer."""


@dataclass(frozen=True)
class ReadTokens:
    """The tokens that a head reads, any number of each row."""

    index: Tensor | tuple[slice, slice] | tuple[Tensor, Tensor]  # into hidden states
    layout: "RealTokens"  # of these tokens alone


class RealTokens:
    """Where the real tokens of padded rows are: models compute these only, and only attention sees rows.

    In an exported graph, where their number is unknown, and in nearly full batches (`dense_from`) nothing is moved:
    every place is computed as a token.

    Args:
        mask: (batch, length) bool, True on real tokens.
        with_padding: Whether padding is computed too.
        multiple: Padding follows the real tokens until their number is a multiple of this, or no padding is left.
            oneDNN compiles its products for each new number of tokens, and malloc searches longer for new sizes.
        dense_from: If at least this share of the places is real, nothing is moved.
    """

    def __init__(self, mask: Tensor, *, with_padding: bool = False, multiple: int = 1, dense_from: float = inf) -> None:
        self.mask = mask
        self.index: Tensor | None = None  # (tokens,) int64 places in the flattened mask; None: nothing is moved
        self.output_index: Tensor | None = None  # places of the real tokens if nothing is moved except the outputs
        self.count: int | None = None  # of tokens without the padding that follows; None: nothing does
        self.is_full = False  # whether every place is known to be a real token
        if not torch.onnx.is_in_onnx_export():
            computed = torch.ones_like(mask) if with_padding else mask
            self.index = computed.flatten().nonzero().squeeze(1)
            self.is_full = not with_padding and len(self.index) == mask.numel()
            if len(self.index) >= dense_from * mask.numel():
                self.output_index, self.index = self.index, None
            elif missing := -len(self.index) % multiple:
                self.count = len(self.index)
                self.index = torch.cat([self.index, (~computed).flatten().nonzero().squeeze(1)[:missing]])

    @property
    def columns(self) -> Tensor:
        """The place of each token in its row: (tokens,) int64."""
        length = self.mask.shape[1]
        return torch.arange(length, device=self.mask.device) if self.index is None else self.index % length

    def first_tokens(self) -> ReadTokens:
        """[CLS] of each row."""
        if self.index is None:
            return ReadTokens((slice(None), slice(1)), RealTokens(self.mask[:, :1], dense_from=0.0))
        starts = torch.arange(len(self.mask), device=self.mask.device) * self.mask.shape[1]
        return ReadTokens(torch.searchsorted(self.index[: self.count], starts), RealTokens(self.mask[:, :1]))

    def tokens_at(self, places: Tensor) -> ReadTokens:
        """The tokens at `places`, ascending int64 indices of real tokens in the flattened mask."""
        length = self.mask.shape[1]
        counts = torch.bincount(places // length, minlength=len(self.mask))
        most = int(counts.max())
        most += -most % QUERIES_MULTIPLE if most > 1 else 0
        layout = RealTokens(torch.arange(most, device=counts.device) < counts[:, None])
        if self.index is None:
            return ReadTokens((places // length, places % length), layout)
        return ReadTokens(torch.searchsorted(self.index[: self.count], places), layout)

    def unpad(self, rows: Tensor) -> Tensor:
        """(batch, length, …) -> (tokens, …)."""
        return rows if self.index is None else rows.flatten(0, 1).index_select(0, self.index)

    def pad(self, tokens: Tensor) -> Tensor:
        """(tokens, width) -> (batch, length, width), zeros at positions that are not computed."""
        if self.index is None:
            return tokens
        padded = tokens.new_zeros(self.mask.numel(), tokens.shape[-1])
        return padded.index_copy_(0, self.index, tokens).unflatten(0, self.mask.shape)

    def outputs_of(self, computed: Tensor) -> Tensor:
        """The computed tokens without padding: (tokens, width)."""
        if self.output_index is None:
            return computed[: self.count]
        flat = computed.flatten(0, 1)
        return flat if len(flat) == len(self.output_index) else flat.index_select(0, self.output_index)

    def first(self, tokens: Tensor) -> Tensor:
        """[CLS] of each row, if tokens are moved: (tokens, width), or first tokens only, -> (batch, width)."""
        return tokens if len(tokens) == len(self.mask) else tokens[self.first_tokens().index]

    def attend(
        self, attention: nn.Module, qkv: Sequence[Tensor], scores: Tensor | None = None, only: ReadTokens | None = None
    ) -> Tensor:
        """The context (queries, width) of a SelfAttention within each row.

        Args:
            qkv: (tokens, width) each.
            scores: Those of the padded queries and keys, if computed already.
            only: The tokens of the queries; None: all.
        """
        (query, key, value), rows = qkv, only.layout if only else self
        if scores is None:  # otherwise queries and keys are not read again
            query, key = rows.pad(query), self.pad(key)
        mask = None if self.is_full else self.mask[:, None, None, :]
        return rows.unpad(attention(query, key, self.pad(value), mask, scores))


class Sized(nn.Module):
    """A model that knows its number of weights."""

    @property
    def parameter_count(self) -> int:
        """Number of weights, tied ones once."""
        return sum(parameter.numel() for parameter in self.parameters())


class PositionLimit:
    """A model's config whose positions limit the tokens of a row."""

    max_position_embeddings: int

    def check_length(self, tokens: int, key: str) -> None:
        """Raises UserError if rows of `tokens` tokens exceed the model's positions; `key` of params set the length."""
        if tokens > self.max_position_embeddings:
            limit = f"allowed: at most {self.max_position_embeddings}, the model's positions"
            raise UserError(f"{key}: too long for the model (got {tokens} tokens); {limit}; fix: lower it")


@dataclass(frozen=True)
class Batch:
    """Padded token ids with their labels; int64 unless stated."""

    input_ids: Tensor  # (batch, length)
    mask: Tensor  # (batch, length) bool, True on real tokens
    token_type_ids: Tensor  # (batch, length), the segment of each token
    # (batch,) classes or float scores, (batch, labels) float; (predicted tokens,) token ids for a masked LM
    labels: Tensor | None = None
    positions: Tensor | None = None  # (predicted tokens,) ascending places in the flattened tokens, for a masked LM
    numbers: Tensor | None = None  # (batch,) row numbers in the data set; None for text, masked again in each epoch
    computes_padding: bool = False  # whether models compute padding too; real tokens never attend to it

    @property
    def gold(self) -> Tensor:
        """The labels of a batch that has some."""
        assert self.labels is not None
        return self.labels

    @cached_property
    def real(self) -> RealTokens:
        return RealTokens(self.mask, with_padding=self.computes_padding)

    def to(self, device: torch.device) -> "Batch":
        moved: dict[str, Any] = {name: part.to(device) for name, part in vars(self).items() if isinstance(part, Tensor)}
        return replace(self, **moved)

    def padded_to(self, length: int) -> "Batch":
        """The same rows with more padding, which models compute, as the published code does."""
        width = self.input_ids.shape[1]
        assert width <= length
        parts = self.input_ids, self.mask, self.token_type_ids
        ids, mask, segments = (F.pad(part, (0, length - width)) for part in parts)
        positions = None if self.positions is None else self.positions // width * length + self.positions % width
        return Batch(ids, mask, segments, self.labels, positions, self.numbers, computes_padding=True)

    def rows(self, chosen: Tensor) -> "Batch":
        """The rows `chosen` (int64, ascending), padded to the longest of them."""
        length = int(self.mask[chosen].sum(dim=1).max())
        labeled, positions = chosen, self.positions
        if positions is not None:
            # A chosen row gets a new number and a new width, and with them its predicted tokens new positions.
            row, column = positions // self.mask.shape[1], positions % self.mask.shape[1]
            labeled = torch.isin(row, chosen)
            positions = torch.searchsorted(chosen, row[labeled]) * length + column[labeled]
        input_ids, mask, segments = (part[chosen, :length] for part in (self.input_ids, self.mask, self.token_type_ids))
        labels = None if self.labels is None else self.labels[labeled]
        numbers = None if self.numbers is None else self.numbers[chosen]
        return Batch(input_ids, mask, segments, labels, positions, numbers)

    def counts(self) -> dict[str, int]:
        """What losses are means over: rows, predictions (rows of logits), real tokens, real (query, key) pairs."""
        lengths = self.mask.sum(dim=1)
        tokens, pairs = int(lengths.sum()), int(lengths.square().sum())
        predictions = len(lengths if self.positions is None else self.positions)
        return {"rows": len(lengths), "predictions": predictions, "tokens": tokens, "pairs": pairs}


def best_device() -> torch.device:
    """The GPU if there is one, a separate one for each of several processes; otherwise the CPU."""
    return torch.device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu")


def check_bfloat16() -> None:
    """Raises UserError if this machine does not compute bfloat16 in hardware."""
    if torch.cuda.is_available():
        supported = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        supported = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if not supported:
        raise UserError("precision: bfloat16 is not supported by this machine; fix: set it to float32")


def pad(rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Integer rows of different lengths -> (rows, longest) int64 with zeros at the end, and the mask of real tokens."""
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(lengths.max()) < lengths[:, None]
    values = np.zeros(mask.shape, dtype=np.int64)
    values[mask] = np.concatenate(rows)
    return torch.from_numpy(values), torch.from_numpy(mask)
