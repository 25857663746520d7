"""Pictures: deterministic, self-contained, with the lines and names that they should have."""

from itertools import pairwise
from xml.etree import ElementTree

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tests.support.report_tree import NASTY, small_params, write_curve
from tinybert.report.charts import (
    curve_charts,
    line_panel,
    logarithmic,
    panels,
    pareto_chart,
    pruning_chart,
)
from tinybert.report.results import Results, load_results


def results_of(root) -> Results:
    return load_results(small_params(), root)


def texts(svg: str) -> str:
    drawing = ElementTree.fromstring(str(svg).replace("xlink:href", "href"))
    return " | ".join("".join(node.itertext()) for node in drawing.iter("text"))


def test_pictures_are_the_same_again_and_load_nothing(root):
    for draw in (pareto_chart, pruning_chart):
        first, again = draw(results_of(root)), draw(results_of(root))
        assert first == again
        assert "http" not in first and "<style" not in first and "currentColor" in first


def test_score_is_drawn_against_latency_and_size(root):
    shown = texts(pareto_chart(results_of(root)))
    assert shown.count("synthetic MRPC: accuracy") == 2  # latency, size
    assert shown.count("synthetic MNLI: accuracy") == 1  # no latency was measured
    assert all(name in shown for name in ("ms a row", "MB", "teacher", "tinybert4", "int8-qdq"))


@pytest.mark.parametrize(
    "values", [[1.0, 1.01], [0.0561, 0.06, 0.0712, 0.13], [0.9, 4.1], [2.5], [1.2, 44.4], [0.03, 1400.0]]
)
def test_axis_labels_of_close_values_do_not_overlap(values):
    figure, (axis,) = panels(1)
    axis.scatter(values, [0.5] * len(values))
    logarithmic(axis, "x")
    FigureCanvasAgg(figure).draw()
    low, high = axis.get_xlim()
    shown = [tick.label1 for tick in axis.xaxis.get_major_ticks() if low <= tick.get_loc() <= high]
    boxes = [label.get_window_extent() for label in shown]
    assert 2 <= len(boxes) <= 8
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
    assert len({label.get_text() for label in shown}) == len(shown)


def test_values_that_spread_widely_stand_on_a_logarithmic_axis():
    axis = Figure().subplots()
    line_panel(axis, "total", {"lazy": ([0, 1, 2], [100.0, 1.0, 0.01])}, "steps")
    assert axis.get_yscale() == "log"
    axis = Figure().subplots()
    line_panel(axis, "total", {"a": ([0, 1], [4.0, 2.0]), "b": ([0, 1], [3.0, 2.0])}, "steps")
    assert axis.get_yscale() == "linear" and len(axis.lines) == 2 and axis.get_legend()


def test_text_stages_have_a_panel_a_loss_tasks_one_a_stage(root):
    points = [{"step": 1, "total": 2.0}, {"step": 2, "total": 1.0}]
    write_curve(root / "reports/curves/prune/mrpc-tinybert4-20.csv", points)
    charts = {title: texts(svg) for title, svg in curve_charts(results_of(root)).items()}
    assert list(charts) == ["prepare_teacher", "general_distill", "synthetic MRPC"]
    assert "total" in charts["prepare_teacher"] and "hard" in charts["prepare_teacher"]
    assert "learning_rate" not in charts["prepare_teacher"]
    assert NASTY[:20] in charts["general_distill"]  # a strange column, as text
    assert "prune" in charts["synthetic MRPC"] and "intermediate" not in charts["synthetic MRPC"]


def test_weights_of_a_learnable_map_are_a_chart_of_their_own(root):
    points = [
        {"step": step, "epoch": 0, "total": 5.0, "map_1_1": 0.5 + step / 100, "map_1_2": 0.5 - step / 100}
        for step in (10, 20, 40)
    ]
    write_curve(root / "reports/curves/general_distill/tinybert4.csv", points)
    charts = {title: texts(svg) for title, svg in curve_charts(results_of(root)).items()}
    chart = charts["general_distill: weights of the learnable layer map"]
    assert "tinybert4, layer 1" in chart and "teacher layer 2" in chart
    assert "map_" not in "".join(charts.values())
