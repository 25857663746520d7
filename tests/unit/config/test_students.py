"""Layer maps against the published lists."""

import pytest

from tinybert.config.students import mapped_layers
from tinybert.pipeline.errors import UserError


@pytest.mark.parametrize(
    ("name", "student_layers", "teacher_layers", "expected"),
    [
        ("uniform", 4, 12, [3, 6, 9, 12]),  # Jiao et al. 2020
        ("top", 4, 12, [9, 10, 11, 12]),
        ("bottom", 4, 12, [1, 2, 3, 4]),
        ("uniform", 6, 12, [2, 4, 6, 8, 10, 12]),
        ("uniform", 4, 6, [2, 3, 5, 6]),
        ("uniform", 3, 3, [1, 2, 3]),
        ((1, 4, 4), 3, 4, [1, 4, 4]),
    ],
)
def test_maps_to_one_layer_each(name, student_layers, teacher_layers, expected):
    assert mapped_layers(name, student_layers, teacher_layers) == [[layer] for layer in expected]


@pytest.mark.parametrize("name", ["mean", "random", "learnable"])
@pytest.mark.parametrize(
    ("student_layers", "teacher_layers", "expected"),
    [
        (4, 12, [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12]]),
        (4, 6, [[1, 2], [3], [4, 5], [6]]),
        (2, 2, [[1], [2]]),
    ],
)
def test_maps_to_blocks_take_each_teacher_layer_once(name, student_layers, teacher_layers, expected):
    assert mapped_layers(name, student_layers, teacher_layers) == expected


@pytest.mark.parametrize(("name", "named"), [((1, 7), "7"), ("uniform", "8 student layers"), ("mean", "8 student")])
def test_maps_beyond_the_teacher_are_refused(name, named):
    with pytest.raises(UserError, match=named):
        mapped_layers(name, 2 if isinstance(name, tuple) else 8, 6)
