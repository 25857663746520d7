"""Curves by stage: losses, and the weights of learnable layer maps apart from them."""

import pytest

from tests.support.report_tree import small_params, write_curve, write_tree
from tinybert.report.curves import curve_groups, map_weight_groups
from tinybert.report.results import load_results


@pytest.fixture
def results(tmp_path):
    write_tree(tmp_path)
    points = [
        {
            "step": step,
            "epoch": 0,
            "learning_rate": 0.1,
            "total": 5.0,
            "map_1_1": 0.5 + step / 100,
            "map_1_2": 0.5 - step / 100,
        }
        for step in (10, 20, 40)
    ]
    write_curve(tmp_path / "reports/curves/general_distill/tinybert4.csv", points)
    return load_results(small_params(), tmp_path)


def test_weights_of_a_map_are_a_chart_of_their_own(results):
    [group] = map_weight_groups(results)
    [chart] = group.charts
    assert (group.title, chart.title) == ("General distillation", "tinybert4, layer 1")
    assert chart.lines == [("teacher layer 1", 0), ("teacher layer 2", 1)]
    assert group.table.columns == ("instance", "step", "map_1_1", "map_1_2")
    assert group.table.rows[0] == ("tinybert4", "10", "0.6", "0.4")
    assert group.table.rows[-1] == ("tinybert4", "40", "0.9", "0.1")
    assert ">1</text>" in chart.svg and ">0</text>" in chart.svg  # weights stand between 0 and 1


def test_weights_of_a_map_are_no_losses(results):
    general = next(group for group in curve_groups(results) if group.title == "General distillation")
    assert "total" in [chart.title for chart in general.charts]
    assert not [name for name in (*general.table.columns, *(chart.title for chart in general.charts)) if "map_" in name]
