"""Every distillation loss: one pure function of real tokens each; padding never changes a value.

All return a scalar. `mask` is (batch, length) bool, True on real tokens. Sums run over what is real and
are divided by its count, so that neither the padded width nor what padding holds can matter. Inputs of
half precision are compared in float32: a sum of many small squares has no place in eight bits.
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
        return F.mse_loss(_wide(logits).squeeze(-1), labels)
    return F.cross_entropy(_wide(logits), labels)


def prediction(student_logits: Tensor, teacher_logits: Tensor, *, temperature: float) -> Tensor:
    """Loss against the teacher's answer, mean over rows: T²·KL(softmax(z_T/T) ‖ softmax(z_S/T)).

    Both logits: (rows, classes). The gradient is that of the soft cross-entropy (TinyBERT eq. 10), which
    differs by the teacher's entropy, a constant; T² keeps its size as T grows (Hinton et al. 2015, sec. 2).
    With one output, a regression, it is the squared difference of the outputs: a softmax of one is constant.
    """
    student_logits, teacher_logits = _wide(student_logits), _wide(teacher_logits)
    if student_logits.shape[-1] == 1:
        return F.mse_loss(student_logits, teacher_logits)
    student = F.log_softmax(student_logits / temperature, dim=-1)
    teacher = F.log_softmax(teacher_logits / temperature, dim=-1)
    return F.kl_div(student, teacher, reduction="batchmean", log_target=True) * temperature**2


def attention(student_scores: Tensor, teacher_scores: Tensor, mask: Tensor) -> Tensor:
    """Mean squared difference of unmasked pre-softmax scores, over heads and real (query, key) pairs.

    Both scores: (batch, heads, query, key). Source: TinyBERT eq. 7, 1/h Σ_i MSE(A_i^S, A_i^T).
    """
    real_pairs = (mask[:, :, None] & mask[:, None, :])[:, None]  # (batch, 1, query, key)
    squares = (_wide(student_scores) - _wide(teacher_scores)).square().masked_fill(~real_pairs, 0.0)
    heads = student_scores.shape[1]
    return squares.sum() / (real_pairs.sum() * heads)


def hidden(student_states: Tensor, teacher_states: Tensor, mask: Tensor) -> Tensor:
    """Mean squared difference of states, over real tokens and the teacher's dimensions.

    student_states: (batch, length, teacher width), already projected; teacher_states: the same shape.
    Source: TinyBERT eq. 8, MSE(H^S W_h, H^T), and eq. 9 for the embedding output.
    """
    squares = (_wide(student_states) - _wide(teacher_states)).square().masked_fill(~mask[..., None], 0.0)
    return squares.sum() / (mask.sum() * student_states.shape[-1])


def _wide(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))
