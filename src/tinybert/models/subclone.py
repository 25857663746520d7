"""A narrower student cut out of its teacher: weight subcloning (Samragh et al. 2023), fitted on a little text.

The paper keeps the dimensions with the most energy and rescales what reads them. Here what is kept may be turned
within its space, where that keeps more (principal directions of the residual stream, of a head's scores, of a head's
context); and instead of one factor a ridge regression on the text finds, layer by layer from the bottom, the weights
with which the student's own inputs give what the teacher has there. It starts from the plain cut, makes up for what
was dropped and for teacher layers left out, and needs no gradient.
"""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinybert.config.compatibility import check_subclone
from tinybert.models.bert import BertConfig, Embeddings, Layer, MaskedLM, ResidualOutput, SelfAttention
from tinybert.models.outputs import Batch, OutputSpec

# The plain cut weighs in a regression as this many average tokens do for each input: the best of 1, 2, 4 and 8 by
# the hidden loss on unseen real text, fitted on 4 thousand tokens as on 16 thousand.
PRIOR_TOKENS_PER_INPUT = 4.0
# Scores share their size between queries and keys; below this part of the largest a direction holds noise.
SMALLEST_DIRECTION = 1e-6


@dataclass(frozen=True)
class Subclone:
    """A student, and how its states lie in the teacher's.

    residual: (student width,) int64, the teacher dimension that each student dimension stands for, ascending.
    projection: (teacher width, student width) float32, W of the linear map without bias from the student's states
    to the teacher's, fitted on embedding output and all layers.
    """

    student: MaskedLM
    residual: Tensor
    projection: Tensor


@torch.no_grad()
def subclone(teacher: MaskedLM, config: BertConfig, layers: Sequence[int], *, batches: Iterable[Batch]) -> Subclone:
    """A student of shape `config` that does what `layers` of the teacher (1-based, one for each of its own) do.

    batches: plain text; some ten thousand tokens or more, held in memory with a layer's inner values. Where all
    shapes agree the text is not read: the layers are the teacher's, bit for bit, and the projection is the identity.
    The teacher is left in evaluation mode, the student in training mode. UserError where the student is wider than
    the teacher, or its heads do not fit. Source: Samragh et al. 2023; deviations above.
    """
    check_subclone(config.shape, teacher.config.shape)
    student = MaskedLM(config).to(teacher.bert.pooler.dense.weight.device)
    if _shape(config) == _shape(teacher.config):
        return _copied(student, teacher, layers)
    text = _Text(batches, teacher)
    mapped = (0, *layers)
    target = text.states({*mapped, *(layer - 1 for layer in layers)})
    residual, basis = _kept_directions([target[index] for index in mapped], config.hidden_size)

    student.eval()
    states = [_fit_embeddings(student.bert.embeddings, basis, text=text, target=target[0])]
    for layer, number in zip(student.bert.encoder.layers, layers, strict=True):
        source = teacher.bert.encoder.layers[number - 1]
        states.append(_fit_layer(layer, source, basis, text=text, states=(states[-1], target[number - 1])))
    _fit_heads(student, teacher, residual, basis=basis, states=(states[-1], target[layers[-1]]))
    projection = _projection(states, [target[index] for index in mapped], basis)
    return Subclone(student.train(), residual, projection)


def _shape(config: BertConfig) -> tuple[int, int, int]:
    return config.hidden_size, config.num_attention_heads, config.intermediate_size


def _copied(student: MaskedLM, teacher: MaskedLM, layers: Sequence[int]) -> Subclone:
    ours, theirs = student.bert, teacher.bert
    pairs = [(ours.embeddings, theirs.embeddings), (ours.pooler, theirs.pooler), (student.cls, teacher.cls)]
    sources = [theirs.encoder.layers[number - 1] for number in layers]
    for module, source in [*pairs, *zip(ours.encoder.layers, sources, strict=True)]:
        module.load_state_dict(source.state_dict())
    width = student.config.hidden_size
    return Subclone(student, torch.arange(width), torch.eye(width))


class _Text:
    """The real tokens of the batches one behind the other, (tokens, width), and what the teacher makes of them."""

    def __init__(self, batches: Iterable[Batch], teacher: MaskedLM) -> None:
        self.teacher = teacher.eval()
        device = teacher.bert.pooler.dense.weight.device
        self.batches = [batch.to(device) for batch in batches]

    def states(self, indices: set[int]) -> dict[int, Tensor]:
        """Hidden states of the teacher by index: (tokens, width)."""
        want = OutputSpec(hidden=frozenset(indices), logits=False)
        found = [self.teacher(batch, want).hidden for batch in self.batches]
        return {index: torch.cat([hidden[index] for hidden in found]) for index in indices}

    def synthetic(self, embeddings: Embeddings) -> Tensor:
        """What these embeddings put out: (tokens, width)."""
        return torch.cat([embeddings.of(batch) for batch in self.batches])

    def context(self, attention: SelfAttention, qkv: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Attention within each row, of queries, keys and values (tokens, width): (tokens, width)."""
        counts = [int(batch.mask.sum()) for batch in self.batches]
        parts = zip(self.batches, *(part.split(counts) for part in qkv), strict=True)
        return torch.cat([batch.real.attend(attention, tuple(tokens)) for batch, *tokens in parts])


def _kept_directions(states: list[Tensor], width: int) -> tuple[Tensor, Tensor]:
    """The `width` dimensions of most energy over all states, and the orthonormal basis (teacher width, width).

    The basis spans the principal directions of the states, for they lose least, and is turned within them until its
    columns lie as near as they can to those dimensions: a layer norm scales each dimension by itself.
    """
    moments = reduce(operator.add, (_moments(part) / len(part) for part in states))  # (teacher width, teacher width)
    residual = moments.diagonal().topk(width).indices.sort().values
    if width == len(moments):
        return residual, torch.eye(width, device=moments.device)
    principal = torch.linalg.eigh(moments).eigenvectors[:, -width:]
    left, _, right = torch.linalg.svd(principal[residual])  # orthogonal Procrustes
    return residual, (principal @ (left @ right).mT).float()


def _fit_embeddings(embeddings: Embeddings, basis: Tensor, *, text: _Text, target: Tensor) -> Tensor:
    source = text.teacher.bert.embeddings
    for name in ("word_embeddings", "position_embeddings", "token_type_embeddings"):
        getattr(embeddings, name).weight.copy_(getattr(source, name).weight @ basis)
    return _fit_norm(embeddings.LayerNorm, text.synthetic(embeddings), target @ basis)


def _fit_layer(layer: Layer, source: Layer, basis: Tensor, *, text: _Text, states: tuple[Tensor, Tensor]) -> Tensor:
    """Fits `layer` to `source`; states: what goes into either. Returns what comes out of `layer`."""
    attended = _fit_attention(layer, source, basis, text=text, states=states)
    return _fit_feed_forward(layer, source, basis, states=attended)


def _fit_attention(
    layer: Layer, source: Layer, basis: Tensor, *, text: _Text, states: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Fits the lower half of a layer; returns the states behind it, the student's and the teacher's."""
    ours, theirs, output = layer.attention.self, source.attention.self, source.attention.output
    names = ("query", "key", "value")
    qkv = tuple(getattr(theirs, name)(states[1]) for name in names)
    context = text.context(theirs, qkv)
    weight = basis.mT @ output.dense.weight
    maps, weight = _head_maps(qkv[0], qkv[1], context, weight, heads=(ours.heads, theirs.heads))
    for name, target, kept in zip(names, qkv, maps, strict=True):
        linear, whole = getattr(ours, name), getattr(theirs, name)
        cut = kept.mT @ whole.weight @ basis, whole.bias @ kept
        _fit(linear, cut, inputs=states[0], target=target @ kept)
    own_context = text.context(ours, tuple(getattr(ours, name)(states[0]) for name in names))
    cut = weight, output.dense.bias @ basis
    sums = output.dense(context) + states[1]
    return _fit_output((layer.attention.output, output), cut, basis, inputs=own_context, residual=states[0], sums=sums)


def _fit_feed_forward(layer: Layer, source: Layer, basis: Tensor, *, states: tuple[Tensor, Tensor]) -> Tensor:
    """Fits the upper half of a layer with the neurons whose activations say most; returns the student's states."""
    ours, theirs = layer.intermediate.dense, source.intermediate.dense
    before = theirs(states[1])
    neurons = F.gelu(before)
    weight = basis.mT @ source.output.dense.weight
    energy = neurons.square().mean(dim=0) * weight.square().sum(dim=0)
    kept = energy.topk(ours.out_features).indices.sort().values
    _fit(ours, (theirs.weight[kept] @ basis, theirs.bias[kept]), inputs=states[0], target=before[:, kept])
    cut = weight[:, kept], source.output.dense.bias @ basis
    sums = source.output.dense(neurons) + states[1]
    own = F.gelu(ours(states[0]))
    return _fit_output((layer.output, source.output), cut, basis, inputs=own, residual=states[0], sums=sums)[0]


def _fit_output(
    modules: tuple[ResidualOutput, ResidualOutput],
    cut: tuple[Tensor, Tensor],
    basis: Tensor,
    *,
    inputs: Tensor,
    residual: Tensor,
    sums: Tensor,
) -> tuple[Tensor, Tensor]:
    """Fits the end of a half layer, whose `sums` (dense + residual) in the teacher are given; states as above.

    The dense part also corrects what is wrong already in the student's residual.
    """
    ours, theirs = modules
    _fit(ours.dense, cut, inputs=inputs, target=sums @ basis - residual)
    target = theirs.LayerNorm(sums)
    return _fit_norm(ours.LayerNorm, ours(inputs, residual), target @ basis), target


def _fit_heads(
    student: MaskedLM, teacher: MaskedLM, residual: Tensor, *, basis: Tensor, states: tuple[Tensor, Tensor]
) -> None:
    """Fits pooler and masked-LM head; the units of both are the teacher's `residual` ones."""
    ours, theirs = student.cls.predictions, teacher.cls.predictions
    for linear, whole in (
        (student.bert.pooler.dense, teacher.bert.pooler.dense),
        (ours.transform.dense, theirs.transform.dense),
    ):
        cut = whole.weight[residual] @ basis, whole.bias[residual]
        _fit(linear, cut, inputs=states[0], target=whole(states[1])[:, residual])
    transformed, own = (
        head.transform.LayerNorm(F.gelu(head.transform.dense(part)))
        for head, part in zip((theirs, ours), reversed(states), strict=True)
    )
    own = _fit_norm(ours.transform.LayerNorm, own, transformed @ basis)
    words, own_words = (model.bert.embeddings.word_embeddings.weight for model in (teacher, student))
    ours.bias.copy_(theirs.bias + words @ transformed.mean(dim=0) - own_words @ own.mean(dim=0))  # mean logits stay


def _head_maps(
    query: Tensor, key: Tensor, context: Tensor, output: Tensor, *, heads: tuple[int, int]
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    """What is kept of queries, keys and values, three of (teacher width, student width), and the output weight.

    output: (student width, teacher width), its inputs yet uncut. heads: the student's and the teacher's; where the
    student has fewer, those stay that add most to the output.
    """
    query, key, context, output = (_by_head(part, heads[1]) for part in (query, key, context, output))
    width = output.shape[1] // heads[0]
    energy = (_root(context) @ output.double().mT).square().sum(dim=(1, 2))
    chosen = energy.topk(heads[0]).indices.sort().values
    query, key, context, output = (part[chosen] for part in (query, key, context, output))
    of_query, of_key = _paired_directions(query, key, width)
    of_value, of_output = _paired_directions(context, output, width)
    scale = (width / query.shape[-1]) ** 0.25  # q·k is divided by √width; both share the difference
    cuts = (of_query * scale, of_key * scale, of_value)
    query_map, key_map, value_map = (_side_by_side(part, chosen, heads[1]) for part in cuts)
    return (query_map, key_map, value_map), (output @ of_output).transpose(0, 1).flatten(1)


def _by_head(values: Tensor, heads: int) -> Tensor:
    return values.unflatten(-1, (heads, -1)).transpose(0, 1)  # (heads, tokens, head width)


def _side_by_side(maps: Tensor, chosen: Tensor, heads: int) -> Tensor:
    """(student heads, teacher head width, head width) -> (teacher width, student width), zero across heads."""
    count, rows, columns = maps.shape
    whole = maps.new_zeros(heads, rows, count, columns)
    whole[chosen, :, torch.arange(count, device=maps.device)] = maps
    return whole.flatten(2).flatten(0, 1)


def _paired_directions(left: Tensor, right: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """A and B, both (heads, head width, width), with which (left·A)(right·B)ᵀ is nearest to left·rightᵀ.

    left, right: (heads, rows, head width). By the singular values of the product, whose size both share; the
    identity where nothing is dropped.
    """
    if width == left.shape[-1]:
        whole = torch.eye(width, device=left.device).expand(len(left), -1, -1)
        return whole, whole
    left_root, right_root = _root(left), _root(right)
    u, sizes, v = torch.linalg.svd(left_root @ right_root.mT)
    smallest = (SMALLEST_DIRECTION * sizes[:, :1]).clamp_min(torch.finfo(torch.float32).tiny)
    scale = sizes[:, None, :width].clamp_min(smallest[..., None]).rsqrt()
    of_left = right_root.mT @ v.mT[..., :width] * scale
    of_right = left_root.mT @ u[..., :width] * scale
    return of_left.float(), of_right.float()


def _root(values: Tensor) -> Tensor:
    """R (head width, head width) with RᵀR = valuesᵀ·values, in each head; float64."""
    sizes, directions = torch.linalg.eigh(_moments(values))
    return sizes.clamp_min(0).sqrt()[..., None] * directions.mT


def _moments(values: Tensor) -> Tensor:
    return (values.mT @ values).double()


def _fit(linear: nn.Linear, cut: tuple[Tensor, Tensor], *, inputs: Tensor, target: Tensor) -> None:
    """Sets weight and bias: those of `cut`, corrected by the ridge regression of what they leave of the target."""
    linear.weight.copy_(cut[0])
    linear.bias.copy_(cut[1])
    errors = target - linear(inputs)
    mean_input, mean_error = inputs.mean(dim=0), errors.mean(dim=0)
    correction = _ridge(inputs - mean_input, errors - mean_error)
    linear.weight.add_(correction)
    linear.bias.add_(mean_error - correction @ mean_input)


def _ridge(inputs: Tensor, errors: Tensor) -> Tensor:
    """(tokens, in) and (tokens, out) -> (out, in): the linear map from inputs to errors, shrunk towards 0."""
    moments = _moments(inputs)
    moments.diagonal().add_(PRIOR_TOKENS_PER_INPUT * moments.diagonal().sum() / len(inputs))
    return torch.linalg.solve(moments, (inputs.mT @ errors).double()).mT.float()


def _fit_norm(norm: nn.LayerNorm, normalised: Tensor, target: Tensor) -> Tensor:
    """Sets gain and bias of a new layer norm by least squares in each dimension; returns what it then puts out.

    normalised: what it puts out before, with gain 1 and bias 0. Both inputs: (tokens, width).
    """
    mean, mean_target = normalised.mean(dim=0), target.mean(dim=0)
    centred = normalised - mean
    gain = (centred * (target - mean_target)).sum(dim=0) / centred.square().sum(dim=0)
    norm.weight.copy_(gain)
    norm.bias.copy_(mean_target - gain * mean)
    return normalised * norm.weight + norm.bias


def _projection(states: list[Tensor], target: list[Tensor], basis: Tensor) -> Tensor:
    """W: the basis, corrected by a ridge regression over the states of all layers."""
    inputs, wanted = torch.cat(states), torch.cat(target)
    return basis + _ridge(inputs, wanted - inputs @ basis.mT)
