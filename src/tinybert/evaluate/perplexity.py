"""Masked-LM scores on held-out text: loss, perplexity, accuracy, and agreement with a teacher."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F

from tinybert.data.sequences import Sequences
from tinybert.distill.batches import Masker
from tinybert.evaluate.predictions import Predictions
from tinybert.models.bert import MaskedLM
from tinybert.models.outputs import Batch, best_device
from tinybert.pipeline.errors import UserError


@torch.no_grad()
def predicted_logits(model: MaskedLM, batches: Sequence[Batch]) -> Iterator[torch.Tensor]:
    """Yields the logits of each batch, (masked tokens, vocabulary) float32 on the CPU, in evaluation mode."""
    device = best_device()
    model.to(device).eval()
    for batch in batches:
        model.config.check_length(batch.input_ids.shape[1], "domain_evaluation")
        logits = model(batch.to(device)).logits.cpu()
        if not logits.isfinite().all():
            raise UserError("domain_evaluation: a model's logits are not finite, its training diverged; "
                            "fix: lower learning_rate")  # fmt: skip
        yield logits


def sequence_losses(model: MaskedLM, batches: Sequence[Batch]) -> Predictions:
    """Sums the cross-entropy (nats) over the masked tokens of each sequence; labels are the numbers of these tokens."""
    losses, tokens = [], []
    for batch, logits in zip(batches, predicted_logits(model, batches), strict=True):
        rows, width = batch.input_ids.shape
        assert batch.positions is not None  # it has masked tokens
        row_of_token = (batch.positions // width).numpy()
        of_token = F.cross_entropy(logits, batch.gold, reduction="none").double().numpy()
        losses.append(np.bincount(row_of_token, weights=of_token, minlength=rows))
        tokens.append(np.bincount(row_of_token, minlength=rows))
    return Predictions("perplexity", np.concatenate(tokens), np.concatenate(losses))


def masked_lm_scores(model: MaskedLM, batches: Sequence[Batch]) -> dict[str, float]:
    """Computes the mean cross-entropy over masked tokens (nats), its exponential, and the accuracy."""
    loss = right = count = 0.0
    for batch, logits in zip(batches, predicted_logits(model, batches), strict=True):
        loss += F.cross_entropy(logits, batch.gold, reduction="sum").item()
        right += (logits.argmax(-1) == batch.gold).sum().item()
        count += len(batch.gold)
    return {"loss": loss / count, "perplexity": math.exp(loss / count), "accuracy": right / count}


def frequency_accuracy(sequences: Sequences, batches: Sequence[Batch], masker: Masker) -> float:
    """Computes the accuracy of always predicting the most frequent token of `sequences`, special tokens excluded."""
    counts = np.bincount(sequences.tokens, minlength=masker.vocabulary_size)
    counts[list(masker.special_ids)] = 0
    labels = torch.cat([batch.gold for batch in batches])
    return (labels == int(counts.argmax())).float().mean().item()


def agreement(student: MaskedLM, teacher: MaskedLM, batches: Sequence[Batch]) -> dict[str, float]:
    """Compares two models over masked tokens: share of equal top-1 tokens, mean KL(teacher || student) in nats."""
    same = divergence = count = 0.0
    both = zip(predicted_logits(student, batches), predicted_logits(teacher, batches), strict=True)
    for student_logits, teacher_logits in both:
        same += (student_logits.argmax(-1) == teacher_logits.argmax(-1)).sum().item()
        divergence += F.kl_div(
            student_logits.log_softmax(-1), teacher_logits.log_softmax(-1), reduction="sum", log_target=True
        ).item()
        count += len(student_logits)
    return {"top1": same / count, "kl": divergence / count}
