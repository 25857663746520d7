"""Dropout drops what it is told to, and leaves the mean as it is."""

import pytest
import torch

from tinybert.models.bert import Dropout, dropout


@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_values_are_dropped_at_random_and_the_mean_stays(probability):
    torch.manual_seed(0)
    values = torch.full((1001, 999), 3.0)
    found = dropout(values, probability)
    assert (found == 0).double().mean().item() == pytest.approx(probability, abs=0.002)
    assert found[found != 0].unique().tolist() == pytest.approx([3 / (1 - probability)], rel=1e-4)
    assert found.double().mean().item() == pytest.approx(3.0, abs=0.01)
    zeros = (found == 0).double()
    for neighbour in (zeros[:, 1:], zeros[:, 4:]):  # four values come from one random number
        pair = torch.stack([zeros[:, : neighbour.shape[1]].flatten(), neighbour.flatten()])
        assert abs(torch.corrcoef(pair)[0, 1]) < 0.005


def test_the_gradient_is_that_of_what_was_kept():
    torch.manual_seed(0)
    values = torch.ones(50, 7, requires_grad=True)
    found = dropout(values, 0.3)
    found.sum().backward()
    assert torch.equal(values.grad, found.detach())


def test_the_seed_decides():
    values, found = torch.ones(40), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(dropout(values, 0.5))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_nothing_is_dropped_without_need():
    values = torch.ones(9)
    assert dropout(values, 0.0) is values
    assert Dropout(0.9).eval()(values) is values


def test_half_precision_stays_half_precision():
    assert dropout(torch.ones(8, dtype=torch.bfloat16), 0.1).dtype == torch.bfloat16
