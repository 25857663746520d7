"""Each loss against hand-set numbers or NumPy float64, and against padding."""

import math

import numpy as np
import pytest
import torch

from tinybert.distill import losses


def softmax(values):
    exponentials = np.exp(values - values.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def test_hard_is_the_mean_negative_log_probability():
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]))
    expected = -(math.log(0.25) + math.log(0.8)) / 2
    assert losses.hard(logits, torch.tensor([1, 2])).item() == pytest.approx(expected)


def test_hard_keeps_its_digits_among_large_logits():
    expected = math.log1p(math.exp(-1.0))
    assert losses.hard(torch.tensor([[10_001.0, 10_000.0]]), torch.tensor([0])).item() == pytest.approx(expected)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_hard_of_classes_equals_pytorch_with_gradients(scale):
    """The loss has its own backward pass; at the larger scale most probabilities underflow."""
    logits = scale * torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 3, 4, int(logits[5].argmax())])
    ours, theirs = (logits.clone().requires_grad_() for _ in range(2))
    found, expected = losses.hard(ours, labels), torch.nn.functional.cross_entropy(theirs, labels)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    found.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-12)


def test_gradients_of_hard_in_half_precision_are_rounded_once():
    logits = torch.randn(6, 5, generator=torch.Generator().manual_seed(0)).bfloat16()
    logits[0, 0] = 9.0  # its probability is nearly 1, its gradient the small difference
    labels, ours = torch.tensor([0, 1, 2, 3, 4, 0]), logits.clone().requires_grad_()
    losses.hard(ours, labels).backward()
    expected = (logits.double().softmax(-1) - torch.eye(5)[labels]) / 6
    torch.testing.assert_close(ours.grad.double(), expected, rtol=0.004, atol=0)


def test_hard_is_the_squared_error_for_one_output():
    assert losses.hard(torch.tensor([[1.0], [4.0]]), torch.tensor([2.0, 1.0])).item() == pytest.approx((1 + 9) / 2)


def test_prediction_is_kl_by_hand():
    teacher, student = torch.tensor([[0.8, 0.2]]).log(), torch.tensor([[0.5, 0.5]]).log()
    expected = 0.8 * math.log(0.8 / 0.5) + 0.2 * math.log(0.2 / 0.5)
    assert losses.prediction(student, teacher, temperature=1.0).item() == pytest.approx(expected)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0, 10.0])
def test_prediction_matches_numpy_at_any_temperature(temperature):
    rng = np.random.default_rng(0)
    student, teacher = rng.normal(size=(5, 7)), rng.normal(size=(5, 7))
    p, q = softmax(teacher / temperature), softmax(student / temperature)
    expected = temperature**2 * (p * (np.log(p) - np.log(q))).sum(-1).mean()
    found = losses.prediction(torch.tensor(student), torch.tensor(teacher), temperature=temperature)
    assert found.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_prediction_has_the_gradient_of_the_soft_cross_entropy(temperature):
    rng = np.random.default_rng(1)
    student, teacher = rng.normal(size=(4, 3)), rng.normal(size=(4, 3))
    leaf = torch.tensor(student, requires_grad=True)
    losses.prediction(leaf, torch.tensor(teacher), temperature=temperature).backward()
    # T² of the loss, and 1/T of each softmax's argument.
    expected = temperature * (softmax(student / temperature) - softmax(teacher / temperature)) / 4
    assert leaf.grad.numpy() == pytest.approx(expected, rel=1e-10)


def test_prediction_of_a_regression_is_the_squared_difference():
    found = losses.prediction(torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [2.5]]), temperature=1.0)
    assert found.item() == pytest.approx((4 + 0.25) / 2)


def test_attention_by_hand_ignores_padding():
    mask = torch.tensor([[True, True, False]])
    student, teacher = torch.zeros(1, 2, 3, 3), torch.full((1, 2, 3, 3), 99.0)
    teacher[0, 0, :2, :2] = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    teacher[0, 1, :2, :2] = 0.0
    assert losses.attention(student, teacher, mask).item() == pytest.approx((1 + 4 + 9 + 16) / 8)


def test_hidden_by_hand():
    student, teacher = torch.zeros(3, 2), torch.tensor([[1.0, 2.0], [0.0, 1.0], [2.0, 0.0]])
    assert losses.hidden(student, teacher).item() == pytest.approx((1 + 4 + 0 + 1 + 4 + 0) / 6)


def test_logits_are_summed_over_classes_and_averaged_over_rows():
    student, teacher = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[3.0, 1.0], [0.5, 0.0]])
    assert losses.logit_mse(student, teacher).item() == pytest.approx((4 + 1 + 0.25) / 2)


def test_attention_kl_by_hand_ignores_padding():
    mask = torch.tensor([[True, True, False]])
    student, teacher = torch.full((1, 1, 3, 3), 7.0), torch.full((1, 1, 3, 3), 99.0)
    student[0, 0, :2, :2] = 0.0  # (.5, .5) in both rows
    teacher[0, 0, :2, :2] = torch.tensor([[math.log(3.0), 0.0], [0.0, 0.0]])  # (.75, .25) and (.5, .5)
    expected = (0.75 * math.log(1.5) + 0.25 * math.log(0.5) + 0.0) / 2
    assert losses.attention_kl(student, teacher, mask).item() == pytest.approx(expected)


def test_cosine_by_hand_reads_directions_alone():
    student, teacher = torch.tensor([[1.0, 0.0], [3.0, 3.0]]), torch.tensor([[0.0, 2.0], [1.0, 1.0]])
    assert losses.cosine(student, teacher).item() == pytest.approx((1.0 + 0.0) / 2)


def test_cls_by_hand_reads_directions_alone():
    student, teacher = torch.tensor([[3.0, 4.0], [0.0, 2.0]]), torch.tensor([[10.0, 0.0], [0.0, 5.0]])
    assert losses.pkd(student, teacher).item() == pytest.approx(((0.6 - 1) ** 2 + 0.8**2 + 0) / 2)


def test_no_predicted_token_is_no_loss():
    """A process may get rows without one."""
    nothing, labels = torch.zeros(0, 9, requires_grad=True), torch.zeros(0, dtype=torch.int64)
    both, settings = (nothing, nothing.detach()), {"temperature": 2.0}
    for loss in (
        losses.hard(nothing, labels),
        losses.prediction(*both, **settings),
        losses.published_prediction(*both, **settings),
    ):
        assert loss.item() == 0.0
        loss.backward()


def test_half_precision_inputs_are_summed_in_float32():
    mask = torch.ones(4, 64, dtype=torch.bool)
    student = torch.full((4, 12, 64, 64), 0.1, dtype=torch.bfloat16)
    teacher = torch.zeros_like(student)
    expected = float(student[0, 0, 0, 0]) ** 2
    assert losses.attention(student, teacher, mask).item() == pytest.approx(expected, rel=1e-5)
    assert losses.hidden(student[0, 0], teacher[0, 0]).item() == pytest.approx(expected, rel=1e-5)


def test_half_precision_logits_compare_in_float32_under_autocast():
    generator = torch.Generator().manual_seed(0)
    student, teacher = (torch.randn(64, 5000, generator=generator).bfloat16() for _ in range(2))
    labels = torch.arange(64)
    with torch.autocast("cpu", torch.bfloat16):
        found = losses.prediction(student, teacher, temperature=2.0), losses.hard(student, labels)
    p, q = (softmax(part.double().numpy() / 2) for part in (teacher, student))
    assert found[0].item() == pytest.approx(4 * (p * np.log(p / q)).sum(-1).mean(), rel=1e-4)
    expected = -np.log(softmax(student.double().numpy())[np.arange(64), np.arange(64)]).mean()
    assert found[1].item() == pytest.approx(expected, rel=1e-4)


def test_hard_of_several_labels_is_mean_binary_cross_entropy():
    logits = torch.tensor([[0.8, 0.25], [0.5, 0.1]]).logit()
    expected = -(math.log(0.8) + math.log(0.75) + math.log(0.5) + math.log(0.9)) / 4
    found = losses.hard(logits, torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    assert found.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_prediction_of_several_labels_is_kl_of_each(temperature):
    rng = np.random.default_rng(0)
    student, teacher = rng.normal(size=(2, 5, 7))
    p, q = (1 / (1 + np.exp(-logits / temperature)) for logits in (teacher, student))
    divergence = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    found = losses.multilabel_prediction(torch.tensor(student), torch.tensor(teacher), temperature=temperature)
    assert found.item() == pytest.approx(temperature**2 * divergence.mean(), rel=1e-12)
    same = losses.multilabel_prediction(torch.tensor(teacher), torch.tensor(teacher), temperature=temperature)
    assert same.item() == pytest.approx(0.0, abs=1e-12)


def test_prediction_of_one_label_is_that_of_two_classes():
    student, teacher = torch.randn(2, 6, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    two = [torch.cat([logits, torch.zeros_like(logits)], 1) for logits in (student, teacher)]
    expected = losses.prediction(*two, temperature=2.0)
    found = losses.multilabel_prediction(student, teacher, temperature=2.0)
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)


def test_gradients_of_attention_are_those_of_its_formula():
    """It has a backward pass of its own; a learnable layer map needs the gradient of the teacher's side too."""
    generator = torch.Generator().manual_seed(0)
    pair = [torch.randn(2, 3, 4, 4, dtype=torch.float64, generator=generator, requires_grad=True) for _ in "st"]
    mask = torch.tensor([[True] * 4, [True] * 3 + [False]])
    for loss in (losses.attention, losses.published_attention):
        assert torch.autograd.gradcheck(lambda *scores, loss=loss: loss(*scores, mask), pair)


def test_attention_of_mixed_precision_is_compared_in_float32():
    generator = torch.Generator().manual_seed(0)
    student, teacher = (torch.randn(2, 3, 4, 4, generator=generator) for _ in "st")
    student, teacher = student.bfloat16().requires_grad_(), teacher.half()
    found = losses.attention(student, teacher, torch.ones(2, 4, dtype=torch.bool))
    difference = student.detach().double() - teacher.double()
    assert found.item() == pytest.approx(difference.square().mean().item(), rel=1e-6)
    found.backward()
    assert student.grad.dtype == torch.bfloat16
    torch.testing.assert_close(student.grad.double(), 2 * difference / difference.numel(), rtol=0.004, atol=0)


def test_losses_do_not_depend_on_the_size_of_chunks(monkeypatch):
    generator = torch.Generator().manual_seed(5)
    logits, scores = torch.randn(9, 7, generator=generator), torch.randn(2, 4, 3, 5, 5, generator=generator)
    mask = torch.arange(5) < torch.tensor([5, 2, 4, 1])[:, None]
    found = []
    for elements in (losses.CHUNK_ELEMENTS, 1, 100):
        monkeypatch.setattr(losses, "CHUNK_ELEMENTS", elements)
        ours = [values.bfloat16().requires_grad_() for values in (logits, logits, scores[0])]
        terms = [
            losses.hard(ours[0], torch.arange(9) % 7),
            losses.prediction(ours[1], logits.flip(1).half(), temperature=2.0),
            losses.attention(ours[2], scores[1].half(), mask),
        ]
        sum(terms).backward()
        found.append([*terms, *(values.grad for values in ours)])
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-6, atol=0)
