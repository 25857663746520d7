"""Every distillation loss: one pure function of real tokens each; padding never changes a value.

All return a scalar, a mean over what is real in the batch: rows, tokens, or (query, key) pairs. States are those of
real tokens alone, (tokens, width). Scores are padded, and `mask` is (batch, length) bool, True on real tokens: sums
run over what is real and are divided by its count, so that neither the padded width nor what padding holds can matter.
Inputs of half precision are compared in float32: a sum of many small squares has no place in eight bits. Every loss
against a teacher is 0 where the student says what the teacher says.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def hard(logits: Tensor, labels: Tensor) -> Tensor:
    """Loss against gold labels, mean over rows: cross-entropy, or squared error for a single output.

    logits: (rows, classes), rows being examples or predicted tokens. labels: (rows,) int64 classes, or
    float scores with one output. Source: BERT (Devlin et al. 2019), masked LM and fine-tuning.
    """
    if logits.shape[-1] == 1:
        return _mean(F.mse_loss(_wide(logits).squeeze(-1), labels, reduction="sum"), len(labels))
    return _mean(F.cross_entropy(_wide(logits), labels, reduction="sum"), len(labels))


def prediction(student_logits: Tensor, teacher_logits: Tensor, *, temperature: float) -> Tensor:
    """Loss against the teacher's answer, mean over rows: T²·KL(softmax(z_T/T) ‖ softmax(z_S/T)).

    Both logits: (rows, classes). The gradient is that of the soft cross-entropy (TinyBERT eq. 10), which
    differs by the teacher's entropy, a constant; T² keeps its size as T grows (Hinton et al. 2015, sec. 2).
    With one output, a regression, it is the squared difference of the outputs: a softmax of one is constant.
    """
    if student_logits.shape[-1] == 1:
        return logit_mse(student_logits, teacher_logits)
    student = F.log_softmax(_wide(student_logits) / temperature, dim=-1)
    teacher = F.log_softmax(_wide(teacher_logits) / temperature, dim=-1)
    divergence = F.kl_div(student, teacher, reduction="sum", log_target=True)
    return _mean(divergence, len(student_logits)) * temperature**2


def logit_mse(student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """‖z_T − z_S‖², summed over classes, mean over rows. Both: (rows, classes). Source: Tang et al. 2019, sec. 3.2."""
    return _mean(_squares(student_logits, teacher_logits).sum(), len(student_logits))


def attention(student_scores: Tensor, teacher_scores: Tensor, mask: Tensor) -> Tensor:
    """Mean squared difference of unmasked pre-softmax scores, over heads and real (query, key) pairs.

    Both scores: (batch, heads, query, key). Source: TinyBERT eq. 7, 1/h Σ_i MSE(A_i^S, A_i^T).
    """
    real_pairs = _real_pairs(mask)
    squares = _squares(student_scores, teacher_scores).masked_fill(~real_pairs, 0.0)
    return squares.sum() / (real_pairs.sum() * student_scores.shape[1])


def attention_kl(student_scores: Tensor, teacher_scores: Tensor, mask: Tensor) -> Tensor:
    """KL(softmax(A^T) ‖ softmax(A^S)) over real keys, mean over heads and real queries.

    Both scores: (batch, heads, query, key), unmasked, pre-softmax. Source: the attention transfer of MiniLM
    (Wang et al. 2020, eq. 7), here at every mapped layer, and of its relations (`relation_scores`).
    """
    real_pairs = _real_pairs(mask)
    student, teacher = (
        F.log_softmax(_wide(scores).masked_fill(~mask[:, None, None, :], torch.finfo(scores.dtype).min), dim=-1)
        for scores in (student_scores, teacher_scores)
    )
    divergence = (teacher.exp() * (teacher - student)).masked_fill(~real_pairs, 0.0)
    return divergence.sum() / (mask.sum() * student_scores.shape[1])


def relation_scores(left: Tensor, right: Tensor, *, heads: int) -> Tensor:
    """How tokens relate: (batch, heads, query, key), scaled dot products in each relation head.

    left, right: two of the queries, keys or values of a layer, each (batch, length, width): q and k for the
    query-key relation, v and v for the value relation. The width is cut into `heads` relation heads, whatever the
    attention heads of the model are, so that teacher and student compare, by `attention_kl`. Source: MiniLM eq. 8 and
    9, with the relation heads of MiniLMv2 (Wang et al. 2021, sec. 3.1).
    """
    left, right = (_wide(part).unflatten(-1, (heads, -1)).transpose(1, 2) for part in (left, right))
    return (left * left.shape[-1] ** -0.5) @ right.transpose(-1, -2)


def hidden(student_states: Tensor, teacher_states: Tensor) -> Tensor:
    """Mean squared difference of states, over tokens and the teacher's dimensions.

    student_states: (tokens, teacher width), already projected; teacher_states: the same shape.
    Source: TinyBERT eq. 8, MSE(H^S W_h, H^T), and eq. 9 for the embedding output.
    """
    return F.mse_loss(_wide(student_states), _wide(teacher_states))


def cosine(student_states: Tensor, teacher_states: Tensor) -> Tensor:
    """1 − cos of the angle between states, mean over tokens. Shapes as in `hidden`.

    Source: DistilBERT (Sanh et al. 2019, sec. 3), L_cos of the top hidden states.
    """
    return (1.0 - F.cosine_similarity(_wide(student_states), _wide(teacher_states), dim=-1)).mean()


def pkd(student_states: Tensor, teacher_states: Tensor) -> Tensor:
    """‖c_S/‖c_S‖ − c_T/‖c_T‖‖² of [CLS] states, mean over rows. Both: (batch, width), the student's projected.

    Source: PKD (Sun et al. 2019, eq. 7), one layer's part of the sum.
    """
    student, teacher = (F.normalize(_wide(states), dim=-1) for states in (student_states, teacher_states))
    return _mean(_squares(student, teacher).sum(), len(student))


def _real_pairs(mask: Tensor) -> Tensor:
    """(batch, 1, query, key) bool: both tokens are real."""
    return (mask[:, :, None] & mask[:, None, :])[:, None]


def _squares(student: Tensor, teacher: Tensor) -> Tensor:
    return (_wide(student) - _wide(teacher)).square()


def _mean(total: Tensor, count: int) -> Tensor:
    """0 where there is nothing to average: a share of a batch may hold no predicted token."""
    return total / max(count, 1)


def _wide(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))
