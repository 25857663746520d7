"""Real tokens and batches."""

import pytest
import torch

from tests.support.builders import STUDENT, TEACHER, batch, masked_lm
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.models.bert import BertConfig, SequenceClassifier
from tinybert.models.outputs import Batch, OutputSpec, RealTokens


def test_real_tokens_are_unpadded_and_padded():
    mask = torch.tensor([[True, True, False], [True, False, False], [True, True, True]])
    real, rows = RealTokens(mask), torch.arange(18.0).view(3, 3, 2)
    tokens = real.unpad(rows)
    assert tokens[:, 0].tolist() == [0, 2, 6, 12, 14, 16]
    assert torch.equal(real.pad(tokens), rows * mask[..., None])
    assert real.first(tokens)[:, 0].tolist() == [0, 6, 12]
    assert real.columns.tolist() == [0, 1, 0, 0, 1, 2]
    read = real.tokens_at(torch.tensor([0, 1, 7]))  # two of the first row, none of the second
    assert tokens[read.index][:, 0].tolist() == [0, 2, 14]
    assert read.layout.mask.shape == (3, 8) and read.layout.mask.sum(dim=1).tolist() == [2, 0, 1]


def test_outputs_do_not_depend_on_whether_padding_is_computed(monkeypatch):
    torch.manual_seed(3)
    config = BertConfig(30, 12, 2, 3, 24, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = SequenceClassifier(config, ("a", "b")).double().eval()
    lengths = torch.tensor([6, 6, 5, 6])  # 23 of 24 places
    mask = torch.arange(6) < lengths[:, None]
    batch = Batch(torch.randint(1, 30, (4, 6)) * mask, mask, torch.zeros(4, 6, dtype=torch.int64))
    every = OutputSpec(frozenset({0, 1, 2}), frozenset({1, 2}))
    found = {}
    for share in (1.0, 0.9):  # moved, dense
        monkeypatch.setattr("tinybert.models.bert.DENSE_FROM", share)
        with torch.no_grad():
            found[share] = model(batch, every), model(batch).logits
    (moved, moved_logits), (dense, dense_logits) = found[1.0], found[0.9]
    for layer, states in moved.hidden.items():
        assert len(states) == 23
        torch.testing.assert_close(dense.hidden[layer], states, rtol=1e-12, atol=1e-12)
    real = (mask[:, :, None] & mask[:, None])[:, None]
    for layer, scores in moved.scores.items():
        torch.testing.assert_close(dense.scores[layer] * real, scores * real, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(dense.logits, moved.logits, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(dense_logits, moved_logits, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(dense_logits, dense.logits, rtol=1e-12, atol=1e-12)


def test_losses_do_not_depend_on_whether_padding_is_computed(monkeypatch):
    rows = batch((7, 7, 6), labels=torch.tensor([9, 8, 7]), positions=torch.tensor([1, 13, 19]))
    names = ("hard", "prediction", "hidden", "embedding", "attention", "pkd")
    torch.manual_seed(3)
    config = DistillationConfig(dict.fromkeys(names, 1.0))
    loss, teacher = DistillationLoss(config, STUDENT, TEACHER).double(), masked_lm(TEACHER, seed=2).double()
    found = {}
    for share in (1.0, 0.9):  # moved, dense: 20 of 21 places are real
        monkeypatch.setattr("tinybert.models.bert.DENSE_FROM", share)
        student = masked_lm(seed=1).double()
        with torch.no_grad():
            targets = teacher(rows, loss.teacher_spec())
        terms = loss(student(rows, loss.student_spec), targets, rows)
        loss.total(terms).backward()
        found[share] = terms, [weight.grad for weight in student.bert.parameters() if weight.grad is not None]
    (moved, moved_gradients), (dense, dense_gradients) = found[1.0], found[0.9]
    assert {name: term.item() for name, term in dense.items()} == pytest.approx(
        {name: term.item() for name, term in moved.items()}, rel=1e-12
    )
    assert len(moved_gradients) > 30
    torch.testing.assert_close(dense_gradients, moved_gradients, rtol=1e-9, atol=1e-12)


def test_dense_rows_are_not_moved():
    mask = torch.tensor([[True, True, True], [True, True, False]])
    dense, rows = RealTokens(mask, dense_from=0.8), torch.arange(12.0).view(2, 3, 2)
    assert dense.unpad(rows) is rows and dense.pad(rows) is rows
    assert dense.outputs_of(rows)[:, 0].tolist() == [0, 2, 4, 6, 8]
    assert rows[dense.first_tokens().index][:, 0, 0].tolist() == [0, 6]
    assert dense.columns.tolist() == [0, 1, 2]
