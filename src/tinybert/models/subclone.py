"""A narrower student cut out of its teacher: weight subcloning (Samragh et al. 2023), fitted on a little text.

The paper keeps the dimensions with the most energy and rescales what reads them. Two things differ here. What is kept
may be turned within its space if that keeps more: principal directions of the residual stream, of a head's scores, of a
head's context. And instead of one factor, a ridge regression on the text, layer by layer from the bottom, finds the
weights with which the student's own inputs give the teacher's values. It starts from the plain cut, compensates for
dropped dimensions and skipped layers, and needs no gradient.
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
from tinybert.models.bilstm import BiLstmClassifier
from tinybert.models.outputs import Batch, OutputSpec

# In a regression the plain cut weighs as much as this many average tokens per input: the best of 1, 2, 4 and 8 by the
# hidden loss on unseen real text, fitted on 4 thousand tokens as on 16 thousand.
PRIOR_TOKENS_PER_INPUT = 4.0
# Scores share their size between queries and keys; a direction below this part of the largest one is noise.
SMALLEST_DIRECTION = 1e-6


@dataclass(frozen=True)
class InitializedStudent:
    """A student before its training.

    Attributes:
        model: In training mode.
        projection: W from its states to the teacher's, without bias, if it was cut from the teacher or brings one:
            (teacher width, student width), or (1 + layers, ...) with one for the embeddings and each layer.
    """

    model: MaskedLM | BiLstmClassifier
    projection: Tensor | None = None


@torch.no_grad()
def subclone(
    teacher: MaskedLM, config: BertConfig, layers: Sequence[int], *, batches: Iterable[Batch]
) -> InitializedStudent:
    """Cuts a student out of a teacher (Samragh et al. 2023; deviations above).

    If all shapes agree, the text is not read: the layers are the teacher's, bit for bit, and the projection is the
    identity.

    Args:
        teacher: Left in evaluation mode.
        config: The student's shape.
        layers: For each student layer the teacher layer (1-based) that it replaces.
        batches: Plain text of ten thousand tokens or more; held in memory with one layer's inner values.

    Raises:
        UserError: The student is wider than the teacher, or its heads do not fit.
    """
    check_subclone(config.shape, teacher.config.shape)
    student = MaskedLM(config).to(teacher.bert.pooler.dense.weight.device)
    names = ("hidden_size", "num_attention_heads", "intermediate_size")
    if all(getattr(config, name) == getattr(teacher.config, name) for name in names):
        return _copied(student, teacher, layers)
    text = _Text(batches, teacher)
    mapped = (0, *layers)
    target = text.states({*mapped, *(layer - 1 for layer in layers)})
    residual, basis = _kept_directions([target[index] for index in mapped], config.hidden_size)

    # From the bottom up, so that each layer is fitted to the inputs which the fitted student gives it.
    student.eval()
    states = [_fit_embeddings(student.bert.embeddings, basis, text=text, target=target[0])]
    for layer, number in zip(student.bert.encoder.layer, layers, strict=True):
        source = teacher.bert.encoder.layer[number - 1]
        attended = _fit_attention(layer, source, basis, text=text, states=(states[-1], target[number - 1]))
        states.append(_fit_feed_forward(layer, source, basis, states=attended))
    _fit_heads(student, teacher, residual, basis=basis, states=(states[-1], target[layers[-1]]))
    inputs, wanted = torch.cat(states), torch.cat([target[index] for index in mapped])
    projection = basis + _ridge(inputs, wanted - inputs @ basis.mT)
    return InitializedStudent(student.train(), projection)


def _copied(student: MaskedLM, teacher: MaskedLM, layers: Sequence[int]) -> InitializedStudent:
    ours, theirs = student.bert, teacher.bert
    pairs = [(ours.embeddings, theirs.embeddings), (ours.pooler, theirs.pooler), (student.cls, teacher.cls)]
    sources = [theirs.encoder.layer[number - 1] for number in layers]
    for module, source in [*pairs, *zip(ours.encoder.layer, sources, strict=True)]:
        module.load_state_dict(source.state_dict())
    return InitializedStudent(student, torch.eye(student.config.hidden_size))


class _Text:
    """The real tokens of the batches one after the other, (tokens, width), and the teacher's values for them."""

    def __init__(self, batches: Iterable[Batch], teacher: MaskedLM) -> None:
        self.teacher = teacher.eval()
        device = teacher.bert.pooler.dense.weight.device
        self.batches = [batch.to(device) for batch in batches]

    def states(self, indices: set[int]) -> dict[int, Tensor]:
        """Hidden states of the teacher by index: (tokens, width)."""
        want = OutputSpec(hidden=frozenset(indices), logits=False)
        found = [self.teacher(batch, want).hidden for batch in self.batches]
        return {index: torch.cat([hidden[index] for hidden in found]) for index in indices}

    def embedded(self, embeddings: Embeddings) -> Tensor:
        """The output of these embeddings: (tokens, width)."""
        return torch.cat([embeddings.of(batch) for batch in self.batches])

    def context(self, attention: SelfAttention, qkv: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Attention within each row, of queries, keys and values (tokens, width): (tokens, width)."""
        counts = [int(batch.mask.sum()) for batch in self.batches]
        parts = zip(self.batches, *(part.split(counts) for part in qkv), strict=True)
        return torch.cat([batch.real.attend(attention, (query, key, value)) for batch, query, key, value in parts])


def _kept_directions(states: list[Tensor], width: int) -> tuple[Tensor, Tensor]:
    """The `width` dimensions with the most energy over all states, and an orthonormal basis (teacher width, width)."""
    # Each hidden state counts equally, whatever its number of tokens: all share one residual stream and one basis.
    moments = reduce(operator.add, (_moments(part) / len(part) for part in states))  # (teacher width, teacher width)
    residual = moments.diagonal().topk(width).indices.sort().values
    if width == len(moments):
        return residual, torch.eye(width, device=moments.device)
    # The principal directions lose the least. But a layer norm scales each dimension separately, so the basis is turned
    # within their span until its columns are as close as possible to the kept dimensions (orthogonal Procrustes).
    principal = torch.linalg.eigh(moments).eigenvectors[:, -width:]
    left, _, right = torch.linalg.svd(principal[residual])
    return residual, (principal @ (left @ right).mT).float()


def _fit_embeddings(embeddings: Embeddings, basis: Tensor, *, text: _Text, target: Tensor) -> Tensor:
    """Fits the embeddings; returns the student's embedding output."""
    source = text.teacher.bert.embeddings
    for name in ("word_embeddings", "position_embeddings", "token_type_embeddings"):
        getattr(embeddings, name).weight.copy_(getattr(source, name).weight @ basis)
    return _fit_norm(embeddings.LayerNorm, text.embedded(embeddings), target @ basis)


def _fit_attention(
    layer: Layer, source: Layer, basis: Tensor, *, text: _Text, states: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Fits the lower half of a layer. `states`: before it, the student's and the teacher's; returns those after it."""
    ours, theirs, output = layer.attention.self, source.attention.self, source.attention.output
    names = ("query", "key", "value")
    query, key, value = qkv = tuple(getattr(theirs, name)(states[1]) for name in names)
    context = text.context(theirs, (query, key, value))
    weight = basis.mT @ output.dense.weight
    maps, weight = _head_maps(query, key, context, weight, heads=(ours.heads, theirs.heads))
    for name, target, kept in zip(names, qkv, maps, strict=True):
        linear, full = getattr(ours, name), getattr(theirs, name)
        cut = kept.mT @ full.weight @ basis, full.bias @ kept
        _fit(linear, cut, inputs=states[0], target=target @ kept)
    own_context = text.context(ours, (ours.query(states[0]), ours.key(states[0]), ours.value(states[0])))
    cut = weight, output.dense.bias @ basis
    sums = output.dense(context) + states[1]
    return _fit_output((layer.attention.output, output), cut, basis, inputs=(own_context, states[0]), sums=sums)


def _fit_feed_forward(layer: Layer, source: Layer, basis: Tensor, *, states: tuple[Tensor, Tensor]) -> Tensor:
    """Fits the upper half of a layer, `states` as above; returns the student's states after it."""
    ours, theirs = layer.intermediate.dense, source.intermediate.dense
    before = theirs(states[1])
    neurons = F.gelu(before)
    weight = basis.mT @ source.output.dense.weight
    # A neuron matters by what it adds to the output: its mean square times that of its outgoing weights.
    energy = neurons.square().mean(dim=0) * weight.square().sum(dim=0)
    kept = energy.topk(ours.out_features).indices.sort().values
    _fit(ours, (theirs.weight[kept] @ basis, theirs.bias[kept]), inputs=states[0], target=before[:, kept])
    cut = weight[:, kept], source.output.dense.bias @ basis
    sums = source.output.dense(neurons) + states[1]
    inputs = F.gelu(ours(states[0])), states[0]
    return _fit_output((layer.output, source.output), cut, basis, inputs=inputs, sums=sums)[0]


def _fit_output(
    modules: tuple[ResidualOutput, ResidualOutput],
    cut: tuple[Tensor, Tensor],
    basis: Tensor,
    *,
    inputs: tuple[Tensor, Tensor],
    sums: Tensor,
) -> tuple[Tensor, Tensor]:
    """Fits the end of a half layer: modules, and the states that it returns, are the student's and the teacher's.

    cut: weight and bias of the plain cut. inputs: what the student's dense part and residual sum read. sums: the
    teacher's dense output + residual.
    """
    ours, theirs = modules
    hidden, residual = inputs
    # The target leaves out the student's own residual, so the dense part also corrects errors made further below.
    _fit(ours.dense, cut, inputs=hidden, target=sums @ basis - residual)
    target = theirs.LayerNorm(sums)
    return _fit_norm(ours.LayerNorm, ours(hidden, residual), target @ basis), target


def _fit_heads(
    student: MaskedLM, teacher: MaskedLM, residual: Tensor, *, basis: Tensor, states: tuple[Tensor, Tensor]
) -> None:
    """Fits pooler and masked-LM head, whose units are the teacher's `residual` ones."""
    ours, theirs = student.cls.predictions, teacher.cls.predictions
    for linear, full in (
        (student.bert.pooler.dense, teacher.bert.pooler.dense),
        (ours.transform.dense, theirs.transform.dense),
    ):
        cut = full.weight[residual] @ basis, full.bias[residual]
        _fit(linear, cut, inputs=states[0], target=full(states[1])[:, residual])
    transformed, own = (
        head.transform.LayerNorm(F.gelu(head.transform.dense(part)))
        for head, part in zip((theirs, ours), reversed(states), strict=True)
    )
    own = _fit_norm(ours.transform.LayerNorm, own, transformed @ basis)
    # The output matrix is the word embedding, which stays as cut; the bias keeps each word's mean logit.
    words, own_words = (model.bert.embeddings.word_embeddings.weight for model in (teacher, student))
    ours.bias.copy_(theirs.bias + words @ transformed.mean(dim=0) - own_words @ own.mean(dim=0))


def _head_maps(
    query: Tensor, key: Tensor, context: Tensor, output: Tensor, *, heads: tuple[int, int]
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    """What is kept of queries, keys and values, three of (teacher width, student width), and the cut output weight.

    output: (student width, teacher width), its inputs not cut yet. heads: the student's number and the teacher's.
    """
    query, key, context, output = (_by_head(part, heads[1]) for part in (query, key, context, output))
    width = output.shape[1] // heads[0]
    # With fewer heads than the teacher's, those stay that add the most energy to the output.
    energy = (_root(context) @ output.double().mT).square().sum(dim=(1, 2))
    chosen = energy.topk(heads[0]).indices.sort().values
    query, key, context, output = (part[chosen] for part in (query, key, context, output))
    # A head acts by two products only: q·kᵀ, and context times output weight. Each is kept as well as its rank allows.
    of_query, of_key = _paired_directions(query, key, width)
    of_value, of_output = _paired_directions(context, output, width)
    scale = (width / query.shape[-1]) ** 0.25  # q·k is divided by √width; query and key share the correction
    cuts = (of_query * scale, of_key * scale, of_value)
    query_map, key_map, value_map = (_side_by_side(part, chosen, heads[1]) for part in cuts)
    return (query_map, key_map, value_map), (output @ of_output).transpose(0, 1).flatten(1)


def _by_head(values: Tensor, heads: int) -> Tensor:
    return values.unflatten(-1, (heads, -1)).transpose(0, 1)  # (heads, tokens, head width)


def _side_by_side(maps: Tensor, chosen: Tensor, heads: int) -> Tensor:
    """(student heads, teacher head width, head width) -> (teacher width, student width), zero across heads."""
    count, rows, columns = maps.shape
    full = maps.new_zeros(heads, rows, count, columns)
    full[chosen, :, torch.arange(count, device=maps.device)] = maps
    return full.flatten(2).flatten(0, 1)


def _paired_directions(left: Tensor, right: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """A and B, (heads, head width, width) each, with which (left·A)(right·B)ᵀ is nearest to left·rightᵀ.

    left and right: (heads, rows, head width). A and B are the identity if nothing is dropped.
    """
    if width == left.shape[-1]:
        identity = torch.eye(width, device=left.device).expand(len(left), -1, -1)
        return identity, identity
    # The best approximation truncates the singular values of left·rightᵀ. Those of the product of the roots are the
    # same, in a matrix of the head's width instead of (rows, rows). Both sides get the root of each value's size.
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
    """Sets weight and bias to those of `cut`, plus the ridge regression of the target's remaining errors."""
    linear.weight.copy_(cut[0])
    linear.bias.copy_(cut[1])
    errors = target - linear(inputs)
    # Centred, because the prior is to shrink the weight's correction, not the bias.
    mean_input, mean_error = inputs.mean(dim=0), errors.mean(dim=0)
    correction = _ridge(inputs - mean_input, errors - mean_error)
    linear.weight.add_(correction)
    linear.bias.add_(mean_error - correction @ mean_input)


def _ridge(inputs: Tensor, errors: Tensor) -> Tensor:
    """(tokens, in) and (tokens, out) -> (out, in): the linear map from inputs to errors, shrunk towards 0."""
    moments = _moments(inputs)
    # The mean of a token's squared length, so that the prior has the scale of the inputs.
    moments.diagonal().add_(PRIOR_TOKENS_PER_INPUT * moments.diagonal().sum() / len(inputs))
    return torch.linalg.solve(moments, (inputs.mT @ errors).double()).mT.float()


def _fit_norm(norm: nn.LayerNorm, normalised: Tensor, target: Tensor) -> Tensor:
    """Sets gain and bias of a new layer norm by least squares in each dimension; returns its output.

    normalised: Its output before, with gain 1 and bias 0. Both inputs: (tokens, width).
    """
    mean, mean_target = normalised.mean(dim=0), target.mean(dim=0)
    centred = normalised - mean
    gain = (centred * (target - mean_target)).sum(dim=0) / centred.square().sum(dim=0)
    norm.weight.copy_(gain)
    norm.bias.copy_(mean_target - gain * mean)
    return normalised * norm.weight + norm.bias
