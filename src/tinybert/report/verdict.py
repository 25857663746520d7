"""Which student: the few lines that a reader wants first."""

from statistics import mean

from tinybert.glue.tasks import TASKS
from tinybert.report.results import Results, onnx_models
from tinybert.report.table import fixed, percent, score
from tinybert.report.tables import evaluations, split_name

INT8_TOLERANCE = 0.01  # one point: what an INT8 model may lose against its own FP32 form
ROUNDING = 1e-9  # a loss of exactly one point is within it


def verdict(results: Results) -> list[str]:
    """One sentence for each track, on measured numbers alone."""
    return [domain_verdict(results), task_verdict(results), compression_verdict(results)]


def domain_verdict(results: Results) -> str:
    """The domain student of the lowest perplexity on domain text, and the one that answers most questions."""
    students = results.params.domain.students
    perplexity = {name: results.value("evaluate_domain", name, "student", "domain", "perplexity") for name in students}
    answered = {name: results.value("evaluate_domain", name, "student", "quiz", "all", "top1") for name in students}
    lowest, most = min(students, key=perplexity.get), max(students, key=answered.get)
    best = [name for name in students if answered[name] == answered[most]]
    who = f"{most} answers most questions" if len(best) == 1 else f"{' and '.join(best)} answer equally many questions"
    return (
        f"Domain: {lowest} has the lowest perplexity on domain text ({_others(perplexity, lowest, 2)}); "
        f"{who} ({_others(answered, most, 3)})."
    )


def _others(values: dict[str, float], best: str, digits: int) -> str:
    others = [f"{name} {fixed(value, digits)}" for name, value in values.items() if name != best]
    return "; ".join([fixed(values[best], digits), *others])


def task_verdict(results: Results) -> str:
    """The task student that keeps most of the teacher's lead over the majority guess, and who collapsed."""
    kept: dict[str, list[float]] = {}
    collapsed = []
    for task, student, split, found in evaluations(results):
        share = found["retention"]["above_majority"]
        if share is not None:
            kept.setdefault(student, []).append(share)
        if found["collapsed"]:
            collapsed.append(f"{student} on {split_name(task, split)}")
    ending = f" Collapsed: {', '.join(collapsed)}." if collapsed else ""
    if not kept:
        return f"Tasks: no teacher is better than the majority guess, so nothing can be kept.{ending}"
    best = max(kept, key=lambda student: mean(kept[student]))
    return (
        f"Tasks: {best} keeps {percent(mean(kept[best]))} of the teacher's lead over the majority guess "
        f"(mean of {len(kept[best])}).{ending}"
    )


def compression_verdict(results: Results) -> str:
    """For each task the smallest INT8 file that loses at most a point against its own FP32 form.

    Students that collapsed to one class have no score to lose and are left out.
    """
    smallest = "; ".join(_smallest_int8(results, task) for task in results.params.glue.tasks)
    return f"INT8, the smallest file within 1 point of its own FP32: {smallest}."


def _smallest_int8(results: Results, task: str) -> str:
    metric = TASKS[task].headline
    dead = {name for owner, name, _, found in evaluations(results) if owner == task and found["collapsed"]}
    forms = [
        (model, form, found)
        for owner, model, form, found in onnx_models(results)
        if owner == task and model.split("_pruned")[0] not in dead
    ]
    fp32 = {model: found["dev"][metric] for model, form, found in forms if form == "fp32"}
    sound = [
        (found["size_mb"]["raw"], model, form, found["dev"][metric])
        for model, form, found in forms
        if form != "fp32" and found["dev"][metric] >= fp32[model] - INT8_TOLERANCE - ROUNDING
    ]
    if not sound:
        return f"{task} none"
    size_mb, model, form, measured = min(sound)
    return f"{task} {model} {form}, {fixed(size_mb, 2)} MB, {score(measured)} (FP32 {score(fp32[model])})"
