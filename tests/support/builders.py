"""Small models and batches for tests."""

import pytest
import torch

from tinybert.config.students import Learnable, LearnableMap
from tinybert.config.tasks import Task
from tinybert.models.bert import BertConfig, MaskedLM, SequenceClassifier
from tinybert.models.outputs import Batch

TEACHER = BertConfig(50, 24, 4, 3, 48, max_position_embeddings=32)
STUDENT = BertConfig(50, 12, 2, 3, 24, max_position_embeddings=32)


def bfloat16_works() -> bool:
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


PRECISIONS = ["float32", pytest.param("bfloat16", marks=pytest.mark.skipif(not bfloat16_works(), reason="no bf16"))]


def masked_lm(config=STUDENT, seed=0) -> MaskedLM:
    torch.manual_seed(seed)
    return MaskedLM(config).eval()


def classifier(config=STUDENT, labels=("no", "yes"), seed=0) -> SequenceClassifier:
    torch.manual_seed(seed)
    return SequenceClassifier(config, labels).eval()


def task_with(*labels, kind="classification", columns=("text",)) -> Task:
    """A task with these classes; with none and kind regression a score."""
    return Task("rows", columns, labels, "rows", kind=kind)


def learnable(learning_rate=1e-3, init="equal") -> Learnable:
    return Learnable(learnable=LearnableMap(learning_rate=learning_rate, init=init))


def batch(lengths=(7, 4, 5), width=7, *, seed=0, labels=None, positions=None) -> Batch:
    """Random tokens; rows of the given lengths, padded to `width` with token 0."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 50, (len(lengths), max(lengths)), generator=generator)
    ids = torch.cat([ids, torch.zeros(len(lengths), width - ids.shape[1], dtype=torch.long)], 1)
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    return Batch(ids * mask, mask, torch.zeros_like(ids), labels, positions)
