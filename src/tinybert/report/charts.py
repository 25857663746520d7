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
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from tinybert.config.students import LOSSES, MAPPED_LOSSES, StageLosses, Student, mapped_layers
from tinybert.data.tasks import TASKS
from tinybert.pipeline.paths import VARIANTS
from tinybert.report.results import NO_SEED, Results, stage_instances
from tinybert.report.scores import groups, onnx_systems, pruned_students
from tinybert.report.tables import task_name

PANEL_INCHES = (3.5, 2.3)
COLUMNS = 3
POINTS_A_LINE = 200
LOG_FROM_RATIO = 10.0  # values that spread wider than this stand on a logarithmic axis
INK = "#010203"  # becomes currentColor, so that text is readable on light and dark pages
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


@dataclass(frozen=True)
class Chart:
    """A chart with its caption."""

    title: str
    svg: Markup


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
    """Makes an axis logarithmic, with plain numbers: matplotlib's own would be formulas."""
    axis.set(**{f"{which}scale": "log"})
    ticks = getattr(axis, f"{which}axis")
    ticks.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ticks.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ticks.set_minor_formatter(NullFormatter())


def plain(text: object) -> str:
    """A name as it is shown in a chart: one line, no control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())[:40]


def pareto_chart(results: Results) -> Chart:
    """Score against latency and size of each task's systems, the Pareto front marked."""
    systems = onnx_systems(results)
    models = list(systems["model"].unique())
    costs = {"row_ms": ("ms a row", "best_speed"), "size_mb": ("MB", "best_size")}
    shown = [(t, of, cost) for (t,), of in groups(systems, ["task"]) for cost in costs if of[cost].notna().any()]
    with matplotlib.rc_context(STYLE):
        figure, axes = panels(len(shown), columns=4)
        for (task, of_task, cost), axis in zip(shown, axes, strict=False):
            label, is_best = costs[cost]
            best = of_task[of_task[is_best]].sort_values(cost)
            axis.plot(best[cost], best["score"], linestyle="--", color="#888888", zorder=1)
            for (model, variant), at in groups(of_task, ["model", "variant"]):
                colour = f"C{models.index(model)}"
                axis.scatter(at[cost], at["score"], marker=MARKERS[variant], color=colour, s=22, zorder=2)
            axis.set(title=f"{task_name(results, task)}: {TASKS[task].headline}", xlabel=label)
            logarithmic(axis, "x")
        _pareto_legend(figure, models)
        svg = svg_of(figure, "score against latency and size")
    return Chart("Score against latency and size; the dashed line is the Pareto front", svg)


def _pareto_legend(figure: Figure, models: Sequence[str]) -> None:
    """Colors stand for models, markers for variants."""
    entries = [Line2D([], [], marker="o", linestyle="", color=f"C{n}", label=plain(m)) for n, m in enumerate(models)]
    entries += [Line2D([], [], marker=m, linestyle="", color="#888888", label=name) for name, m in MARKERS.items()]
    figure.legend(handles=entries, loc="outside lower center", ncols=min(len(entries), 8))


def line_panel(axis: Axes, title: str, lines: Mapping[str, tuple[Sequence[float], Sequence[float]]], x: str) -> None:
    """Draws named lines (x values, y values); the y axis is logarithmic where values spread more than tenfold."""
    every = [y for _, values in lines.values() for y in values]
    for name, (xs, ys) in lines.items():
        axis.plot(xs, ys, marker="o" if len(xs) == 1 else "", label=plain(name))
    if min(every) > 0 and max(every) / min(every) > LOG_FROM_RATIO:
        logarithmic(axis, "y")
    axis.set(title=plain(title), xlabel=x)
    if len(lines) > 1:
        axis.legend()


def curve_charts(results: Results) -> list[Chart]:
    """Loss curves: a chart for each training stage of text, one for each task with a panel for each stage."""
    charts = []
    for title, stages in _curve_groups(results):
        found = {}
        for stage, curves in stages.items():
            terms = dict.fromkeys(c for curve in curves.values() for c in map(str, curve) if _is_loss(c))
            for term in terms if len(stages) == 1 else [t for t in terms if t == "total"]:
                lines = {name: _points(curve, term) for name, curve in curves.items() if term in curve}
                if lines := {name: line for name, line in lines.items() if len(line[0])}:
                    found[term if len(stages) == 1 else stage] = lines
        if found:
            charts.append(_line_chart(title, found, "steps"))
    return charts


def map_weight_charts(results: Results) -> list[Chart]:
    """The weights of learnable layer maps over steps: a panel for each student layer, a line for each teacher layer."""
    charts = []
    for title, stages in _curve_groups(results):
        layers: dict[str, dict] = {}
        for curves in stages.values():
            for name, curve in curves.items():
                for column in (c for c in map(str, curve) if c.startswith(MAP_PREFIX)):
                    student, _, teacher = column.removeprefix(MAP_PREFIX).partition("_")
                    lines = layers.setdefault(f"{name}, layer {student}", {})
                    lines[f"teacher layer {teacher}"] = _points(curve, column)
        if layers:
            charts.append(_line_chart(f"{title}: weights of the learnable layer map", layers, "steps"))
    return charts


def pruning_chart(results: Results) -> Chart:
    """Score over sparsity of each task's students, from the unpruned student on."""
    found: dict[str, dict] = {}
    for (task, student), of in groups(pruned_students(results), ["task", "student"]):
        line = [0.0, *(100 * of["sparsity"])], [of["unpruned"].iloc[0], *of["score"]]
        found.setdefault(f"{task_name(results, task)}: {TASKS[task].headline}", {})[student] = line
    return _line_chart("Score over sparsity", found, "% of weights that are zero")


def timing_chart(results: Results) -> Chart | None:
    """Seconds of each stage, its instances together; None where none ran here."""
    found = results.frame[(results.frame["variant"] == "timing") & (results.frame["metric"] == "seconds")]
    if found.empty:
        return None
    seconds = found.groupby("stage", sort=False)["value"].sum()[::-1]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7, 0.22 * len(seconds) + 0.5), layout="constrained")
        axis = figure.subplots()
        axis.bar_label(axis.barh(seconds.index, seconds), fmt="%.1f", padding=3)
    return Chart("Seconds by stage", svg_of(figure, "seconds by stage"))


def _line_chart(title: str, found: Mapping[str, Mapping[str, Any]], x: str) -> Chart:
    with matplotlib.rc_context(STYLE):
        figure, axes = panels(len(found))
        for (name, lines), axis in zip(found.items(), axes, strict=False):
            line_panel(axis, name, lines, x)
    return Chart(title, svg_of(figure, title))


def _curve_groups(results: Results) -> Iterator[tuple[str, dict[str, dict[str, pd.DataFrame]]]]:
    """(title, stage -> instance -> curve) of each training stage of text and of each task."""
    trained = ("prepare_teacher", "general_distill", "domain_distill", "finetune_teacher", "task_distill_intermediate",
               "task_distill_prediction", "prune")  # fmt: skip
    groups: dict[str, dict] = {}
    for instance in stage_instances(results.params):
        if instance.stage in trained:
            title = task_name(results, instance.task) if instance.task else instance.stage
            name = f"{instance.model or 'teacher'} {instance.seed if instance.seed != NO_SEED else ''}".strip()
            curves = groups.setdefault(title, {}).setdefault(instance.stage, {})
            curves[name] = results.curve(instance.stage, instance.name)
    yield from groups.items()


def _is_loss(column: str) -> bool:
    return column not in NOT_LOSSES and not column.startswith((MAP_PREFIX, "Unnamed"))


def _points(curve: pd.DataFrame, column: str) -> tuple[list[float], list[float]]:
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
        stage, task, name, seed = instance.stage, instance.task, instance.model, instance.seed
        if stage not in STAGE_SECTIONS or seed not in (-1, results.params.seed):
            continue
        student = results.params.students[name]
        losses = getattr(student, STAGE_SECTIONS[stage])
        trained = results.value(stage, "steps", task=task, model=name, seed=seed)
        if losses is None or not trained or not losses.active_losses.keys() & set(MAPPED_LOSSES):
            continue
        where = {"task": task} if task else {}
        teacher_layers = int(results.value("finetune_teacher" if task else "prepare_teacher", "layers", **where))
        edges = tuple(_edges(student, losses, teacher_layers, tree.get("layer_map", {})))
        key = (name, _kind(losses.layer_map or student.layer_map), student.architecture.layers, teacher_layers, edges)
        found.setdefault(key, {}).setdefault(STAGE_SECTIONS[stage], []).extend([task] if task else [])
    maps = []
    for key, sections in found.items():
        stages = "; ".join(f"{name}: {', '.join(tasks)}" if tasks else name for name, tasks in sections.items())
        maps.append(LayerMap(key[0], stages, *key[1:]))
    return maps


def _kind(chosen: object) -> str:
    if isinstance(chosen, tuple):
        return "listed"
    return chosen if isinstance(chosen, str) else "learnable"


def _edges(student: Student, losses: StageLosses, teacher_layers: int, learnt: Mapping[str, float]) -> Iterator[Edge]:
    """learnt: The last weights of a learnable map, by column of the curve."""
    depth, chosen = student.architecture.layers, losses.layer_map or student.layer_map
    groups = mapped_layers(chosen if isinstance(chosen, tuple) else _kind(chosen), depth, teacher_layers)
    for layer in sorted({layer for loss in losses.active_losses for layer in LOSSES[loss].student_layers(depth)}):
        group = groups[layer - 1] if layer else [0]
        for teacher_layer in group:
            weight = learnt.get(f"{MAP_PREFIX}{layer}_{teacher_layer}", 1 / len(group))
            yield layer, teacher_layer, float(weight)


def layer_map_chart(maps: Sequence[LayerMap]) -> Chart:
    """Teacher layers on the left, student layers on the right; the thicker a line, the larger its weight."""
    with matplotlib.rc_context(STYLE | {"axes.grid": False}):
        figure, axes = panels(len(maps))
        for found, axis in zip(maps, axes, strict=False):
            step = found.teacher_layers / found.student_layers  # the student's layers span the teacher's height
            for student, teacher, weight in found.edges:
                style = ":" if found.kind == "random" and weight < 1 else "-"
                axis.plot([0, 1], [teacher, student * step], style, color="C0", linewidth=0.6 + 3.4 * weight)
            for x, count, height in ((0, found.teacher_layers, 1.0), (1, found.student_layers, step)):
                for layer in range(count + 1):
                    text: Any = {"ha": "right" if x == 0 else "left", "va": "center"}
                    axis.text(x + (0.04 if x else -0.04), layer * height, str(layer) if layer else "embedding", **text)
            axis.set(
                xlim=(-0.6, 1.6),
                ylim=(-0.6, found.teacher_layers + 0.6),
                title=f"{plain(found.student)}: {found.kind}\n{plain(found.stages)}",
            )
            axis.set_axis_off()
    return Chart("Layer maps: teacher layers (left) that student layers (right) imitate", svg_of(figure, "layer maps"))
