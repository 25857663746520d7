"""The few numbers by which runs are told apart: what `dvc exp show` and `dvc metrics diff` list."""

from pathlib import Path

from tinybert.compress.serving import INT8_VARIANTS
from tinybert.data.tasks import TASKS
from tinybert.report.results import Results, onnx_models, pruned_models
from tinybert.report.tables import evaluations

HEADLINE = Path("reports/headline.json")
DIGITS = 4


Numbers = dict[str, float | None]


def headline(results: Results) -> dict[str, dict[str, Numbers]]:
    """Track or task -> student -> its numbers, four digits.

    Of the domain: perplexity on domain text, quiz top-1, agreement with the teacher. Of a task (first dev split): the
    score, the share of the teacher's lead over the majority guess, the worst INT8 form's score, each pruned one's.
    """
    tree = {"domain": _domain(results), **_tasks(results)}
    return {
        group: {student: {key: _rounded(value) for key, value in numbers.items()} for student, numbers in found.items()}
        for group, found in tree.items()
    }


def _domain(results: Results) -> dict[str, Numbers]:
    students = {}
    for name in results.params.domain.students:
        found = results.value("evaluate_domain", name, "student")
        students[name] = {
            "perplexity": found["domain"]["perplexity"],
            "quiz": found["quiz"]["all"]["top1"],
            "agreement": results.value("evaluate_domain", name, "agreement", "domain", "top1"),
        }
    return students


def _tasks(results: Results) -> dict[str, dict[str, Numbers]]:
    tasks: dict[str, dict[str, Numbers]] = {}
    for task, student, split, found in evaluations(results):
        if split == TASKS[task].dev_splits[0]:
            score = found["student"][TASKS[task].headline]
            tasks.setdefault(task, {})[student] = {"score": score, "kept": found["retention"]["above_majority"]}
    for task, model, form, found in onnx_models(results):
        if form in INT8_VARIANTS and model in tasks[task]:
            score = found["dev"][TASKS[task].headline]
            tasks[task][model]["int8_worst"] = min(score, tasks[task][model].get("int8_worst", score))
    for task, student, target, found in pruned_models(results):
        tasks[task][student][f"pruned{target}"] = found["dev"][TASKS[task].headline]
    return tasks


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)
