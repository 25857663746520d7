"""Layer maps against the published lists."""

import pytest
import torch

from tinybert import layer_map
from tinybert.errors import UserError


@pytest.mark.parametrize(
    ("name", "student_layers", "teacher_layers", "expected"),
    [
        ("uniform", 4, 12, [3, 6, 9, 12]),  # Jiao et al. 2020
        ("top", 4, 12, [9, 10, 11, 12]),
        ("bottom", 4, 12, [1, 2, 3, 4]),
        ("uniform", 6, 12, [2, 4, 6, 8, 10, 12]),
        ("uniform", 4, 6, [2, 3, 5, 6]),
        ("uniform", 3, 3, [1, 2, 3]),
    ],
)
def test_named_maps(name, student_layers, teacher_layers, expected):
    assert layer_map.mapped_layers(name, student_layers, teacher_layers) == expected


def test_explicit_map():
    assert layer_map.mapped_layers((1, 4, 4), 3, 4) == [1, 4, 4]


def test_matrix_rows_are_one_hot_at_the_mapped_layers():
    weights = layer_map.matrix("uniform", 4, 12)
    assert weights.shape == (4, 12)
    assert weights.sum(1).tolist() == [1.0] * 4
    assert (weights.argmax(1) + 1).tolist() == [3, 6, 9, 12]


def test_target_of_a_one_hot_row_is_the_layer_and_of_a_mixed_row_the_mean():
    layers = {1: torch.tensor([1.0, 2.0]), 2: torch.tensor([5.0, 8.0])}
    assert layer_map.target(torch.tensor([0.0, 1.0]), layers) is layers[2]
    assert layer_map.target(torch.tensor([0.25, 0.75]), layers).tolist() == [4.0, 6.5]


@pytest.mark.parametrize(("name", "named"), [((1, 7), "7"), ("uniform", "8 student layers")])
def test_maps_beyond_the_teacher_are_refused(name, named):
    with pytest.raises(UserError, match=named):
        layer_map.mapped_layers(name, 2 if isinstance(name, tuple) else 8, 6)
