"""Weight subcloning: a student cut out of a wider teacher, fitted layer by layer on some text."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinybert.config.students import check_subclone, mapped_layers
from tinybert.models.bert import BertConfig, Layer, MaskedLM, ResidualOutput, SelfAttention, SequenceClassifier
from tinybert.models.model_folders import Classifier
from tinybert.models.outputs import Batch, OutputSpec

# In a regression the plain cut weighs as much as this many average tokens per input: the best of 1, 2, 4 and 8 by the
# hidden loss on unseen real text, for fits on 4,000 and on 16,000 tokens.
PRIOR_TOKENS_PER_INPUT = 4.0
# Queries and keys share the size of their scores; a direction below this fraction of the largest one is noise.
SMALLEST_DIRECTION = 1e-6

AnyBert = MaskedLM | SequenceClassifier
Pair = tuple[Tensor, Tensor]  # the student's and the teacher's, (tokens, width) each


class InitializedStudent(NamedTuple):
    """A student before its training, with the projection of its states to the teacher's, if it has one."""

    model: MaskedLM | Classifier
    # (teacher width, student width), or (1 + layers, ...) with one for the embeddings and each layer.
    projection: Tensor | None = None


@torch.no_grad()
def subclone(
    teacher: AnyBert, config: BertConfig, layers: str | tuple[int, ...], *, batches: Iterable[Batch]
) -> InitializedStudent:
    """Cuts a student with the same head out of a teacher: weight subcloning (Samragh et al. 2023), fitted on some text.

    The paper keeps the dimensions with the most energy and rescales what reads them. Here principal directions are
    kept: of the residual stream, of a head's scores, of a head's context. A ridge regression on the text replaces the
    rescaling: layer by layer from the bottom, it corrects the plain cut so that the student's own inputs give the
    teacher's values. If all shapes of a masked LM agree, the text is not read: the layers are the teacher's, bit for
    bit, and the projection is the identity. UserError if the student is wider, or its heads do not fit.

    Args:
        teacher: Left in evaluation mode.
        config: The student's shape.
        layers: A name from ONE_LAYER_MAPS, or the teacher layer (1-based) that each student layer replaces.
        batches: Ten thousand tokens or more, plain text or rows of a task; in memory with one layer's inner values.
    """
    check_subclone(config.shape, teacher.config.shape)
    depths = config.num_hidden_layers, teacher.config.num_hidden_layers
    replaced = [layer for (layer,) in mapped_layers(layers, *depths, key="init.teacher")]
    device, teacher = teacher.bert.pooler.dense.weight.device, teacher.eval()
    student: AnyBert = MaskedLM(config) if isinstance(teacher, MaskedLM) else SequenceClassifier(config, teacher.labels)
    student.to(device)
    sizes = ("hidden_size", "num_attention_heads", "intermediate_size")
    is_same = all(getattr(config, name) == getattr(teacher.config, name) for name in sizes)
    if is_same and isinstance(teacher, MaskedLM):
        student.load_state_dict(teacher.state_dict(), strict=False)
        for layer, number in zip(student.bert.encoder.layer, replaced, strict=True):
            layer.load_state_dict(teacher.bert.encoder.layer[number - 1].state_dict())
        return InitializedStudent(student, torch.eye(config.hidden_size))
    projection = _fit_layers(student.eval(), teacher, replaced, [batch.to(device) for batch in batches])
    return InitializedStudent(student.train(), projection)


def _fit_layers(student: AnyBert, teacher: AnyBert, layers: Sequence[int], text: list[Batch]) -> Tensor:
    """Fits all weights, from the bottom up; returns the projection to the teacher's states."""
    ours, theirs, mapped = student.bert, teacher.bert, (0, *layers)
    spec = OutputSpec(hidden=frozenset({*mapped, *(layer - 1 for layer in layers)}), logits=False)
    found = [teacher(batch, spec).hidden for batch in text]
    target = {index: torch.cat([hidden[index] for hidden in found]) for index in spec.hidden}  # (tokens, width)
    residual, basis = _kept_directions([target[index] for index in mapped], student.config.hidden_size)
    for name in ("word_embeddings", "position_embeddings", "token_type_embeddings"):
        getattr(ours.embeddings, name).weight.copy_(getattr(theirs.embeddings, name).weight @ basis)
    embedded = torch.cat([ours.embeddings.of(batch, batch.real) for batch in text])
    states = [_fit_norm(ours.embeddings.LayerNorm, embedded, target[0] @ basis)]
    for layer, number in zip(ours.encoder.layer, layers, strict=True):
        source = theirs.encoder.layer[number - 1]
        # Each layer is fitted to the inputs which the fitted student gives it.
        attended = _fit_attention(layer, source, basis, text=text, states=(states[-1], target[number - 1]))
        states.append(_fit_feed_forward(layer, source, basis, states=attended))
    last = states[-1], target[layers[-1]]
    if isinstance(student, SequenceClassifier) and isinstance(teacher, SequenceClassifier):
        lengths = torch.cat([batch.mask.sum(dim=1) for batch in text])
        first = lengths.cumsum(dim=0) - lengths  # the place of each row's [CLS]
        _fit_classifier(student, teacher, residual, basis=basis, states=(last[0][first], last[1][first]))
    if isinstance(student, MaskedLM) and isinstance(teacher, MaskedLM):
        _fit_masked_lm_head(student, teacher, residual, basis=basis, states=last)
    inputs, wanted = torch.cat(states), torch.cat([target[index] for index in mapped])
    return basis + _ridge(inputs, wanted - inputs @ basis.mT)


def _kept_directions(states: list[Tensor], width: int) -> tuple[Tensor, Tensor]:
    """The `width` dimensions with the most energy over all states, and an orthonormal basis (teacher width, width)."""
    # Each hidden state counts equally, whatever its number of tokens: all share one residual stream and one basis.
    zero = torch.zeros((), dtype=torch.float64)
    moments = sum((_moments(part) / len(part) for part in states), start=zero)  # (teacher width, teacher width)
    residual = moments.diagonal().topk(width).indices.sort().values
    if width == len(moments):
        return residual, torch.eye(width, device=moments.device)
    # The principal directions lose the least. But a layer norm scales each dimension separately, so the basis is turned
    # within their span until its columns are as close as possible to the kept dimensions (orthogonal Procrustes).
    principal = torch.linalg.eigh(moments).eigenvectors[:, -width:]
    left, _, right = torch.linalg.svd(principal[residual])
    return residual, (principal @ (left @ right).mT).float()


def _fit_attention(layer: Layer, source: Layer, basis: Tensor, *, text: list[Batch], states: Pair) -> Pair:
    """Fits the attention half of a layer; takes the states before it and returns the states after it."""
    ours, theirs, output = layer.attention.self, source.attention.self, source.attention.output
    qkv, context = _attend(theirs, states[1], text)
    maps, weight = _head_maps(qkv, context, basis.mT @ output.dense.weight, heads=(ours.heads, theirs.heads))
    linear, full = (ours.query, ours.key, ours.value), (theirs.query, theirs.key, theirs.value)
    for own, whole, target, kept in zip(linear, full, qkv, maps, strict=True):
        _fit(own, (kept.mT @ whole.weight @ basis, whole.bias @ kept), inputs=states[0], target=target @ kept)
    _, own_context = _attend(ours, states[0], text)
    return _fit_output(layer.attention.output, output, weight, basis, inner=(own_context, context), states=states)


def _attend(attention: SelfAttention, states: Tensor, text: list[Batch]) -> tuple[tuple[Tensor, ...], Tensor]:
    """Queries, keys and values of states (tokens, width), and the context within each row, (tokens, width) each."""
    qkv = attention.query(states), attention.key(states), attention.value(states)
    counts = [int(batch.mask.sum()) for batch in text]
    parts = zip(text, *(part.split(counts) for part in qkv), strict=True)
    return qkv, torch.cat([batch.real.attend(attention, (query, key, value)) for batch, query, key, value in parts])


def _fit_feed_forward(layer: Layer, source: Layer, basis: Tensor, *, states: Pair) -> Tensor:
    """Fits the feed-forward half of a layer; takes the states before it and returns the student's after it."""
    ours, theirs = layer.intermediate.dense, source.intermediate.dense
    before = theirs(states[1])
    neurons = F.gelu(before)
    weight = basis.mT @ source.output.dense.weight
    # A neuron matters by what it adds to the output: its mean square times that of its outgoing weights.
    energy = neurons.square().mean(dim=0) * weight.square().sum(dim=0)
    kept = energy.topk(ours.out_features).indices.sort().values
    _fit(ours, (theirs.weight[kept] @ basis, theirs.bias[kept]), inputs=states[0], target=before[:, kept])
    inner = F.gelu(ours(states[0])), neurons
    return _fit_output(layer.output, source.output, weight[:, kept], basis, inner=inner, states=states)[0]


def _fit_output(
    ours: ResidualOutput, theirs: ResidualOutput, weight: Tensor, basis: Tensor, *, inner: Pair, states: Pair
) -> Pair:
    """Fits the end of a half layer, norm(dense(inner) + states); returns the states after it."""
    sums = theirs.dense(inner[1]) + states[1]
    # The target leaves out the student's own residual, so the dense part also corrects errors made further below.
    _fit(ours.dense, (weight, theirs.dense.bias @ basis), inputs=inner[0], target=sums @ basis - states[0])
    target = theirs.LayerNorm(sums)
    return _fit_norm(ours.LayerNorm, ours(inner[0], states[0]), target @ basis), target


def _fit_units(ours: nn.Linear, theirs: nn.Linear, residual: Tensor, *, basis: Tensor, states: Pair) -> None:
    """Fits a layer of a head, whose units are the teacher's units `residual`."""
    cut = theirs.weight[residual] @ basis, theirs.bias[residual]
    _fit(ours, cut, inputs=states[0], target=theirs(states[1])[:, residual])


def _fit_classifier(
    student: SequenceClassifier, teacher: SequenceClassifier, residual: Tensor, *, basis: Tensor, states: Pair
) -> None:
    """Fits pooler and classifier; states: of first tokens, (rows, width) each."""
    ours, theirs = student.bert.pooler.dense, teacher.bert.pooler.dense
    _fit_units(ours, theirs, residual, basis=basis, states=states)
    cut = teacher.classifier.weight[:, residual], teacher.classifier.bias
    logits = teacher.classifier(theirs(states[1]).tanh())
    _fit(student.classifier, cut, inputs=ours(states[0]).tanh(), target=logits)


def _fit_masked_lm_head(student: MaskedLM, teacher: MaskedLM, residual: Tensor, *, basis: Tensor, states: Pair) -> None:
    ours, theirs = student.cls.predictions, teacher.cls.predictions
    for linear, full in ((student.bert.pooler, teacher.bert.pooler), (ours.transform, theirs.transform)):
        _fit_units(linear.dense, full.dense, residual, basis=basis, states=states)
    transformed = theirs.transformed(states[1])
    own = _fit_norm(ours.transform.LayerNorm, ours.transformed(states[0]), transformed @ basis)
    # The output matrix is the word embedding, which stays as cut; the bias keeps each word's mean logit.
    words, own_words = (model.bert.embeddings.word_embeddings.weight for model in (teacher, student))
    ours.bias.copy_(theirs.bias + words @ transformed.mean(dim=0) - own_words @ own.mean(dim=0))


def _head_maps(
    qkv: tuple[Tensor, ...], context: Tensor, output: Tensor, *, heads: tuple[int, int]
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Projections of queries, keys and values, three of (teacher width, student width), and the cut output weight.

    output: (student width, teacher width), its inputs not cut yet. heads: the student's number and the teacher's.
    """
    by_head = [part.unflatten(-1, (heads[1], -1)).transpose(0, 1) for part in (*qkv[:2], context, output)]
    # If the student has fewer heads, those that add the most energy to the output are kept.
    energy = (_root(by_head[2]) @ by_head[3].double().mT).square().sum(dim=(1, 2))
    chosen = energy.topk(heads[0]).indices.sort().values
    query, key, context, output = (part[chosen] for part in by_head)  # (student heads, tokens, teacher's head width)
    width = output.shape[1] // heads[0]
    # A head acts by two products only: q·kᵀ, and context times output weight. Each is kept as well as its rank allows.
    of_query, of_key = _paired_directions(query, key, width)
    of_value, of_output = _paired_directions(context, output, width)
    scale = (width / query.shape[-1]) ** 0.25  # q·k is divided by √width; query and key share the correction
    cuts = (of_query * scale, of_key * scale, of_value)
    maps = qkv[0].new_zeros(len(cuts), heads[1], query.shape[-1], heads[0] * width)
    for full, cut in zip(maps, cuts, strict=True):  # zero across heads
        full[chosen] = torch.block_diag(*cut).unflatten(0, (heads[0], -1))
    return tuple(maps.flatten(1, 2)), (output @ of_output).transpose(0, 1).flatten(1)


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
    u, sizes, vh = torch.linalg.svd(left_root @ right_root.mT)
    smallest = (SMALLEST_DIRECTION * sizes[:, :1]).clamp_min(torch.finfo(torch.float32).tiny)
    scale = sizes[:, None, :width].clamp_min(smallest[..., None]).rsqrt()
    of_left = right_root.mT @ vh.mT[..., :width] * scale
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
    # Centered, because the prior is to shrink the weight's correction, not the bias.
    mean_input, mean_error = inputs.mean(dim=0), errors.mean(dim=0)
    correction = _ridge(inputs - mean_input, errors - mean_error)
    linear.weight.add_(correction)
    linear.bias.add_(mean_error - correction @ mean_input)


def _ridge(inputs: Tensor, errors: Tensor) -> Tensor:
    """(tokens, in) and (tokens, out) -> (out, in): the linear map from inputs to errors, shrunk toward 0."""
    moments = _moments(inputs)
    # The mean of a token's squared length, so that the prior has the scale of the inputs; above 0 for a single token.
    prior = PRIOR_TOKENS_PER_INPUT * moments.diagonal().sum() / len(inputs)
    moments.diagonal().add_(prior.clamp_min(torch.finfo(torch.float32).tiny))
    return torch.linalg.solve(moments, (inputs.mT @ errors).double()).mT.float()


def _fit_norm(norm: nn.LayerNorm, normalized: Tensor, target: Tensor) -> Tensor:
    """Sets gain and bias of a new layer norm by least squares in each dimension; returns its output.

    normalized: Its output before, with gain 1 and bias 0. Both inputs: (tokens, width).
    """
    mean, mean_target = normalized.mean(dim=0), target.mean(dim=0)
    centered = normalized - mean
    squares = centered.square().sum(dim=0).clamp_min(torch.finfo(torch.float32).tiny)  # of a constant dimension: 0
    gain = (centered * (target - mean_target)).sum(dim=0) / squares
    norm.weight.copy_(gain)
    norm.bias.copy_(mean_target - gain * mean)
    return normalized * norm.weight + norm.bias
