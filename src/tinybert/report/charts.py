"""The charts of the results page: matplotlib SVG, byte-identical for the same numbers."""

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib
import pandas as pd
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from tinybert.config.students import LOSSES, MAPPED_LOSSES, StageLosses, Student, mapped_layers
from tinybert.data.tasks import TASKS
from tinybert.pipeline.paths import VARIANTS
from tinybert.report.results import NO_SEED, Results
from tinybert.report.scores import groups, onnx_systems, pruned_students
from tinybert.report.tables import task_name

PANEL_INCHES = (3.5, 2.3)
COLUMNS = 3
POINTS_A_LINE = 200
LOG_FROM_RATIO = 10.0  # values that spread wider than this stand on a logarithmic axis
INK = "#010203"  # becomes currentColor, so that text is readable on light and dark pages
GREY = "#888888"
STYLE: Any = {
    "svg.fonttype": "none", "text.parse_math": False, "font.size": 8, "axes.titlesize": 8, "legend.fontsize": 7,
    "legend.frameon": False, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.alpha": 0.25, "lines.linewidth": 1.2, "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK,
    "xtick.color": INK, "ytick.color": INK,
}  # fmt: skip
MARKERS = dict(zip(VARIANTS, "o^sD", strict=True))
NOT_LOSSES = ("step", "epoch", "learning_rate")
MAP_PREFIX = "map_"  # columns map_<student layer>_<teacher layer>: weights of a learnable layer map
# stage -> the section of a student's config that holds its losses
STAGE_SECTIONS = {"general_distill": "general", "domain_distill": "domain", "task_distill_intermediate": "intermediate",
                  "task_distill_prediction": "prediction"}  # fmt: skip
Edge = tuple[int, int, float]  # student layer, teacher layer, weight; layer 0 is the embedding
Points = tuple[Sequence[float], Sequence[float]]


def svg_of(figure: Figure, label: str) -> Markup:
    """The figure as an SVG element for an HTML page, without date, URLs and scripts."""
    text = io.StringIO()
    # Ids follow from the salt: the same in each run, others in each figure of the page.
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": label}):
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    svg = text.getvalue()[text.getvalue().index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.S)
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"| width="[^"]*pt"| height="[^"]*pt"', "", svg, count=4)
    return Markup(svg.replace(INK, "currentColor").replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1))


def panels(count: int, *, columns: int = COLUMNS) -> tuple[Figure, Iterator[Axes]]:
    """A figure of `count` small panels in rows."""
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    size = (PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for unused in grid[count:]:
        unused.set_axis_off()
    return figure, iter(grid)


def logarithmic(axis: Axes, which: Literal["x", "y"]) -> None:
    """Makes an axis logarithmic, with so few plain numbers that they do not overlap, however close the values are."""
    axis.set(**{f"{which}scale": "log"})
    low, high = getattr(axis, f"get_{which}lim")()
    ticks = getattr(axis, f"{which}axis")
    if high / low < 5:  # matplotlib would name every tenth of a narrow range
        ticks.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    else:
        ticks.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 200 else (1,), numticks=8))
    ticks.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ticks.set_minor_locator(NullLocator())


def plain(text: object) -> str:
    """A name as it is shown in a chart: one line, no control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())[:40]


def pareto_chart(results: Results) -> Markup:
    """Score against latency and size of each task's systems, the Pareto front marked."""
    systems = onnx_systems(results)
    models = list(systems["model"].unique())
    costs = {"row_ms": ("ms a row", "best_speed"), "size_mb": ("MB", "best_size")}
    by_task = groups(systems, "task")
    shown = [(str(task), of, cost) for task, of in by_task for cost in costs if of[cost].notna().any()]
    with matplotlib.rc_context(STYLE):
        figure, axes = panels(len(shown), columns=4)
        for (task, of_task, cost), axis in zip(shown, axes, strict=False):
            label, is_best = costs[cost]
            best = of_task[of_task[is_best]].sort_values(cost)
            axis.plot(best[cost], best["score"], linestyle="--", color=GREY, zorder=1)
            for at in of_task.to_dict("records"):
                colour = f"C{models.index(at['model'])}"
                axis.scatter(at[cost], at["score"], marker=MARKERS[at["variant"]], color=colour, s=22, zorder=2)
            axis.set(title=f"{task_name(results, task)}: {TASKS[task].headline}", xlabel=label)
            logarithmic(axis, "x")
        # Colors stand for models, markers for variants.
        keys = [(plain(model), "o", f"C{number}") for number, model in enumerate(models)]
        keys += [(variant, marker, GREY) for variant, marker in MARKERS.items()]
        entries = [Line2D([], [], marker=m, linestyle="", color=colour, label=name) for name, m, colour in keys]
        figure.legend(handles=entries, loc="outside lower center", ncols=min(len(entries), 8))
        return svg_of(figure, "score against latency and size")


def line_panel(axis: Axes, title: str, lines: Mapping[str, Points], x: str) -> None:
    """Draws named lines; the y axis is logarithmic where values spread more than tenfold."""
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
        for (name, lines), axis in zip(found.items(), axes, strict=False):
            line_panel(axis, name, lines, x)
    return svg_of(figure, title)


def pruning_chart(results: Results) -> Markup:
    """Score over sparsity of each task's students, from the unpruned student on."""
    found: dict[str, dict[str, Points]] = {}
    for (task, student), of in groups(pruned_students(results), ["task", "student"]):
        line = [0.0, *(100 * of["sparsity"])], [of["unpruned"].iloc[0], *of["score"]]
        found.setdefault(f"{task_name(results, task)}: {TASKS[task].headline}", {})[student] = line
    return line_chart("score over sparsity", found, "% of weights that are zero")


def curve_charts(results: Results) -> dict[str, Markup]:
    """Loss curves by title.

    A chart for each training stage of text with a panel for each loss, one for each task with the total loss in a panel
    for each stage; after these the weights of learnable layer maps, a panel for each student layer.
    """
    losses: dict[str, dict] = {}
    weights: dict[str, dict] = {}
    for instance in results.trees:
        curve = results.curve(instance)
        title = task_name(results, instance.task) if instance.task else instance.stage
        name = f"{instance.model or 'teacher'} {instance.seed if instance.seed != NO_SEED else ''}".strip()
        for column in (c for c in map(str, curve) if c not in NOT_LOSSES and not c.startswith("Unnamed")):
            steps, values = _points(curve, column)
            if not steps:
                continue
            if column.startswith(MAP_PREFIX):
                student, _, teacher = column.removeprefix(MAP_PREFIX).partition("_")
                layers = weights.setdefault(f"{title}: weights of the learnable layer map", {})
                layers.setdefault(f"{name}, layer {student}", {})[f"teacher layer {teacher}"] = steps, values
            elif not instance.task:
                losses.setdefault(title, {}).setdefault(column, {})[name] = steps, values
            elif column == "total":
                losses.setdefault(title, {}).setdefault(instance.stage, {})[name] = steps, values
    return {title: line_chart(title, found, "steps") for title, found in (losses | weights).items()}


def _points(curve: pd.DataFrame, column: str) -> Points:
    """Steps and values, at most about POINTS_A_LINE, the last among them."""
    points = curve[["step", column]].dropna()
    stride = math.ceil(len(points) / POINTS_A_LINE) or 1
    points = points[::-stride][::-1]
    return points["step"].tolist(), points[column].tolist()


@dataclass(frozen=True)
class LayerMap:
    """What a student imitates layer by layer. stages: those that read this very map, "intermediate: cola, mrpc"."""

    student: str
    stages: str
    kind: str
    student_layers: int
    teacher_layers: int
    edges: tuple[Edge, ...]


def layer_maps(results: Results) -> list[LayerMap]:
    """The layer maps of all students in use; a stage that trained nothing or reads no mapped layer has none."""
    found: dict[tuple, dict[str, list[str]]] = {}
    for instance, tree in results.trees.items():
        stage, _, task, name, seed = instance
        if stage not in STAGE_SECTIONS or seed not in (NO_SEED, results.params.seed):
            continue
        student, section = results.params.students[name], STAGE_SECTIONS[stage]
        losses = getattr(student, section)
        if not losses or not tree["steps"] or not losses.active_losses.keys() & set(MAPPED_LOSSES):
            continue
        teacher = {"stage": "finetune_teacher", "task": task} if task else {"stage": "prepare_teacher"}
        depths = student.architecture.layers, int(results.value(metric="layers", **teacher))
        kind, edges = _edges(student, losses, depths[1], tree.get("layer_map", {}))
        found.setdefault((name, kind, *depths, edges), {}).setdefault(section, []).extend([task] if task else [])
    return [
        LayerMap(name, "; ".join(f"{section}: {', '.join(of)}" if of else section for section, of in sections.items()),
                 *key)
        for (name, *key), sections in found.items()
    ]  # fmt: skip


def _edges(
    student: Student, losses: StageLosses, teacher_layers: int, learnt: Mapping[str, float]
) -> tuple[str, tuple[Edge, ...]]:
    """The map's kind and its edges; `learnt`: the last weights of a learnable map, by column of the curve."""
    depth, chosen = student.architecture.layers, losses.layer_map or student.layer_map
    kind = "listed" if isinstance(chosen, tuple) else chosen if isinstance(chosen, str) else "learnable"
    groups = mapped_layers(chosen if isinstance(chosen, tuple) else kind, depth, teacher_layers)
    edges = []
    for layer in sorted({layer for loss in losses.active_losses for layer in LOSSES[loss].student_layers(depth)}):
        group = groups[layer - 1] if layer else [0]
        for teacher_layer in group:
            weight = learnt.get(f"{MAP_PREFIX}{layer}_{teacher_layer}", 1 / len(group))
            edges.append((layer, teacher_layer, float(weight)))
    return kind, tuple(edges)


def layer_map_chart(maps: Sequence[LayerMap]) -> Markup:
    """Teacher layers on the left, student layers on the right; the thicker a line, the larger its weight."""
    with matplotlib.rc_context(STYLE | {"axes.grid": False}):
        figure, axes = panels(len(maps))
        for found, axis in zip(maps, axes, strict=False):
            step = found.teacher_layers / found.student_layers  # the student's layers span the teacher's height
            for student, teacher, weight in found.edges:
                style = ":" if found.kind == "random" and weight < 1 else "-"
                axis.plot([0, 1], [teacher, student * step], style, color="C0", linewidth=0.6 + 3.4 * weight)
            sides = (-0.04, "right", found.teacher_layers, 1.0), (1.04, "left", found.student_layers, step)
            for x, align, count, height in sides:
                for layer in range(count + 1):
                    axis.text(x, layer * height, str(layer) if layer else "embedding", ha=align, va="center")
            axis.set(xlim=(-0.6, 1.6), ylim=(-0.6, found.teacher_layers + 0.6))
            axis.set_title(f"{plain(found.student)}: {found.kind}\n{plain(found.stages)}")
            axis.set_axis_off()
    return svg_of(figure, "layer maps")
