"""The BiLSTM student of Tang et al. (2019), "Distilling task-specific knowledge from BERT into simple neural networks".

Each direction is an LSTM of its own over padded rows, the backward one over rows reversed within their real length. A
bidirectional LSTM over packed sequences computes the same, but not every exporter knows it.
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from tinybert.config.fields import HUGE, Dropout, Fraction, NonNegativeInt, SmallPositiveInt, Width
from tinybert.config.tasks import ProblemType
from tinybert.models.outputs import Batch, ModelOutput, OutputSpec, PositionLimit, Sized
from tinybert.models.packed_linear import Linear, matrix_flops
from tinybert.pipeline.errors import UserError


@dataclass(frozen=True)
class BiLstmConfig(PositionLimit):
    """The architecture, under its config.json names; UserError if the fields do not fit."""

    vocab_size: Width
    embedding_size: Width
    hidden_size: Width  # of one direction's state
    num_hidden_layers: SmallPositiveInt  # one in the paper
    intermediate_size: Width  # of the ReLU layer before the logits
    dropout: Dropout = 0.1
    initializer_range: Fraction = 0.1  # standard deviation of random word embeddings
    pad_token_id: NonNegativeInt = 0
    problem_type: ProblemType | None = None
    max_position_embeddings = HUGE  # a class attribute, not a config field: an LSTM has no positions

    def __post_init__(self) -> None:
        if self.pad_token_id >= self.vocab_size:
            raise UserError(f"pad_token_id: must be below vocab_size (got {self.pad_token_id}); fix: change it")


class SentenceEncoder(nn.Module):
    """Word embeddings and LSTM layers: a sentence becomes one vector."""

    def __init__(self, config: BiLstmConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.embedding_size, padding_idx=config.pad_token_id)
        widths_in = [config.embedding_size] + [2 * config.hidden_size] * (config.num_hidden_layers - 1)
        names = ("forward_lstm", "backward_lstm")
        lstms = ({name: nn.LSTM(width, config.hidden_size, batch_first=True) for name in names} for width in widths_in)
        self.layer = nn.ModuleList(map(nn.ModuleDict, lstms))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
        """input_ids (rows, length), lengths (rows,) -> (rows, 2·hidden): the final states; zeros for an empty row."""
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        last = lengths[:, None] - 1
        # The mirror is its own inverse, and keeps padding behind the real tokens, where it cannot change their states.
        mirror = torch.where(positions <= last, last - positions, positions)
        states = self.word_embeddings(input_ids)
        for layer in cast(list[nn.ModuleDict], self.layer):
            states = self.dropout(states)
            ahead, _ = layer["forward_lstm"](states)
            back = _take(layer["backward_lstm"](_take(states, mirror))[0], mirror)
            states = torch.cat([ahead, back], -1)
        return torch.cat([_take(ahead, last.clamp(min=0))[:, 0], back[:, 0]], -1).masked_fill(lengths[:, None] < 1, 0.0)


class BiLstmClassifier(Sized):
    """BiLSTM classifier; logits (batch, classes), one "class" for a regression.

    With `pair`, rows hold two sentences: both pass through the one encoder, and the head reads [a, b, a⊙b, |a−b|] of
    their vectors; else it reads the sentence's vector (Tang et al. 2019, sec. 3.1).
    """

    architecture = "BiLstmForSequenceClassification"
    model_type = "bilstm"

    def __init__(self, config: BiLstmConfig, labels: tuple[str, ...], *, pair: bool) -> None:
        super().__init__()
        self.config, self.labels, self.pair = config, labels, pair
        self.encoder = SentenceEncoder(config)
        dense = Linear(2 * config.hidden_size * (4 if pair else 1), config.intermediate_size)
        self.classifier = nn.ModuleDict({"dense": dense, "output": Linear(config.intermediate_size, len(labels))})
        self.dropout = nn.Dropout(config.dropout)
        words = self.encoder.word_embeddings.weight
        nn.init.normal_(words, std=config.initializer_range)  # the other weights keep PyTorch's default
        with torch.no_grad():
            words[config.pad_token_id].zero_()

    def forward(self, batch: Batch, spec: OutputSpec = OutputSpec()) -> ModelOutput:  # noqa: B008 (frozen)
        """The logits of rows [CLS] a [SEP] or [CLS] a [SEP] b [SEP], where b [SEP] is segment 1; it has no others."""
        vectors = self.encoder(*self._sentences(batch))
        if self.pair:
            first, second = vectors.chunk(2)
            vectors = torch.cat([first, second, first * second, (first - second).abs()], -1)
        hidden = torch.relu(self.classifier["dense"](vectors))
        return ModelOutput(logits=self.classifier["output"](self.dropout(hidden)))

    def flops(self, tokens: int) -> int:
        """FLOPs of the matrix products of a row of `tokens` real tokens, 2 per multiply-add; [CLS] is no step."""
        return (tokens - 1) * matrix_flops(self.encoder.layer) + matrix_flops(self.classifier)

    def _sentences(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Token ids (sentences, longest), lengths (sentences,): all first sentences, then all second ones of pairs."""
        # [CLS] is left out, because only the first sentence has one, and equal sentences must get equal vectors.
        first_end = (batch.mask & (batch.token_type_ids == 0)).sum(1)
        starts, ends, rows = torch.ones_like(first_end), first_end, batch.input_ids
        if self.pair:
            starts, ends = torch.cat([starts, first_end]), torch.cat([ends, batch.mask.sum(1)])
            rows = torch.cat([rows, rows])
        lengths = ends - starts
        longest = lengths.max().clamp(min=1)  # still a tensor, so that an exported graph follows it
        columns = starts[:, None] + torch.arange(longest, device=rows.device)  # type: ignore[call-overload] # takes it
        # Columns behind a sentence's end hold other tokens; the lengths hide them.
        return rows.gather(1, columns.clamp(max=rows.shape[1] - 1)), lengths


def embeddings_from(teacher_embeddings: Tensor, size: int) -> Tensor:
    """The teacher's word embeddings (vocabulary, width) in `size` dimensions, at most as many, float32.

    These are coordinates along the leading right singular vectors, not centered and not rescaled: no other `size`
    dimensions preserve inner products better (Eckart and Young 1936).
    """
    embeddings = teacher_embeddings.detach().double()
    if size == embeddings.shape[1]:
        return embeddings.float()
    # Right singular vectors are the eigenvectors of EᵀE: a matrix of the width, not of the vocabulary.
    _, vectors = torch.linalg.eigh(embeddings.T @ embeddings)
    leading = vectors.flip(1)[:, :size]  # eigh sorts upwards
    # Eigenvectors have no sign of their own; making the largest entry positive makes the result deterministic.
    largest = leading.gather(0, leading.abs().argmax(0, keepdim=True))
    return (embeddings @ (leading * largest.sign())).float()


def _take(states: Tensor, columns: Tensor) -> Tensor:
    """states (rows, length, width), columns (rows, taken) -> (rows, taken, width)."""
    return states.gather(1, columns[..., None].expand(-1, -1, states.shape[-1]))
