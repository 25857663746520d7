"""Which systems no other beats."""

from tinybert.compress.serving import VARIANTS
from tinybert.report.fronts import System, front, shape_legend


def names(*systems: tuple[str, float, float]) -> list[str]:
    return [system.model for system in front([System(name, "fp32", score, cost) for name, score, cost in systems])]


def test_the_front_is_what_no_other_beats_in_both():
    found = names(("large", 0.9, 100.0), ("small", 0.7, 5.0), ("worse and larger", 0.6, 6.0), ("middle", 0.8, 20.0))
    assert found == ["small", "middle", "large"]


def test_of_equal_scores_the_cheaper_and_of_equal_costs_the_better():
    assert names(("dear", 0.8, 9.0), ("cheap", 0.8, 3.0)) == ["cheap"]
    assert names(("worse", 0.7, 3.0), ("better", 0.8, 3.0)) == ["better"]


def test_of_equals_the_first():
    assert names(("first", 0.8, 3.0), ("second", 0.8, 3.0)) == ["first"]


def test_nothing_has_no_front():
    assert front([]) == []


def test_every_form_has_a_shape_of_its_own_in_the_legend():
    legend = dict(shape_legend())
    assert set(legend) == set(VARIANTS)
    assert len({svg.replace(form, "") for form, svg in legend.items()}) == len(VARIANTS)
