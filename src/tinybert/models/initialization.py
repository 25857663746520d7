"""Initialization of students and teachers: random, teacher layers, cut out of a teacher, or a published model."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinybert.config.fields import BiLstmArchitecture, ModelSource
from tinybert.config.load import StageParams
from tinybert.config.schema import Params, Teacher
from tinybert.config.sources import checkpoint_folder
from tinybert.config.students import LOGIT_LOSSES, Init, Student, check_subclone, mapped_layers
from tinybert.models.bert import (
    BertConfig,
    BertModel,
    Layer,
    MaskedLM,
    ResidualOutput,
    SelfAttention,
    SequenceClassifier,
)
from tinybert.models.bilstm import BiLstmClassifier, BiLstmConfig, embeddings_from
from tinybert.models.checkpoints import REGRESSION_LABEL, Classifier, load_bert, load_pretrained, read_weights
from tinybert.models.foreign import class_order
from tinybert.models.outputs import MULTILABEL, Batch, OutputSpec
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError

# Beside the encoder in Jiao et al.'s general students: one projection, or one for the embeddings and each layer.
SHARED_PROJECTION, LAYER_PROJECTION = "fit_dense.weight", "fit_denses.{layer}.weight"
# In a regression the plain cut weighs as much as this many average tokens per input: the best of 1, 2, 4 and 8 by the
# hidden loss on unseen real text, for fits on 4,000 and on 16,000 tokens.
PRIOR_TOKENS_PER_INPUT = 4.0
# Queries and keys share the size of their scores; a direction below this fraction of the largest one is noise.
SMALLEST_DIRECTION = 1e-6

Pair = tuple[Tensor, Tensor]  # the student's and the teacher's, (tokens, width) each


@dataclass(frozen=True)
class InitializedStudent:
    """A student before its training, with the projection of its states to the teacher's, if it has one."""

    model: MaskedLM | Classifier
    # (teacher width, student width), or (1 + layers, ...) with one for the embeddings and each layer.
    projection: Tensor | None = None


def initialize_student(
    student: Student, teacher: MaskedLM, *, sample: Callable[[], Iterable[Batch]]
) -> InitializedStudent:
    """Makes a student with the teacher's vocabulary and positions by its `architecture` and `init`.

    Random weights come from the global generator. From a teacher: the layers that init.teacher names, copied if the
    shapes agree (Sanh et al. 2019, Sun et al. 2019), else cut to the student's shape by `subclone` on the plain text
    that `sample` gives. From a folder or the Hub: any BERT encoder. A BiLSTM takes the teacher's word embeddings.
    UserError if shapes do not fit.
    """
    shape, init = student.architecture, student.init
    if shape.kind == "bilstm":
        return InitializedStudent(_bilstm(shape, teacher, from_teacher=bool(init.teacher)))
    positions = teacher.config.max_position_embeddings
    config = BertConfig.of(shape, vocab_size=teacher.config.vocab_size, max_position_embeddings=positions)
    if init.folder or init.hub:
        return _published_student(config, init, teacher_width=teacher.config.hidden_size)
    if not init.teacher:
        return InitializedStudent(MaskedLM(config))
    mapped = mapped_layers(init.teacher, config.num_hidden_layers, teacher.config.num_hidden_layers)
    return subclone(teacher, config, [layer for (layer,) in mapped], batches=sample())


def start_teacher(teacher: Teacher, *, vocab_size: int, seed: int) -> MaskedLM:
    """The masked-LM teacher before its (further) pretraining; UserError if it does not fit the tokenizer.

    `seed` draws new weights: all of a synthetic teacher, the head that a checkpoint lacks.
    """
    torch.manual_seed(seed)
    if teacher.source == "synthetic":
        return MaskedLM(BertConfig.of(teacher.synthetic.architecture, vocab_size=vocab_size))
    folder = given_teacher(teacher)
    model, has_head = load_pretrained(folder)
    _check_vocabulary(model.config, vocab_size, "teacher")
    if not has_head and teacher.pretraining.epochs == 0:
        problem = f"{folder} has no masked-LM head to use untrained (got 0)"
        raise UserError(f"teacher.pretraining.epochs: {problem}; allowed: 1 or more; fix: give it at least 1 epoch")
    return model


def given_teacher(teacher: Teacher) -> Path:
    """The folder of a teacher from the Hub or a local folder, as it is before pretraining; UserError if none."""
    if teacher.source == "hub":
        return checkpoint_folder(ModelSource(hub=teacher.hub), key="teacher")
    return checkpoint_folder(ModelSource(folder=teacher.local.folder), key="teacher.local")


def general_teacher(params: Params | StageParams, student: Student) -> MaskedLM:
    """The encoder that a student imitates in general distillation: that which the task teachers start from.

    Losses that read logits need the pretrained one, which has a trained masked-LM head.
    """
    reads_logits = student.general and student.general.active_losses.keys() & set(LOGIT_LOSSES)
    if params.tasks.teacher_encoder != "given" or reads_logits:
        return load_bert(MaskedLM, paths.TEACHER)
    torch.manual_seed(params.seed)  # draws the masked-LM head if the checkpoint has none; nothing reads it
    return load_pretrained(given_teacher(params.teacher))[0]


def finetuned_teacher(
    folder: Path, labels: tuple[str, ...], *, key: str, vocab_size: int | None, multilabel: bool = False
) -> SequenceClassifier:
    """A published BERT as task teacher, in evaluation mode, with its classes in the task's order (`class_order`).

    `key` is the section of params that names the folder; `labels` are empty for a regression; `vocab_size` is the
    tokenizer's, if known; `multilabel`: rows may have several labels. UserError if it does not fit.
    """
    teacher = load_bert(SequenceClassifier, folder)
    _check_vocabulary(teacher.config, vocab_size, key)
    labels, stated = labels or (REGRESSION_LABEL,), teacher.config.problem_type
    order = class_order(list(teacher.labels), labels, key=key, stated=stated, multilabel=multilabel)
    with torch.no_grad():
        for parameter in teacher.classifier.parameters():
            parameter.copy_(parameter[order])
    teacher.labels = labels
    if multilabel:
        teacher.config = replace(teacher.config, problem_type=MULTILABEL)
    return teacher


def _check_vocabulary(config: BertConfig, vocab_size: int | None, key: str) -> None:
    if vocab_size is not None and config.vocab_size != vocab_size:
        problem = f"its vocabulary is not the tokenizer's (got {config.vocab_size} pieces)"
        raise UserError(f"{key}: {problem}; allowed: {vocab_size}; fix: use weights and tokenizer of one model")


def _bilstm(shape: BiLstmArchitecture, teacher: MaskedLM, *, from_teacher: bool) -> BiLstmClassifier:
    """A BiLSTM whose head is a placeholder: each task draws its own."""
    sizes = (teacher.config.vocab_size, shape.embedding, shape.width, shape.layers, shape.feed_forward)
    config = BiLstmConfig(*sizes, dropout=shape.dropout, pad_token_id=teacher.config.pad_token_id)
    student = BiLstmClassifier(config, (REGRESSION_LABEL,), pair=False)
    if from_teacher:
        words = embeddings_from(teacher.bert.embeddings.word_embeddings.weight, shape.embedding)
        student.encoder.word_embeddings.weight.data.copy_(words)
    return student


def _published_student(config: BertConfig, init: Init, *, teacher_width: int) -> InitializedStudent:
    """A published general student, with its positions and its projection if that fits; ours have no bias."""
    folder = checkpoint_folder(init, key="init")
    stored, _ = load_pretrained(folder)
    for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"):
        ours, theirs = getattr(config, name), getattr(stored.config, name)
        if ours != theirs:
            model = init.hub.model if init.hub else init.folder
            raise UserError(f"init: {model}: wrong {name} (got {theirs}); allowed: {ours}; fix: change one of them")
    student = MaskedLM(replace(config, max_position_embeddings=stored.config.max_position_embeddings))
    student.load_state_dict(stored.state_dict())
    weights = read_weights(folder / "model.safetensors")
    names = [LAYER_PROJECTION.format(layer=layer) for layer in range(config.num_hidden_layers + 1)]
    names = names if names[0] in weights else [SHARED_PROJECTION]
    found = [weights[name].float() for name in names if name in weights]
    if len(found) < len(names) or any(part.shape != (teacher_width, config.hidden_size) for part in found):
        return InitializedStudent(student)
    return InitializedStudent(student, torch.stack(found).squeeze(0))


@torch.no_grad()
def subclone(
    teacher: MaskedLM | SequenceClassifier, config: BertConfig, layers: Sequence[int], *, batches: Iterable[Batch]
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
        layers: For each student layer the teacher layer (1-based) that it replaces.
        batches: Ten thousand tokens or more: plain text, or rows of a classifier's task; held in memory with one
            layer's inner values.
    """
    check_subclone(config.shape, teacher.config.shape)
    device, teacher = teacher.bert.pooler.dense.weight.device, teacher.eval()
    student: MaskedLM | SequenceClassifier
    if isinstance(teacher, SequenceClassifier):
        student = SequenceClassifier(config, teacher.labels).to(device)
    else:
        student = MaskedLM(config).to(device)
    sizes = ("hidden_size", "num_attention_heads", "intermediate_size")
    is_same = all(getattr(config, name) == getattr(teacher.config, name) for name in sizes)
    if is_same and isinstance(teacher, MaskedLM):
        student.load_state_dict(teacher.state_dict(), strict=False)
        for layer, number in zip(student.bert.encoder.layer, layers, strict=True):
            layer.load_state_dict(teacher.bert.encoder.layer[number - 1].state_dict())
        return InitializedStudent(student, torch.eye(config.hidden_size))
    projection = _fit_layers(student.eval(), teacher, layers, [batch.to(device) for batch in batches])
    return InitializedStudent(student.train(), projection)


def _fit_layers(student: BertModel, teacher: BertModel, layers: Sequence[int], text: list[Batch]) -> Tensor:
    """Fits all weights, from the bottom up; returns the projection to the teacher's states."""
    ours, theirs, mapped = student.bert, teacher.bert, (0, *layers)
    want = OutputSpec(hidden=frozenset({*mapped, *(layer - 1 for layer in layers)}), logits=False)
    found = [teacher(batch, want).hidden for batch in text]
    target = {index: torch.cat([hidden[index] for hidden in found]) for index in want.hidden}  # (tokens, width)
    residual, basis = _kept_directions([target[index] for index in mapped], student.config.hidden_size)
    for name in ("word_embeddings", "position_embeddings", "token_type_embeddings"):
        getattr(ours.embeddings, name).weight.copy_(getattr(theirs.embeddings, name).weight @ basis)
    embedded = torch.cat([ours.embeddings.of(batch) for batch in text])
    states = [_fit_norm(ours.embeddings.LayerNorm, embedded, target[0] @ basis)]
    for layer, number in zip(ours.encoder.layer, layers, strict=True):
        source = theirs.encoder.layer[number - 1]
        # Each layer is fitted to the inputs which the fitted student gives it.
        attended = _fit_attention(layer, source, basis, text=text, states=(states[-1], target[number - 1]))
        states.append(_fit_feed_forward(layer, source, basis, states=attended))
    last = states[-1], target[layers[-1]]
    if isinstance(student, SequenceClassifier) and isinstance(teacher, SequenceClassifier):
        first = _first_tokens(last[0], text), _first_tokens(last[1], text)
        _fit_classifier(student, teacher, residual, basis=basis, states=first)
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
    parts = zip(text, *(_by_batch(part, text) for part in qkv), strict=True)
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


def _by_batch(tokens: Tensor, text: list[Batch]) -> tuple[Tensor, ...]:
    """(tokens of all batches, width) -> a tensor for each batch."""
    return tokens.split([int(batch.mask.sum()) for batch in text])


def _first_tokens(tokens: Tensor, text: list[Batch]) -> Tensor:
    """(tokens of all batches, width) -> (rows of all batches, width)."""
    return torch.cat([batch.real.first(part) for batch, part in zip(text, _by_batch(tokens, text), strict=True)])


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
    """Fits pooler and masked-LM head."""
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
    # Centered, because the prior is to shrink the weight's correction, not the bias.
    mean_input, mean_error = inputs.mean(dim=0), errors.mean(dim=0)
    correction = _ridge(inputs - mean_input, errors - mean_error)
    linear.weight.add_(correction)
    linear.bias.add_(mean_error - correction @ mean_input)


def _ridge(inputs: Tensor, errors: Tensor) -> Tensor:
    """(tokens, in) and (tokens, out) -> (out, in): the linear map from inputs to errors, shrunk toward 0."""
    moments = _moments(inputs)
    # The mean of a token's squared length, so that the prior has the scale of the inputs.
    moments.diagonal().add_(PRIOR_TOKENS_PER_INPUT * moments.diagonal().sum() / len(inputs))
    return torch.linalg.solve(moments, (inputs.mT @ errors).double()).mT.float()


def _fit_norm(norm: nn.LayerNorm, normalized: Tensor, target: Tensor) -> Tensor:
    """Sets gain and bias of a new layer norm by least squares in each dimension; returns its output.

    normalized: Its output before, with gain 1 and bias 0. Both inputs: (tokens, width).
    """
    mean, mean_target = normalized.mean(dim=0), target.mean(dim=0)
    centered = normalized - mean
    gain = (centered * (target - mean_target)).sum(dim=0) / centered.square().sum(dim=0)
    norm.weight.copy_(gain)
    norm.bias.copy_(mean_target - gain * mean)
    return normalized * norm.weight + norm.bias
