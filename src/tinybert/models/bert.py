"""BERT (Devlin et al., 2019) that hardly computes padding and returns the outputs that losses ask for.

Parameter names and config.json are Hugging Face's. The modules are ours, because distillation reads what its class does
not return (unmasked scores, some layers, the vocabulary at masked positions), and importing that class takes seconds.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinybert.config.fields import Architecture, Dropout, Fraction, NonNegativeInt, SmallPositiveInt, Width
from tinybert.config.tasks import ProblemType
from tinybert.models.outputs import Batch, ModelOutput, OutputSpec, PositionLimit, ReadTokens, RealTokens, Sized
from tinybert.models.packed_linear import Linear, linear_float32, linear_gelu, matrix_flops
from tinybert.pipeline.errors import UserError

DROPOUT_LEVELS = 2**16  # CPU dropout probabilities are multiples of 1/65536: four draws per 64-bit random number
FUSED_FROM_TOKENS = 129
NARROW_FROM_TOKENS = 64  # keys from which training computes softmax in the scores' own type, such as bfloat16
TOKENS_MULTIPLE = 64  # of all rows of a batch
DENSE_FROM = 0.95  # share of real tokens from which padding is computed too: cheaper than gathering the others
OUTPUT_ONLY = frozenset({"hidden"})
# Key of an `architecture` section of params -> field of config.json.
ARCHITECTURE_FIELDS = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "feed_forward": "intermediate_size",
    "dropout": "hidden_dropout_prob",
}


@dataclass(frozen=True)
class BertConfig(PositionLimit):
    """The fields of a Hugging Face BERT config.json that the computation depends on; UserError if they do not fit."""

    vocab_size: Width
    hidden_size: Width
    num_hidden_layers: SmallPositiveInt
    num_attention_heads: Width
    intermediate_size: Width
    max_position_embeddings: Width = 512
    type_vocab_size: Width = 2
    layer_norm_eps: Fraction = 1e-12
    hidden_dropout_prob: Dropout = 0.1
    attention_probs_dropout_prob: Dropout = 0.1
    initializer_range: Fraction = 0.02
    pad_token_id: NonNegativeInt = 0
    problem_type: ProblemType | None = None  # of a classifier

    def __post_init__(self) -> None:
        rules = (
            ("num_attention_heads", "must divide hidden_size", self.hidden_size % self.num_attention_heads == 0),
            ("type_vocab_size", "must be 2 or more, for pairs of sentences", self.type_vocab_size >= 2),
            ("pad_token_id", "must be below vocab_size", self.pad_token_id < self.vocab_size),
        )
        for name, rule, holds in rules:
            if not holds:
                raise UserError(f"{name}: {rule} (got {getattr(self, name)}); fix: change it, or choose another model")

    @classmethod
    def of(cls, architecture: Architecture, *, vocab_size: int, max_position_embeddings: int = 512) -> "BertConfig":
        """From an `architecture` section of params."""
        return cls(vocab_size=vocab_size, max_position_embeddings=max_position_embeddings, **_fields_of(architecture))

    def resized(self, architecture: Architecture) -> "BertConfig":
        """A config of another architecture; all that an architecture does not set stays."""
        return replace(self, **_fields_of(architecture))

    @property
    def shape(self) -> Architecture:
        """The sizes that students are checked against, unvalidated: published models may exceed what params allow."""
        return Architecture.model_construct(**{name: getattr(self, key) for name, key in ARCHITECTURE_FIELDS.items()})


def _fields_of(architecture: Architecture) -> dict[str, Any]:
    fields = {theirs: getattr(architecture, ours) for ours, theirs in ARCHITECTURE_FIELDS.items()}
    return fields | {"attention_probs_dropout_prob": architecture.dropout}


def dropout(values: Tensor, probability: float, training: bool = True) -> Tensor:
    """F.dropout from fewer random bits, because PyTorch's own takes a fifth of a small student's step on a CPU.

    There the probability, below 1, is rounded to a multiple of 1/65536, and each draw of PyTorch serves four values.
    """
    dropped = min(round(probability * DROPOUT_LEVELS), DROPOUT_LEVELS - 1)
    if values.device.type != "cpu":
        return F.dropout(values, probability, training)
    if dropped == 0 or not training:
        return values
    count = values.numel()
    draws = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)[:count]
    kept = (draws >= dropped - DROPOUT_LEVELS // 2).view(values.shape)
    # Viewed as integers, because PyTorch converts bool to bfloat16 three times as slowly.
    return values * kept.view(torch.uint8).to(values.dtype).mul_(DROPOUT_LEVELS / (DROPOUT_LEVELS - dropped))


class Parts(nn.ModuleDict):
    """A ModuleDict whose modules are attributes, named as in published models."""

    def __getattr__(self, name: str) -> Any:  # typed Any: ModuleDict's is Tensor | Module
        return super().__getattr__(name)


class Embeddings(nn.Module):
    """Word, position and segment embeddings, summed and normalized."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        self.LayerNorm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.dropout = config.hidden_dropout_prob

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, positions: Tensor) -> Tensor:
        """Three int64 tensors that broadcast to one shape -> (that shape, width)."""
        summed = self.word_embeddings(input_ids) + self.token_type_embeddings(token_type_ids)
        return dropout(self.LayerNorm(summed + self.position_embeddings(positions)), self.dropout, self.training)

    def of(self, batch: Batch, layout: RealTokens) -> Tensor:
        """The embeddings of a batch: (tokens, width), or (batch, length, width) if nothing is moved."""
        return self(layout.unpad(batch.input_ids), layout.unpad(batch.token_type_ids), layout.columns)


class SelfAttention(nn.Module):
    """Multi-head attention between projected inputs; the layer runs the projections."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.heads = config.num_attention_heads
        self.query = Linear(width, width)
        self.key = Linear(width, width)
        self.value = Linear(width, width)
        self.dropout = config.attention_probs_dropout_prob

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scores: Tensor | None) -> Tensor:
        """The context (batch, queries, width), all heads side by side.

        query is (batch, queries, width), key and value (batch, keys, width); mask (batch, 1, 1, keys) is True on real
        tokens, None if all are real. `scores`, if given, are `self.scores(query, key)`, and replace query and key.
        """
        probability = self.dropout if self.training else 0.0
        # PyTorch's fused CPU kernel has no dropout, and is slower on short rows (five times in bfloat16).
        if scores is None and query.device.type == "cpu" and (probability or key.shape[1] < FUSED_FROM_TOKENS):
            scores = self.scores(query, key)
        if scores is None:
            query, key, value = self.split(query), self.split(key), self.split(value)
            context = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=probability)
        else:
            if mask is not None:  # added, because masked_fill takes twice as long, and again in the backward pass
                scores = scores + scores.new_zeros(mask.shape).masked_fill(~mask, torch.finfo(scores.dtype).min)
            # On CPUs, softmax is faster in float32 than in bfloat16 if rows are short or no gradient is computed.
            is_narrow = self.training and scores.shape[-1] >= NARROW_FROM_TOKENS
            wide = None if is_narrow else torch.promote_types(scores.dtype, torch.float32)
            weights = scores.softmax(-1, dtype=wide).to(value.dtype)
            context = dropout(weights, self.dropout, self.training) @ self.split(value)
        return context.transpose(1, 2).flatten(2)

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """q·kᵀ/√d before mask and softmax: (batch, heads, queries, keys)."""
        query, key = self.split(query), self.split(key)
        return (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)

    def split(self, hidden: Tensor) -> Tensor:
        """(batch, length, width) -> (batch, heads, length, head width)."""
        return hidden.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class ResidualOutput(nn.Module):
    """Projection, dropout, residual sum, layer norm: the end of both halves of a layer."""

    def __init__(self, config: BertConfig, width_in: int) -> None:
        super().__init__()
        self.dense = Linear(width_in, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = config.hidden_dropout_prob

    def forward(self, hidden: Tensor, residual: Tensor) -> Tensor:
        return self.LayerNorm(dropout(self.dense(hidden), self.dropout, self.training) + residual)


class Layer(nn.Module):
    """One transformer layer; its forward pass serves training, ONNX export and augmentation."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.attention = Parts({"self": SelfAttention(config), "output": ResidualOutput(config, width)})
        self.intermediate = Parts({"dense": Linear(width, config.intermediate_size)})
        self.output = ResidualOutput(config, config.intermediate_size)

    def forward(
        self, hidden: Tensor, layout: RealTokens, want: Set[str] = OUTPUT_ONLY, only: ReadTokens | None = None
    ) -> dict[str, Tensor]:
        """The fields of ModelOutput that `want` names.

        Args:
            hidden: (tokens, width), or (batch, length, width) if nothing is moved.
            layout: Which tokens attend to each other.
            want: "hidden" (the layer's output), "scores", or both.
            only: The tokens of which queries and output are computed; keys and values are those of all. None: all.
                Not for scores.
        """
        attend, read = self.attention.self, hidden[only.index] if only else hidden
        query, key, scores = attend.query(read), attend.key(hidden), None
        found = {}
        if "scores" in want:
            found["scores"] = scores = attend.scores(layout.pad(query), layout.pad(key))
        if "hidden" in want:
            value = attend.value(hidden)
            attended = self.attention.output(layout.attend(attend, (query, key, value), scores, only), read)
            found["hidden"] = self.output(linear_gelu(self.intermediate.dense, attended), attended)
        return found


class Bert(nn.Module):
    """Embeddings, layers and pooler, without a head."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.encoder = Parts({"layer": nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))})
        self.pooler = Parts({"dense": Linear(config.hidden_size, config.hidden_size)})

    def forward(self, batch: Batch, spec: OutputSpec, *, skips_unread: bool) -> tuple[ModelOutput, Tensor]:
        """The requested outputs without logits; and for logits the last states that the head reads.

        (predicted tokens, width), or without `batch.positions` [CLS]: (batch, width), or (batch, 1, width) if nothing
        is moved. With `skips_unread` the last layer computes these only, unless one of its outputs is requested.
        """
        padding = batch.computes_padding
        layout = RealTokens(batch.mask, with_padding=padding, multiple=TOKENS_MULTIPLE, dense_from=DENSE_FROM)
        found, hidden = ModelOutput(), self.embeddings.of(batch, layout)
        if 0 in spec.hidden:
            found.hidden[0] = layout.outputs_of(hidden)
        depth = len(self.encoder.layer)
        last = depth if spec.logits else max(spec.hidden | spec.scores, default=0)
        skips_unread = skips_unread and not any(depth in layers for layers in spec.layers.values())
        read = None
        if spec.logits:
            read = layout.first_tokens() if batch.positions is None else layout.tokens_at(batch.positions)
        for number, layer in enumerate(self.encoder.layer[:last], start=1):
            exposed = {name for name, layers in spec.layers.items() if number in layers}
            is_read = spec.logits or number < last
            only = read if skips_unread and number == depth else None
            results = layer(hidden, layout, exposed | OUTPUT_ONLY if is_read else exposed, only)
            for name in exposed:
                getattr(found, name)[number] = results[name] if name == "scores" else layout.outputs_of(results[name])
            hidden = results.get("hidden", hidden)
        return found, hidden[read.index] if read and not skips_unread else hidden


class MaskedLMHead(nn.Module):
    """Vocabulary logits; the output matrix is the word embedding (tied)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.transform = Parts({"dense": Linear(config.hidden_size, config.hidden_size), "LayerNorm": norm})
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def transformed(self, hidden: Tensor) -> Tensor:
        """The head's hidden layer: (tokens, width) -> the same."""
        return self.transform.LayerNorm(F.gelu(self.transform.dense(hidden)))

    def forward(self, hidden: Tensor, word_embeddings: Tensor) -> Tensor:
        return linear_float32(self.transformed(hidden), word_embeddings, self.bias)


class BertModel(Sized, ABC):
    """A BERT with a head; `architecture` is the Hugging Face class that loads the same folder."""

    architecture: str
    model_type = "bert"
    skips_unread = True  # whether the last layer computes only what the head reads

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.bert = Bert(config)

    def initialize(self) -> None:
        """Draws all weights from the global generator as BERT does: normal(0, initializer_range), zero biases."""
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=self.config.initializer_range)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)
        with torch.no_grad():
            self.bert.embeddings.word_embeddings.weight[self.config.pad_token_id].zero_()

    def forward(self, batch: Batch, spec: OutputSpec = OutputSpec()) -> ModelOutput:  # noqa: B008 (frozen)
        """The requested outputs of a batch; the class documents the shape of its logits."""
        if batch.computes_padding:  # rows are padded with 0, which need not be [PAD]
            batch = replace(batch, input_ids=batch.input_ids.masked_fill(~batch.mask, self.config.pad_token_id))
        outputs, hidden = self.bert(batch, spec, skips_unread=self.skips_unread)
        return replace(outputs, logits=self.head_logits(hidden, batch)) if spec.logits else outputs

    @abstractmethod
    def head_logits(self, hidden: Tensor, batch: Batch) -> Tensor:
        """The logits of the last states that the head reads, as `Bert` returns them."""


class MaskedLM(BertModel):
    """BERT with the masked-LM head; logits (predicted tokens, vocabulary), at `batch.positions` only."""

    architecture = "BertForMaskedLM"

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.cls = Parts({"predictions": MaskedLMHead(config)})
        self.initialize()

    def head_logits(self, hidden: Tensor, batch: Batch) -> Tensor:
        assert batch.positions is not None  # logits are only requested when some tokens are masked
        return self.cls.predictions(hidden, self.bert.embeddings.word_embeddings.weight)


class SequenceClassifier(BertModel):
    """BERT with a classification head; logits (batch, classes), one "class" for a regression."""

    architecture = "BertForSequenceClassification"
    pooler_activation: Callable[[Tensor], Tensor] = staticmethod(torch.tanh)

    def __init__(self, config: BertConfig, labels: tuple[str, ...]) -> None:
        super().__init__(config)
        self.labels = labels
        self.dropout = config.hidden_dropout_prob
        self.classifier = Linear(config.hidden_size, len(labels))
        self.initialize()

    def head_logits(self, hidden: Tensor, batch: Batch) -> Tensor:
        pooled = self.pooler_activation(self.bert.pooler.dense(hidden[:, 0] if hidden.ndim == 3 else hidden))
        return self.classifier(dropout(pooled, self.dropout, self.training))

    def flops(self, tokens: int) -> int:
        """FLOPs of a row's matrix products, 2 per multiply-add: as if each layer computed all tokens."""
        scores_and_context = 4 * tokens**2 * self.config.hidden_size * self.config.num_hidden_layers
        head = matrix_flops(self.bert.pooler) + matrix_flops(self.classifier)
        return tokens * matrix_flops(self.bert.encoder) + scores_and_context + head
