"""The distillation losses: one pure function each, named as in config.students.LOSSES.

Shapes: logits are (rows, classes), one row for each example or predicted token. States are those of real tokens only,
(tokens, width), the student's projected to the teacher's width. Scores are unmasked and padded, (batch, heads, query,
key), and come with `mask`, (batch, length) bool, True on real tokens. Each loss is a scalar: a mean over the real rows,
tokens or (query, key) pairs, so that neither the padded width nor the padding's content matters. Half precision is
compared in float32: eight significant bits cannot hold a sum of many small squares. Every loss against a teacher is 0
for a student that agrees with it. The published_* functions divide as the authors' code does (`reduction: published`):
rows are padded to one length, models compute the padding, and it counts in the means. published_prediction is a
cross-entropy, so it is above 0 for a student that agrees.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_ELEMENTS = 2**18  # their float32 copies stay in a core's cache


def hard(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy against gold labels, or the squared error for a single output, mean over rows.

    Args:
        labels: (rows,) int64 classes, or float scores if there is one output; (rows, labels) float 0 and 1 of a
            multilabel task, whose loss is the mean binary cross-entropy of the labels.

    Source: BERT (Devlin et al. 2019), masked LM and fine-tuning.
    """
    if logits.shape[-1] == 1:
        return F.mse_loss(wide(logits).squeeze(-1), labels)
    if labels.ndim == 2:
        return F.binary_cross_entropy_with_logits(wide(logits), labels)
    return _mean(_CrossEntropy.apply(logits, labels), len(labels))


def prediction(student_logits: Tensor, teacher_logits: Tensor, *, temperature: float) -> Tensor:
    """T²·KL(softmax(z_T/T) ‖ softmax(z_S/T)), mean over rows; for one output, a regression, the squared difference.

    The gradient is that of the soft cross-entropy (TinyBERT eq. 10), which differs by the teacher's entropy, a
    constant. The softmax of a single output is constant, so a regression needs another distance.

    Args:
        temperature: T; the factor T² keeps the loss at the same size as T grows (Hinton et al. 2015, sec. 2).
    """
    if student_logits.shape[-1] == 1:
        return logit_mse(student_logits, teacher_logits)
    divergence = _Divergence.apply(student_logits, teacher_logits, temperature)
    return _mean(divergence, len(student_logits)) * temperature**2


def multilabel_prediction(student_logits: Tensor, teacher_logits: Tensor, *, temperature: float) -> Tensor:
    """`prediction` of a multilabel task: T²·KL of each label's Bernoulli, mean over labels and rows.

    A label's logit z is a softmax over (z, 0).
    """
    both = (torch.stack([z, torch.zeros_like(z)], dim=-1).flatten(0, 1) for z in (student_logits, teacher_logits))
    return prediction(*both, temperature=temperature)


def logit_mse(student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """‖z_T − z_S‖²: summed over classes, mean over rows. Source: Tang et al. 2019, sec. 3.2."""
    return _mean(F.mse_loss(wide(student_logits), wide(teacher_logits), reduction="sum"), len(student_logits))


def attention(student_scores: Tensor, teacher_scores: Tensor, mask: Tensor) -> Tensor:
    """Squared difference of pre-softmax scores, mean over heads and real (query, key) pairs.

    Source: TinyBERT eq. 7, 1/h Σ_i MSE(A_i^S, A_i^T).
    """
    real_pairs = _real_pairs(mask)
    squares = _MaskedSquares.apply(student_scores, teacher_scores, ~real_pairs)
    return squares / (real_pairs.sum() * student_scores.shape[1])


def attention_kl(student_scores: Tensor, teacher_scores: Tensor, mask: Tensor) -> Tensor:
    """KL(softmax(A^T) ‖ softmax(A^S)) over real keys, mean over heads and real queries.

    Source: MiniLM (Wang et al. 2020, eq. 7), here at every mapped layer.
    """
    student, teacher = (
        F.log_softmax(wide(scores).masked_fill(~mask[:, None, None, :], torch.finfo(scores.dtype).min), dim=-1)
        for scores in (student_scores, teacher_scores)
    )
    divergence = (teacher.exp() * (teacher - student)).masked_fill(~_real_pairs(mask), 0.0)
    return divergence.sum() / (mask.sum() * student_scores.shape[1])


def hidden(student_states: Tensor, teacher_states: Tensor) -> Tensor:
    """Squared difference of hidden states or embeddings, mean over tokens and dimensions.

    Source: TinyBERT eq. 8, MSE(H^S W_h, H^T), and eq. 9.
    """
    return F.mse_loss(wide(student_states), wide(teacher_states))


def cosine(student_states: Tensor, teacher_states: Tensor) -> Tensor:
    """1 − cos of the angle between states, mean over tokens.

    Source: DistilBERT (Sanh et al. 2019, sec. 3), L_cos of the top hidden states.
    """
    return (1.0 - F.cosine_similarity(wide(student_states), wide(teacher_states), dim=-1)).mean()


def pkd(student_states: Tensor, teacher_states: Tensor) -> Tensor:
    """‖c_S/‖c_S‖ − c_T/‖c_T‖‖² of the [CLS] states (batch, width) of one layer, mean over rows.

    Source: PKD (Sun et al. 2019, eq. 7), of which this is one layer's summand.
    """
    student, teacher = (F.normalize(wide(states), dim=-1) for states in (student_states, teacher_states))
    return _mean(F.mse_loss(student, teacher, reduction="sum"), len(student))


def published_attention(student_scores: Tensor, teacher_scores: Tensor, mask: Tensor) -> Tensor:
    """As `attention` in the authors' code: scores of padded keys are 0, the mean is over all L² pairs of all heads."""
    return _MaskedSquares.apply(student_scores, teacher_scores, ~mask[:, None, None, :]) / student_scores.numel()


def published_attention_kl(student_scores: Tensor, teacher_scores: Tensor, mask: Tensor) -> Tensor:
    """As `attention_kl` in the study's code: summed over heads and queries, padding included, mean over rows.

    The scores of padded keys are 0, so that they have a share of each softmax.
    """
    both = (wide(scores).masked_fill(~mask[:, None, None, :], 0.0) for scores in (student_scores, teacher_scores))
    student, teacher = (F.log_softmax(scores, dim=-1) for scores in both)
    return F.kl_div(student, teacher, reduction="sum", log_target=True) / len(mask)


def published_prediction(student_logits: Tensor, teacher_logits: Tensor, *, temperature: float) -> Tensor:
    """As `prediction` in the authors' code: cross-entropy with soft targets, mean over rows and classes, without T²."""
    if student_logits.shape[-1] == 1:
        return logit_mse(student_logits, teacher_logits)
    student = F.log_softmax(wide(student_logits) / temperature, dim=-1)
    entropies = -(F.softmax(wide(teacher_logits) / temperature, dim=-1) * student).mean(dim=-1)
    return _mean(entropies.sum(), len(student_logits))


embedding = hidden


class _CrossEntropy(torch.autograd.Function):
    """Σ −log softmax(logits) at the labels, in float32: a scalar.

    A masked LM's logits are (predicted tokens, vocabulary); autograd's own graph holds more arrays of that size.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        labels = labels[:, None]
        probabilities = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        # −log p(label) = (highest logit − the label's) − log p(highest): p(label) may underflow, p(highest) does not.
        # Logits are subtracted first: a large logit plus a small logarithm would lose the logarithm's digits.
        highest, likeliest = logits.max(dim=-1, keepdim=True)
        entropies = wide(highest) - wide(logits.gather(-1, labels)) - probabilities.gather(-1, likeliest).log()
        ctx.save_for_backward(probabilities.scatter_(-1, labels, probabilities.gather(-1, labels) - 1.0))
        ctx.dtype = logits.dtype
        return entropies.sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (derivative,) = ctx.saved_tensors
        return _product(derivative, gradient, ctx.dtype), None


class _Divergence(torch.autograd.Function):
    """Σ KL(softmax(teacher / T) ‖ softmax(student / T)) over rows, in float32; autograd's own graph is larger."""

    @staticmethod
    def forward(ctx: Any, student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
        dtype = torch.promote_types(torch.promote_types(student.dtype, teacher.dtype), torch.float32)
        derivative, total = torch.empty_like(student, dtype=dtype), student.new_zeros((), dtype=dtype)
        for found, *both in _chunks(derivative, student, teacher):
            ours, theirs = (F.log_softmax(logits.to(dtype) / temperature, dim=-1) for logits in both)
            probabilities = theirs.exp()
            total += (probabilities * (theirs - ours)).sum()
            torch.sub(ours.exp(), probabilities, out=found)
        ctx.save_for_backward(derivative)
        ctx.dtype, ctx.temperature = student.dtype, temperature
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (derivative,) = ctx.saved_tensors
        return _product(derivative, gradient / ctx.temperature, ctx.dtype), None, None


class _MaskedSquares(torch.autograd.Function):
    """Σ (student − teacher)² in float32 except at places that are excluded (bool, broadcast): a scalar.

    Scores are the largest arrays of a step; autograd's own graph passes over them more often.
    """

    @staticmethod
    def forward(ctx: Any, student: Tensor, teacher: Tensor, excluded: Tensor) -> Tensor:
        dtype = torch.promote_types(torch.promote_types(student.dtype, teacher.dtype), torch.float32)
        difference = torch.empty_like(student, dtype=dtype).copy_(student).sub_(teacher).masked_fill_(excluded, 0.0)
        ctx.save_for_backward(difference)
        ctx.dtypes = student.dtype, teacher.dtype
        # By row, because one long sum in float32 is wrong in the fourth digit.
        return torch.linalg.vector_norm(difference, dim=-1).square().sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (difference,) = ctx.saved_tensors
        of_student, of_teacher, _ = ctx.needs_input_grad
        scaled = [
            torch.mul(difference, factor * gradient, out=torch.empty_like(difference, dtype=dtype)) if needed else None
            for factor, dtype, needed in zip((2.0, -2.0), ctx.dtypes, (of_student, of_teacher), strict=True)
        ]
        return *scaled, None


def _chunks(*arrays: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Some rows of each array at a time on CPUs, so that temporary copies are small and stay in cache."""
    elements = CHUNK_ELEMENTS if arrays[0].device.type == "cpu" else arrays[0].numel()
    rows = max(1, elements // max(1, arrays[0].shape[1:].numel()))
    return zip(*(array.split(rows) for array in arrays), strict=True)


def _product(values: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor:
    """values · factor, a scalar, in a type: on CPUs, torch.mul with `out` of another type is slow."""
    product = torch.empty_like(values, dtype=dtype)
    for found, part in _chunks(product, values):
        found.copy_(part * factor)
    return product


def _real_pairs(mask: Tensor) -> Tensor:
    """(batch, 1, query, key) bool: both tokens are real."""
    return (mask[:, :, None] & mask[:, None, :])[:, None]


def _mean(total: Tensor, count: int) -> Tensor:
    """0 if there is nothing to average: a micro-batch may hold no predicted token."""
    return total / max(count, 1)


def wide(values: Tensor) -> Tensor:
    """The values in float32, or in their own type if that is wider."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
