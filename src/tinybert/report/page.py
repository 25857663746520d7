"""The page: one self-contained HTML file with everything the project measured."""

import json
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tinybert.glue.tasks import TASKS
from tinybert.report import background, tables
from tinybert.report.charts import Chart, loss_charts
from tinybert.report.compression import compression_table, latency_table, pruning_charts, pruning_table
from tinybert.report.fronts import front_charts
from tinybert.report.results import Curve, Results
from tinybert.report.table import Table, fixed
from tinybert.report.verdict import verdict

TEMPLATE = "page.html.j2"
ANSWERS_A_STUDENT = 12
VARIATIONS_A_TASK = 4
CURVE_TABLE_ROWS = 12
PACKAGES = ("torch", "transformers", "tokenizers", "datasets", "onnxruntime", "numpy", "scikit-learn", "mlflow", "dvc")


@dataclass(frozen=True)
class CurveGroup:
    """The loss curves of one stage (and task), and their numbers. open: shown unfolded."""

    title: str
    charts: list[Chart]
    table: Table
    open: bool


def render_page(results: Results) -> str:
    """The whole page as HTML; all data is escaped, nothing is loaded from elsewhere."""
    folder = Path(__file__).parent
    environment = Environment(loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    return environment.get_template(TEMPLATE).render(
        verdict=verdict(results),
        domain=[tables.domain_table(results), tables.quiz_table(results), tables.heldout_table(results)],
        answers=answers_table(results),
        tasks=[
            tables.task_table(results),
            *tables.seeds_tables(results),
            tables.task_metrics_table(results),
            tables.published_table(results),
        ],
        compression=[
            compression_table(results, with_latency=True, with_intervals=True),
            latency_table(results),
            pruning_table(results),
        ],
        fronts=front_charts(results),
        pruning=pruning_charts(results),
        curves=curve_groups(results),
        data=[
            background.corpus_table(results),
            background.filter_table(results),
            background.teacher_table(results),
            background.task_data_table(results),
        ],
        variations=variations_table(results),
        stages=[background.training_table(results), background.timing_table(results)],
        params=json.dumps(results.params.model_dump(mode="json"), indent=2, ensure_ascii=False),
        versions=versions_table(),
    )


def answers_table(results: Results) -> Table:
    """Some quiz questions evenly taken, answered by the teacher and each domain student."""
    students = results.params.domain.students
    answers = {student: results.answers(student) for student in students}
    asked = min((len(found) for found in answers.values()), default=0)
    rows = []
    for index in _evenly(asked, ANSWERS_A_STUDENT):
        question = answers[students[0]][index]
        cells = (question["teacher"], *(answers[student][index]["student"] for student in students))
        rows.append((question["prompt"], question["answer"], *map(_top_answers, cells)))
    columns = ("question", "answer", "teacher", *students)
    return Table("Some answers", columns, rows, names=len(columns), note="The two likeliest pieces, with probability.")


def _top_answers(best: list[dict]) -> str:
    return ", ".join(f"{piece['token']} {fixed(piece['probability'], 2)}" for piece in best[:2])


def variations_table(results: Results) -> Table:
    """For each task an original training row and what augmentation made of it."""
    rows = []
    for task in results.params.glue.tasks:
        for position, row in enumerate(results.variations(task, VARIATIONS_A_TASK)):
            text = " ⁄ ".join(row[column] for column in TASKS[task].columns)
            rows.append((task, "original" if position == 0 else "variation", text))
    return Table("Augmented rows", ("task", "", "text"), rows, names=3)


def curve_groups(results: Results) -> list[CurveGroup]:
    """The training stages, those of the task track one group a task."""
    params = results.params
    stages = [
        ("Teacher", "prepare_teacher", [""], True),
        ("General distillation", "general_distill", params.general.students, True),
        ("Domain distillation", "domain_distill", params.domain.students, True),
    ]
    for task in params.glue.tasks:
        students = [f"{task}-{student}" for student in params.glue.students]
        pruned = [f"{student}-{percent}" for student in students for percent in params.pruning.sparsities_percent]
        stages += [
            (f"{task}: teacher", "finetune_teacher", [task], False),
            (f"{task}: intermediate phase", "task_distill_intermediate", students, False),
            (f"{task}: prediction phase", "task_distill_prediction", students, False),
            (f"{task}: pruning", "prune", pruned, False),
        ]
    groups = []
    for title, stage, instances, shown in stages:
        curves = {instance or "teacher": results.curve(stage, instance) for instance in instances}
        if charts := loss_charts(curves):
            groups.append(CurveGroup(title, charts, _curve_table(curves), shown))
    return groups


def _curve_table(curves: dict[str, Curve]) -> Table:
    """The numbers under the charts: a few points of each curve, the first and the last among them."""
    columns = list(dict.fromkeys(column for curve in curves.values() for column in curve))
    rows = []
    for name, curve in curves.items():
        for index in _evenly(len(curve.get("step", [])), CURVE_TABLE_ROWS):
            cells = (curve[column][index] if column in curve else None for column in columns)
            rows.append((name, *("–" if cell is None else f"{cell:.6g}" for cell in cells)))
    return Table("Numbers", ("instance", *columns), rows)


def versions_table() -> Table:
    """What the page was made with."""
    rows = [("Python", platform.python_version()), ("machine", f"{platform.system()} {platform.machine()}")]
    for package in PACKAGES:
        try:
            rows.append((package, version(package)))
        except PackageNotFoundError:
            rows.append((package, "not installed"))
    return Table("Versions", ("", "version"), rows, names=2)


def _evenly(length: int, limit: int) -> list[int]:
    """At most `limit` indices spread over `length`, the first and the last among them."""
    if length <= limit:
        return list(range(length))
    return [round(i * (length - 1) / (limit - 1)) for i in range(limit)]
