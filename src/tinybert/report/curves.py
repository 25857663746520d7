"""The loss curves of the training stages, and the weights of learnable layer maps over their steps."""

from collections.abc import Iterator
from dataclasses import dataclass

from tinybert.report.charts import COLOURS, MAP_PREFIX, NOT_TERMS, Chart, curve_points, is_term, line_chart, loss_charts
from tinybert.report.results import Curve, Results
from tinybert.report.table import ABSENT, Table, evenly

CURVE_TABLE_ROWS = 12


@dataclass(frozen=True)
class CurveGroup:
    """Charts that belong together, and their numbers. open: shown unfolded."""

    title: str
    charts: list[Chart]
    table: Table
    open: bool


def curve_groups(results: Results) -> list[CurveGroup]:
    """The losses of the training stages, those of the task track one group a task."""
    groups = []
    for title, curves, shown in _stages(results):
        if charts := loss_charts(curves):
            columns = [column for column in _columns(curves) if column in NOT_TERMS or is_term(column)]
            groups.append(CurveGroup(title, charts, _curve_table(curves, columns), shown))
    return groups


def map_weight_groups(results: Results) -> list[CurveGroup]:
    """The weights of learnable layer maps: a chart for each student layer, a line for each teacher layer."""
    groups = []
    for title, curves, _ in _stages(results):
        charts = [chart for name, curve in curves.items() for chart in _weight_charts(name, curve)]
        if charts:
            weights = [column for column in _columns(curves) if column.startswith(MAP_PREFIX)]
            learnt = {name: curve for name, curve in curves.items() if curve.keys() & set(weights)}
            groups.append(CurveGroup(title, charts, _curve_table(learnt, ["step", *weights]), True))
    return groups


def _stages(results: Results) -> Iterator[tuple[str, dict[str, Curve], bool]]:
    """(title, instance -> its curve, whether to show it unfolded) of each training stage, or its part of a task."""
    params = results.params
    stages = [
        ("Teacher", "prepare_teacher", [""], True),
        ("General distillation", "general_distill", params.general.students, True),
        ("Domain distillation", "domain_distill", params.domain.students, True),
    ]
    for task in params.tasks.run:
        students = [f"{task}-{student}" for student in params.tasks.students]
        pruned = [f"{student}-{percent}" for student in students for percent in params.pruning.sparsities_percent]
        stages += [
            (f"{task}: teacher", "finetune_teacher", [task], False),
            (f"{task}: intermediate phase", "task_distill_intermediate", students, False),
            (f"{task}: prediction phase", "task_distill_prediction", students, False),
            (f"{task}: pruning", "prune", pruned, False),
        ]
    for title, stage, instances, shown in stages:
        yield title, {instance or "teacher": results.curve(stage, instance) for instance in instances}, shown


def _weight_charts(name: str, curve: Curve) -> list[Chart]:
    blocks: dict[str, dict[str, str]] = {}
    for column in curve:
        if column.startswith(MAP_PREFIX):
            student_layer, _, teacher_layer = column.removeprefix(MAP_PREFIX).partition("_")
            blocks.setdefault(student_layer, {})[f"teacher layer {teacher_layer}"] = column
    charts = []
    for student_layer, columns in blocks.items():
        lines = {
            layer: (number % COLOURS, curve_points(curve, column))
            for number, (layer, column) in enumerate(columns.items())
        }
        charts.append(line_chart(f"{name}, layer {student_layer}", lines, unit="steps", span=(0.0, 1.0)))
    return charts


def _columns(curves: dict[str, Curve]) -> list[str]:
    return list(dict.fromkeys(column for curve in curves.values() for column in curve))


def _curve_table(curves: dict[str, Curve], columns: list[str]) -> Table:
    """The numbers under the charts: a few points of each curve, the first and the last among them."""
    rows = []
    for name, curve in curves.items():
        for index in evenly(len(curve.get("step", [])), CURVE_TABLE_ROWS):
            cells = (curve[column][index] if column in curve else None for column in columns)
            rows.append((name, *(ABSENT if cell is None else f"{cell:.6g}" for cell in cells)))
    return Table("Numbers", ("instance", *columns), rows)
