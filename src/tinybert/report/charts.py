"""Curves and bars as inline SVG: no script, no font, no file from elsewhere; colours come from the page's CSS."""

import math
from dataclasses import dataclass
from html import escape

from tinybert.report.results import Curve

WIDTH, HEIGHT = 360, 200
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 10, 28
BAR_ROW = 26
POINTS_A_LINE = 200
TICKS = 4
LOG_FROM_RATIO = 10.0  # values that spread wider than this are drawn on a logarithmic axis
COLOURS = 8  # CSS classes c0 … c7
NOT_TERMS = ("step", "epoch", "learning_rate")
MAP_PREFIX = "map_"  # map_<student layer>_<teacher layer>: weights of a learnable layer map

Line = tuple[int, list[tuple[float, float]]]  # its colour number, its points


@dataclass(frozen=True)
class Chart:
    """A picture. lines: (name, colour number) of each line drawn, for the legend; svg: escaped and complete."""

    title: str
    lines: list[tuple[str, int]]
    svg: str


def loss_charts(curves: dict[str, Curve]) -> list[Chart]:
    """One chart for each loss term of a stage; curves: instance -> its curve. Instances without a term lack there."""
    terms = dict.fromkeys(column for curve in curves.values() for column in curve if is_term(column))
    charts = []
    for term in terms:
        lines = {
            name: (number % COLOURS, curve_points(curve, term))
            for number, (name, curve) in enumerate(curves.items())
            if any(value is not None for value in curve.get(term, []))
        }
        if lines:
            charts.append(line_chart(term, lines, unit="steps"))
    return charts


def bar_chart(title: str, bars: dict[str, float]) -> Chart:
    """Horizontal bars of the given lengths, from 0 on, each with its name above and its number."""
    longest = max(bars.values()) or 1.0
    label = f"{title}: {'; '.join(f'{name} {value:,.1f}' for name, value in bars.items())}"
    parts = [f'<svg viewBox="0 0 {WIDTH} {BAR_ROW * len(bars)}" role="img" aria-label="{escape(label)}">']
    for number, (name, value) in enumerate(bars.items()):
        y = BAR_ROW * number
        parts.append(
            f'<rect class="bar" x="0" y="{y + 14}" width="{WIDTH * value / longest:.1f}" height="6"/>'
            f'<text x="0" y="{y + 11}">{escape(name)}</text>'
            f'<text x="{WIDTH}" y="{y + 11}" text-anchor="end">{value:,.1f}</text>'
        )
    return Chart(title, [], "".join([*parts, "</svg>"]))


def is_term(column: str) -> bool:
    """Whether a column of a curve is a loss, no weight of a learnable map."""
    return column not in NOT_TERMS and not column.startswith(MAP_PREFIX)


def line_chart(title: str, lines: dict[str, Line], *, unit: str, span: tuple[float, float] | None = None) -> Chart:
    """Lines over a horizontal axis from 0, whose numbers are of `unit`.

    span: the ends of a linear vertical axis; without it they are the least and the largest value.
    """
    legend = [(name, colour) for name, (colour, _) in lines.items()]
    return Chart(title, legend, _svg(title, lines, unit, span))


def curve_points(curve: Curve, term: str) -> list[tuple[float, float]]:
    """(step, value) pairs, thinned to about POINTS_A_LINE; the last is always there."""
    pairs = zip(curve["step"], curve[term], strict=True)
    points = [(x, y) for x, y in pairs if x is not None and y is not None and math.isfinite(y)]
    stride = math.ceil(len(points) / POINTS_A_LINE) or 1
    return points[::-stride][::-1]


def _svg(title: str, lines: dict[str, Line], unit: str, span: tuple[float, float] | None) -> str:
    points = [point for _, line in lines.values() for point in line]
    if not points:
        return ""
    low, high = span or (min(y for _, y in points), max(y for _, y in points))
    logarithmic = not span and low > 0 and high / low > LOG_FROM_RATIO
    last = max(x for x, _ in points)
    vertical = Axis(low, high, HEIGHT - BOTTOM, TOP, logarithmic=logarithmic)
    horizontal = Axis(0, last, LEFT, WIDTH - RIGHT, logarithmic=False)
    label = f"{title} over {unit}, {', '.join(lines)}"
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">']
    parts += [horizontal_rule(value, vertical.place(value)) for value in vertical.ticks()]
    parts += [
        f'<text x="{horizontal.place(x):.0f}" y="{HEIGHT - 10}" text-anchor="{anchor}">{escape(text)}</text>'
        for x, anchor, text in ((0, "start", "0"), (last, "end", f"{last:,.0f} {unit}"))
    ]
    for name, (colour, line) in lines.items():
        places = " ".join(f"{horizontal.place(x):.1f},{vertical.place(y):.1f}" for x, y in line)
        parts.append(f'<polyline class="c{colour}" points="{places}"><title>{escape(name)}</title></polyline>')
    return "".join([*parts, "</svg>"])


def horizontal_rule(value: float, y: float) -> str:
    """A line across the chart, with its value on the left."""
    return (
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>'
    )


class Axis:
    """Places values between two pixel positions, linearly or by their logarithm."""

    def __init__(self, low: float, high: float, start: float, end: float, *, logarithmic: bool) -> None:
        self.scale = math.log if logarithmic else float
        self.unscale = math.exp if logarithmic else float
        self.low, self.high = self.scale(low), self.scale(high)
        if self.low == self.high:  # one value only: an axis around it
            self.low, self.high = self.low - 1, self.high + 1
        self.start, self.end = start, end

    def place(self, value: float) -> float:
        return self.start + (self.scale(value) - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        return [self.unscale(self.low + (self.high - self.low) * i / TICKS) for i in range(TICKS + 1)]
