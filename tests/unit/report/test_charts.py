"""Loss curves as SVG, read back as XML."""

from xml.etree import ElementTree

import pytest

from tinybert.report.charts import POINTS_A_LINE, WIDTH, bar_chart, line_chart, loss_charts


def places(svg: str) -> list[list[tuple[float, float]]]:
    lines = [node.get("points").split() for node in ElementTree.fromstring(svg).iter("polyline")]
    return [[tuple(map(float, place.split(","))) for place in line] for line in lines]


def labels(svg: str) -> list[str]:
    return [node.text for node in ElementTree.fromstring(svg).iter("text")]


def test_one_chart_a_term_and_one_line_an_instance():
    curves = {
        "lazy": {"step": [1.0, 2.0], "epoch": [0.0, 0.0], "learning_rate": [1.0, 0.5], "total": [3.0, 2.0]},
        "attentive": {"step": [1.0, 2.0], "total": [4.0, 2.0], "attention": [1.0, 0.5]},
    }
    total, attention = loss_charts(curves)
    assert (total.title, total.lines) == ("total", [("lazy", 0), ("attentive", 1)])
    assert (attention.title, attention.lines) == ("attention", [("attentive", 1)])
    assert [len(places(chart.svg)) for chart in (total, attention)] == [2, 1]


def test_points_stand_where_their_numbers_are():
    [chart] = loss_charts({"lazy": {"step": [0.0, 50.0, 100.0], "total": [4.0, 3.0, 2.0]}})
    (left, top), (middle, centre), (right, bottom) = places(chart.svg)[0]
    assert left < middle < right and top < centre < bottom  # downwards on the page
    assert middle == pytest.approx((left + right) / 2) and centre == pytest.approx((top + bottom) / 2)
    assert labels(chart.svg) == ["2", "2.5", "3", "3.5", "4", "0", "100 steps"]


def test_values_that_spread_widely_stand_on_a_logarithmic_axis():
    [chart] = loss_charts({"lazy": {"step": [0.0, 1.0, 2.0], "total": [100.0, 1.0, 0.01]}})
    heights = [y for _, y in places(chart.svg)[0]]
    assert heights[1] == pytest.approx((heights[0] + heights[2]) / 2)
    assert labels(chart.svg)[:5] == ["0.01", "0.1", "1", "10", "100"]


def test_gaps_and_one_value_only_are_drawn():
    [chart] = loss_charts({"lazy": {"step": [1.0, 2.0, 3.0], "total": [5.0, None, 5.0]}})
    assert len(places(chart.svg)[0]) == 2


def test_long_curves_are_thinned_and_end_at_their_last_point():
    steps = [float(step) for step in range(1, 10001)]
    [chart] = loss_charts({"lazy": {"step": steps, "total": steps}})
    [line] = places(chart.svg)
    assert len(line) <= POINTS_A_LINE
    assert line[-1][0] == max(x for x, _ in line) == 350.0  # the right edge of the drawing


def test_names_are_escaped():
    [chart] = loss_charts({'"><b>': {"step": [1.0], "<i>": [2.0]}})
    assert ElementTree.fromstring(chart.svg).get("aria-label") == '<i> over steps, "><b>'


def test_a_curve_without_points_has_no_chart():
    assert loss_charts({"lazy": {}, "attentive": {"step": [], "total": []}}) == []


def test_a_curve_over_something_else_than_steps_says_so():
    chart = line_chart("matthews over sparsity", {"tinybert4": (0, [(0.0, 0.3), (20.0, 0.32), (90.0, 0.1)])}, unit="%")
    assert labels(chart.svg)[-2:] == ["0", "90 %"]
    (first, _), (second, _), (third, _) = places(chart.svg)[0]
    assert (second - first) / (third - first) == pytest.approx(20 / 90, abs=0.01)


def test_a_span_given_sets_the_vertical_axis():
    chart = line_chart("weight", {"a": (0, [(0.0, 0.01), (10.0, 0.5)])}, unit="steps", span=(0.0, 1.0))
    assert labels(chart.svg)[:5] == ["0", "0.25", "0.5", "0.75", "1"]


def test_bars_are_as_long_as_their_numbers():
    chart = bar_chart("Seconds", {"short": 1.5, "<long>": 6.0})
    widths = [float(bar.get("width")) for bar in ElementTree.fromstring(chart.svg).iter("rect")]
    assert widths == [WIDTH / 4, WIDTH]
    assert labels(chart.svg) == ["short", "1.5", "<long>", "6.0"]
