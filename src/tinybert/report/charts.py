"""The charts of the results page: matplotlib SVG, byte-identical for the same numbers."""

import io
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import matplotlib
import pandas as pd
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from tinybert.pipeline import paths
from tinybert.pipeline.files import one_line
from tinybert.report.results import Results, onnx_systems, pruned_students
from tinybert.report.tables import task_name

PANEL_INCHES = (3.5, 2.3)
LOG_FROM_RATIO = 10.0  # values that spread wider than this stand on a logarithmic axis
INK = "#010203"  # becomes currentColor, so that text is readable on light and dark pages
GREY = "#888888"
STYLE: Any = {
    "svg.fonttype": "none", "text.parse_math": False, "font.size": 8, "axes.titlesize": 8, "legend.fontsize": 7,
    "legend.frameon": False, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.alpha": 0.25, "lines.linewidth": 1.2, "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK,
    "xtick.color": INK, "ytick.color": INK,
}  # fmt: skip
MARKERS = dict(zip(paths.VARIANTS, "o^sD", strict=True))
NOT_LOSSES = ("step", "epoch", "learning_rate")
MAP_PREFIX = "map_"  # columns map_<student layer>_<teacher layer>: weights of a learnable layer map
Points = tuple[Sequence[float], Sequence[float]]


def svg_text(figure: Figure, label: str) -> str:
    """The figure as an SVG element, without date and scripts."""
    text = io.StringIO()
    # Ids follow from the salt: the same in each run, others in each figure of the page.
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": label}):
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    return re.sub(r"\A.*?(?=<svg)|<style.*?</style>", "", text.getvalue(), flags=re.S)


def svg_of(figure: Figure, label: str) -> Markup:
    """The figure as an SVG element for an HTML page: in the page's text color, as wide as its place, without URLs."""
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"| width="[^"]*pt"| height="[^"]*pt"', "", svg_text(figure, label), count=4)
    return Markup(svg.replace(INK, "currentColor").replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1))


def panels(count: int, *, columns: int = 3) -> tuple[Figure, list[Axes]]:
    """A figure of `count` small panels in rows."""
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows), layout="constrained")
    return figure, [figure.add_subplot(rows, columns, number) for number in range(1, count + 1)]


def logarithmic(axis: Axes, which: Literal["x", "y"]) -> None:
    """Makes an axis logarithmic, with so few plain numbers that they do not overlap, however close the values are."""
    axis.set(**{f"{which}scale": "log"})
    low, high = getattr(axis, f"get_{which}lim")()
    ticks = getattr(axis, f"{which}axis")
    if high / low < 5:  # matplotlib would name every tenth of a narrow range
        ticks.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    else:
        ticks.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 200 else (1,), numticks=8))
    ticks.set_major_formatter(lambda value, _: f"{value:g}")
    ticks.set_minor_locator(NullLocator())


def plain(text: object) -> str:
    """A name as it is shown in a chart: one line, no control characters."""
    return one_line(text)[:40]


def pareto_chart(results: Results) -> Markup:
    """Score against latency and size of each task's systems, the Pareto front marked."""
    systems = onnx_systems(results)
    models = list(systems["model"].unique())
    costs = {"row_ms": ("ms a row", "best_speed"), "size_mb.raw": ("MB", "best_size")}
    by_task = systems.groupby("task", sort=False)
    shown = [(str(task), rows, cost) for task, rows in by_task for cost in costs if rows[cost].notna().any()]
    with matplotlib.rc_context(STYLE):
        figure, axes = panels(len(shown), columns=4)
        for (task, of_task, cost), axis in zip(shown, axes, strict=True):
            label, is_best = costs[cost]
            best = of_task[of_task[is_best]].sort_values(cost)
            axis.plot(best[cost], best["score"], linestyle="--", color=GREY, zorder=1)
            for row in of_task.to_dict("records"):
                color = f"C{models.index(row['model'])}"
                axis.scatter(row[cost], row["score"], marker=MARKERS[row["variant"]], color=color, s=22, zorder=2)
            axis.set(title=f"{task_name(results, task)}: {results.tasks[task].headline}", xlabel=label)
            logarithmic(axis, "x")
        # Colors stand for models, markers for variants.
        keys = [(plain(model), "o", f"C{number}") for number, model in enumerate(models)]
        keys += [(variant, marker, GREY) for variant, marker in MARKERS.items()]
        entries = [Line2D([], [], marker=m, linestyle="", color=color, label=name) for name, m, color in keys]
        figure.legend(handles=entries, loc="outside lower center", ncols=min(len(entries), 8))
        return svg_of(figure, "score against latency and size")


def line_panel(axis: Axes, title: str, lines: Mapping[str, Points], x: str) -> None:
    """Draws named lines; the y axis is logarithmic if values spread more than tenfold."""
    every = [y for _, values in lines.values() for y in values]
    for name, (xs, ys) in lines.items():
        axis.plot(xs, ys, marker="o" if len(xs) == 1 else "", label=plain(name))
    if min(every) > 0 and max(every) / min(every) > LOG_FROM_RATIO:
        logarithmic(axis, "y")
    axis.set(title=plain(title), xlabel=x)
    if len(lines) > 1:
        axis.legend()


def line_chart(title: str, found: Mapping[str, Mapping[str, Points]], x: str) -> Markup:
    """A panel for each name, with named lines."""
    with matplotlib.rc_context(STYLE):
        figure, axes = panels(len(found))
        for (name, lines), axis in zip(found.items(), axes, strict=True):
            line_panel(axis, name, lines, x)
    return svg_of(figure, title)


def pruning_chart(results: Results) -> Markup:
    """Score over sparsity of each task's students, from the unpruned student on; empty without pruned students."""
    found: dict[str, dict[str, Points]] = {}
    for place, group in pruned_students(results).groupby(["task", "student"], sort=False):
        task, student = map(str, place)
        line = [0.0, *(100 * group["sparsity"])], [group["unpruned"].iloc[0], *group["score"]]
        found.setdefault(f"{task_name(results, task)}: {results.tasks[task].headline}", {})[student] = line
    return line_chart("score over sparsity", found, "% of weights that are zero") if found else Markup()


def curve_charts(results: Results) -> dict[str, Markup]:
    """Loss curves by title.

    Each training stage on text has a chart with a panel per loss; each task has one with the total loss in a panel per
    stage. The weights of learnable layer maps have their own charts, with a panel per student layer.
    """
    found: dict[str, dict[str, dict[str, Points]]] = {}
    for instance in results.trees:
        curve = results.read(paths.curve(instance.stage, instance.name), _curve, pd.DataFrame())
        title = task_name(results, instance.task) if instance.task else instance.stage
        name = f"{instance.model or 'teacher'} {instance.seed}".strip()
        for column in curve.columns.difference(NOT_LOSSES, sort=False):
            points = curve[["step", column]].dropna()
            if column.startswith(MAP_PREFIX):
                student, _, teacher = column.removeprefix(MAP_PREFIX).partition("_")
                chart, panel = f"{title}: weights of the learnable layer map", f"{name}, layer {student}"
                line = f"teacher layer {teacher}"
            elif instance.task and column != "total":
                continue
            else:
                chart, panel, line = title, instance.stage if instance.task else column, name
            if len(points):
                drawn = points["step"].tolist(), points[column].tolist()
                found.setdefault(chart, {}).setdefault(panel, {})[line] = drawn
    return {title: line_chart(title, of_title, "steps") for title, of_title in found.items()}


def _curve(path: Path) -> pd.DataFrame:
    """Reads a loss curve; numbers that are not finite become NaN."""
    found = pd.read_csv(path, encoding="utf-8")
    if "step" not in found:
        raise ValueError("no column step")
    return found.apply(pd.to_numeric, errors="coerce").replace([math.inf, -math.inf], math.nan)
