"""BERT (Devlin et al., 2019) whose forward pass computes and exposes what the losses ask for, of real tokens alone.

Parameter names and config.json are Hugging Face's, so folders move both ways (a test compares the
outputs). The modules are ours for two reasons: distillation reads what that class does not return
(unmasked scores, one layer and no further, the vocabulary at masked positions only), and importing it
costs seconds in each of some forty stage processes.
"""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinybert.config.fields import Architecture
from tinybert.models.outputs import Batch, ModelOutput, OutputSpec, RealTokens, Rows
from tinybert.models.packed_linear import gelu
from tinybert.pipeline.errors import UserError

LEVELS = 2**16  # on a CPU probabilities are multiples of 1/65536: four draws to a 64-bit random number


@dataclass(frozen=True)
class BertConfig:
    """The part of a Hugging Face BERT config.json that the computation depends on."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    initializer_range: float = 0.02
    pad_token_id: int = 0

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            raise UserError(
                f"architecture: width {self.hidden_size} is no multiple of {self.num_attention_heads} heads; "
                "change width or heads"
            )
        if self.type_vocab_size < 2:
            raise UserError(f"config.json: type_vocab_size {self.type_vocab_size}; pairs of sentences need 2 segments")
        if self.pad_token_id >= self.vocab_size:
            raise UserError(
                f"config.json: pad_token_id {self.pad_token_id} is no piece of a vocabulary of {self.vocab_size}"
            )

    @classmethod
    def of(cls, architecture, *, vocab_size: int, max_position_embeddings: int) -> "BertConfig":
        """From an `architecture` section of params."""
        return cls(
            vocab_size=vocab_size,
            hidden_size=architecture.width,
            num_hidden_layers=architecture.layers,
            num_attention_heads=architecture.heads,
            intermediate_size=architecture.feed_forward,
            max_position_embeddings=max_position_embeddings,
            hidden_dropout_prob=architecture.dropout,
            attention_probs_dropout_prob=architecture.dropout,
        )

    @property
    def shape(self) -> Architecture:
        """What recipes ask of a teacher."""
        return Architecture(
            layers=self.num_hidden_layers,
            width=self.hidden_size,
            heads=self.num_attention_heads,
            feed_forward=self.intermediate_size,
            dropout=self.hidden_dropout_prob,
        )

    def check_longer(self, tokens: int, what: str) -> None:
        """UserError where rows of `tokens` tokens are longer than the model has positions; `what` names their key."""
        if tokens > self.max_position_embeddings:
            raise UserError(
                f"{what}: a row has {tokens} tokens, but the model only {self.max_position_embeddings} positions; "
                "make rows shorter, or choose a model with more positions"
            )

    def as_dict(self) -> dict:
        """The fields under their config.json names."""
        return asdict(self)


class Dropout(nn.Module):
    """nn.Dropout by the function below."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, values: Tensor) -> Tensor:
        """The values, in training with some set to 0 and the others grown by as much as keeps the mean."""
        return dropout(values, self.probability) if self.training else values


def dropout(values: Tensor, probability: float) -> Tensor:
    """F.dropout on values of any shape, 0 <= probability < 1.

    On a CPU the probability is rounded to a multiple of 1/65536, and PyTorch's global generator gives four values at a
    time.
    """
    dropped = min(round(probability * LEVELS), LEVELS - 1)
    if values.device.type != "cpu":
        return F.dropout(values, probability)
    if dropped == 0:
        return values
    count = values.numel()
    draws = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)[:count]
    kept = (draws >= dropped - LEVELS // 2).view(values.shape)
    return values * kept.to(values.dtype).mul_(LEVELS / (LEVELS - dropped))


class Embeddings(nn.Module):
    """Word, position and segment embeddings, summed and normalised."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        self.LayerNorm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, positions: Tensor) -> Tensor:
        """Three of int64 that broadcast to one shape -> (that shape, width)."""
        summed = (
            self.word_embeddings(input_ids)
            + self.token_type_embeddings(token_type_ids)
            + self.position_embeddings(positions)
        )
        return self.dropout(self.LayerNorm(summed))

    def of(self, batch: Batch) -> Tensor:
        """The embeddings of a batch: (tokens, width)."""
        return self(batch.real.unpad(batch.input_ids), batch.real.unpad(batch.token_type_ids), batch.real.columns)


class SelfAttention(nn.Module):
    """Multi-head attention in steps, so that a model computes and returns no more than is requested."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.heads = config.num_attention_heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.dropout = config.attention_probs_dropout_prob

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores q·kᵀ/√d before mask and softmax.

        Args:
            query: (batch, queries, width), projected.
            key: (batch, keys, width), projected.

        Returns:
            (batch, heads, queries, keys).
        """
        query, key = self.split(query), self.split(key)
        return (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scores: Tensor | None = None
    ) -> Tensor:
        """The context of projected inputs.

        Args:
            query: (batch, queries, width).
            key: (batch, keys, width).
            value: (batch, keys, width).
            mask: (batch, 1, 1, keys) bool, True on real tokens; None where all are real.
            scores: (batch, heads, queries, keys) of this query and key, if they are computed already.

        Returns:
            (batch, queries, width), all heads side by side.
        """
        dropped = self.dropout if self.training else 0.0
        if scores is None and dropped and query.device.type == "cpu":  # PyTorch's fused CPU kernel has no dropout
            scores = self.scores(query, key)
        if scores is None:
            query, key, value = self.split(query), self.split(key), self.split(value)
            context = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropped)
        else:
            masked = scores if mask is None else scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
            context = dropout(masked.softmax(-1), dropped) @ self.split(value)
        return context.transpose(1, 2).flatten(2)

    def split(self, hidden: Tensor) -> Tensor:
        """(batch, length, width) -> (batch, heads, length, head width)."""
        return hidden.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class ResidualOutput(nn.Module):
    """Projection, dropout, residual sum, layer norm: the end of both halves of a layer."""

    def __init__(self, config: BertConfig, width_in: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width_in, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, hidden: Tensor, residual: Tensor) -> Tensor:
        return self.LayerNorm(self.dropout(self.dense(hidden)) + residual)


@dataclass(frozen=True)
class LayerSpec:
    """Which results of one layer are computed: its output, its scores, its queries, keys and values."""

    output: bool = True
    scores: bool = False
    qkv: bool = False


class LayerOutput(NamedTuple):
    """Results of one layer, None where not requested.

    hidden: (tokens, width). scores: (batch, heads, queries, keys). qkv: three of (tokens, width).
    """

    hidden: Tensor | None
    scores: Tensor | None = None
    qkv: tuple[Tensor, Tensor, Tensor] | None = None


class TokenLayout(Protocol):
    """How tokens, one behind the other, form rows that attend within themselves; RealTokens is one."""

    def attend(self, attention: nn.Module, qkv: tuple[Tensor, Tensor, Tensor], scores: Tensor | None = None) -> Tensor:
        """The context (queries, width) of projected queries, keys and values."""
        ...


class Attention(nn.Module):
    """The lower half of a layer."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.self = SelfAttention(config)  # so called in every published checkpoint
        self.output = ResidualOutput(config, config.hidden_size)


class Dense(nn.Module):
    """A linear map under the name that published checkpoints give it."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width_in, width_out)


class Layer(nn.Module):
    """One transformer layer; its one forward pass serves training, ONNX export and augmentation."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.intermediate = Dense(config.hidden_size, config.intermediate_size)
        self.output = ResidualOutput(config, config.intermediate_size)

    def forward(
        self,
        hidden: Tensor,
        layout: TokenLayout,
        want: LayerSpec = LayerSpec(),
        rows: Rows | None = None,
    ) -> LayerOutput:
        """Computes what `want` names, and the output only for the tokens `rows`.

        Args:
            hidden: (tokens, width), or (batch, length, width) in an exported graph.
            layout: Which tokens attend to each other.
            want: The results to compute.
            rows: An index into `hidden` with one token of each row: queries come from these tokens, keys and values
                from all. None: all tokens.

        Returns:
            The results; `hidden` is (tokens, width), or (indexed tokens, width) with `rows`.
        """
        attend, read = self.attention.self, hidden if rows is None else hidden[rows]
        query, key = attend.query(read), attend.key(hidden)
        scores = None
        if want.scores:
            assert isinstance(layout, RealTokens)  # the one layout whose scores a loss reads
            scores = attend.scores(layout.pad(query), layout.pad(key))
        if not (want.output or want.qkv):
            return LayerOutput(None, scores)
        qkv = query, key, attend.value(hidden)
        if not want.output:
            return LayerOutput(None, scores, qkv)
        attended = self.attention.output(layout.attend(attend, qkv, scores), read)
        output = self.output(gelu(self.intermediate.dense, attended), attended)
        return LayerOutput(output, scores, qkv if want.qkv else None)


class Encoder(nn.Module):
    """All layers."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))

    @property
    def layers(self) -> list[Layer]:
        """The layers, the lowest first."""
        return cast(list[Layer], list(self.layer))  # PyTorch's list does not say of what


class Bert(nn.Module):
    """Embeddings, layers and pooler, without a head."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.encoder = Encoder(config)
        self.pooler = Dense(config.hidden_size, config.hidden_size)

    def forward(self, batch: Batch, want: OutputSpec) -> tuple[ModelOutput, Tensor]:
        """Runs the layers that `want` needs; returns its activations (no logits) and the last hidden state run."""
        found, real = ModelOutput(), batch.real
        hidden = self.embeddings.of(batch)
        if 0 in want.hidden:
            found.hidden[0] = hidden
        layers = self.encoder.layers
        last = len(layers) if want.logits else want.top_layer
        for number, layer in enumerate(layers[:last], start=1):
            is_read = want.logits or number < last or number in want.hidden
            spec = LayerSpec(is_read, number in want.scores, number in want.qkv)
            hidden, scores, qkv = layer(
                hidden, real, spec, real.first_rows if want.only_first and number == last else None
            )
            if number in want.scores:
                found.scores[number] = scores
            if number in want.qkv:
                found.queries[number], found.keys[number], found.values[number] = qkv
            if number in want.hidden:
                found.hidden[number] = hidden
        return found, hidden

    def pooled(self, first: Tensor) -> Tensor:
        """The last hidden state of [CLS] after the pooler: (batch, width), both."""
        return torch.tanh(self.pooler.dense(first))


class Transform(Dense):
    """The hidden layer of the masked-LM head."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden: Tensor) -> Tensor:
        """(…, width), both."""
        return self.LayerNorm(F.gelu(self.dense(hidden)))


class MaskedLMHead(nn.Module):
    """Vocabulary logits; the output matrix is the word embedding (tied)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.transform = Transform(config)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden: Tensor, word_embeddings: Tensor) -> Tensor:
        return F.linear(self.transform(hidden), word_embeddings, self.bias)


class Heads(nn.Module):
    """The one head that is used of those a published checkpoint may hold."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.predictions = MaskedLMHead(config)


class BertModel(nn.Module, ABC):
    """A BERT with a head. `architecture` is the Hugging Face class that loads the same folder."""

    architecture: str
    model_type = "bert"

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.bert = Bert(config)

    def initialise(self) -> None:
        """Draws all weights from the global generator as BERT does: normal(0, initializer_range), zero biases."""
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=self.config.initializer_range)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)
        with torch.no_grad():
            self.bert.embeddings.word_embeddings.weight[self.config.pad_token_id].zero_()

    @property
    def parameter_count(self) -> int:
        """Number of weights, tied ones once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def forward(self, batch: Batch, want: OutputSpec = OutputSpec()) -> ModelOutput:  # noqa: B008 (frozen)
        """The wanted activations of a batch; logits as `head_logits` documents them."""
        activations, hidden = self.bert(batch, want)
        return replace(activations, logits=self.head_logits(hidden, batch)) if want.logits else activations

    @abstractmethod
    def head_logits(self, hidden: Tensor, batch: Batch) -> Tensor:
        """Last hidden state (tokens, width) -> logits; each head defines its shape."""


class MaskedLM(BertModel):
    """BERT with the masked-LM head; logits (predicted tokens, vocabulary), at `batch.positions` only."""

    architecture = "BertForMaskedLM"

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.cls = Heads(config)
        self.initialise()

    def head_logits(self, hidden: Tensor, batch: Batch) -> Tensor:
        assert batch.positions is not None  # of text that nothing is predicted of no logits are wanted
        predicted = batch.real.at(hidden, batch.positions)
        return self.cls.predictions(predicted, self.bert.embeddings.word_embeddings.weight)


class SequenceClassifier(BertModel):
    """BERT with a classification head; logits (batch, classes), one "class" for a regression."""

    architecture = "BertForSequenceClassification"

    def __init__(self, config: BertConfig, labels: tuple[str, ...]) -> None:
        super().__init__(config)
        self.labels = labels
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, len(labels))
        self.initialise()

    def head_logits(self, hidden: Tensor, batch: Batch) -> Tensor:
        return self.classifier(self.dropout(self.bert.pooled(batch.real.first(hidden))))
