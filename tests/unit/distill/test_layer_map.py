"""Layer maps at work: rows that sum to 1, what they mix, what moves them."""

import pytest
import torch

from tests.support.builders import learnable
from tinybert.distill.objective import LayerWeights

GROUPS = [[1, 2, 3], [4, 5, 6]]
TEACHER = {layer: torch.full((2, 2), float(layer)) for layer in range(1, 7)}


def test_a_single_layer_is_handed_out_without_a_copy():
    weights = LayerWeights([[3], [6]], "uniform")
    assert weights.target(1, TEACHER) is TEACHER[3]
    assert weights.target(2, TEACHER) is TEACHER[6]


def test_mean_by_hand():
    weights = LayerWeights(GROUPS, "mean")
    assert weights.target(1, TEACHER).tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert weights.target(2, TEACHER)[0, 0].item() == pytest.approx(5.0)


def draws(seed):
    weights, found = LayerWeights(GROUPS, "random", seed=seed), []
    for step in range(20):
        weights.redraw(step)
        found.append(weights.drawn)
    return found


def test_random_draws_one_layer_of_each_group_by_step():
    weights, again = LayerWeights(GROUPS, "random", seed=1), LayerWeights(GROUPS, "random", seed=1)
    seen = {1: set(), 2: set()}
    for step in range(60):
        weights.redraw(step)
        for layer, group in ((1, GROUPS[0]), (2, GROUPS[1])):
            (drawn,) = weights.read(layer)
            assert drawn in group
            seen[layer].add(drawn)
            assert weights.target(layer, TEACHER) is weights.target(layer, TEACHER) is TEACHER[drawn]
    assert seen == {1: {1, 2, 3}, 2: {4, 5, 6}}
    again.redraw(59)
    assert again.drawn == weights.drawn
    assert draws(seed=1) == draws(seed=1) != draws(seed=2)


def test_learnable_starts_as_published():
    equal = LayerWeights(GROUPS, learnable()).learned()
    assert list(equal) == ["map_1_1", "map_1_2", "map_1_3", "map_2_4", "map_2_5", "map_2_6"]
    assert list(equal.values()) == pytest.approx([1 / 3] * 6)
    last = LayerWeights(GROUPS, learnable(init="last")).learned()
    assert [last[f"map_1_{j}"] for j in (1, 2, 3)] == pytest.approx([0.107, 0.107, 0.787], abs=1e-3)


def test_learnable_weights_move_toward_the_layer_that_fits():
    weights = LayerWeights(GROUPS, learnable())
    optimizer = torch.optim.SGD(weights.parameters(), lr=0.2)
    for _ in range(200):
        optimizer.zero_grad()
        (weights.target(1, TEACHER) - TEACHER[3]).square().mean().backward()
        optimizer.step()
    learned = weights.learned()
    assert learned["map_1_3"] > 0.9
    assert sum(learned[f"map_1_{j}"] for j in (1, 2, 3)) == pytest.approx(1.0)
    assert learned["map_2_4"] == pytest.approx(1 / 3)  # no gradient, no change


def test_only_a_learnable_map_has_weights_to_learn():
    assert list(LayerWeights(GROUPS, "mean").parameters()) == list(LayerWeights(GROUPS, "random").parameters()) == []
    assert LayerWeights(GROUPS, "mean").learned() == {}
    assert [theta.shape for theta in LayerWeights(GROUPS, learnable()).parameters()] == [(3,), (3,)]
