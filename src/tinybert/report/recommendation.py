"""Which student: what a reader wants first, as a table of the best for each need and as a sentence for each track."""

from statistics import mean

from tinybert.data.tasks import TASKS
from tinybert.evaluate.scoring import retention
from tinybert.report.fronts import System, row_ms, systems_by_cost
from tinybert.report.results import Results, majority_score, student_of
from tinybert.report.table import ABSENT, Table, fixed, percent, score, times
from tinybert.report.tables import evaluations, split_name

TOLERANCE = 0.01  # one point: what a smaller or faster student may score below the best one
NONE = "none beats a guess"
ROUNDING = 1e-9  # a loss of exactly one point is within it


def best_students_table(results: Results, *, with_latency: bool) -> Table:
    """For each task the student of the best score, the smallest and the fastest one that comes near it.

    with_latency: the fastest and milliseconds too, which differ in each run.
    """
    rows = []
    for task in results.params.tasks.run:
        chosen = best_students(results, task)
        if not with_latency:
            chosen.pop("fastest", None)
        rows += [_choice_row(results, task, need, system, with_latency) for need, system in chosen.items()]
        if not chosen:
            rows.append((task, ABSENT, NONE, *[ABSENT] * (8 if with_latency else 6)))
    time_columns = ("ms", "faster") if with_latency else ()
    columns = ("task", "take", "student", "form", "score", "kept", "lead", "MB", "smaller", *time_columns)
    fastest, faster = (" and fastest", ", faster") if with_latency else ("", "")
    note = (
        f"Smallest{fastest}: of those within 1 point of the best student's score. Kept: score / teacher's. Lead: "
        f"(score − majority) / (teacher − majority). Smaller{faster}: than the teacher in FP32. Chosen on the dev rows "
        "that they are scored on."
    )
    if with_latency:
        note += " ms: a dev row."
    if any(NONE in row for row in rows):
        note += f" {NONE.capitalize()}: what is in ONNX form collapsed, or scores no better than the majority class."
    return Table("Which student do I take?", columns, rows, names=4, note=note)


def best_students(results: Results, task: str) -> dict[str, System]:
    """The student systems to take for a task: of the "best" score, the "smallest" (MB), the "fastest" (ms a dev row).

    Collapsed students, and forms no better than the majority guess, are none of them; empty where no other is left.
    """
    collapsed = {student for owner, student, _, found in evaluations(results) if owner == task and found["collapsed"]}
    guess = majority_score(results, task)
    students = set(results.params.tasks.students) - collapsed
    sound = {
        cost: [
            system
            for system in systems
            if student_of(results.params, system.model) in students and system.score > guess
        ]
        for cost, systems in systems_by_cost(results, task).items()
    }
    if not sound.get("size"):
        return {}
    best = min(sound["size"], key=lambda system: (-system.score, system.cost))
    chosen = {"best": best}
    for need, cost in (("smallest", "size"), ("fastest", "speed")):
        near = [system for system in sound.get(cost, []) if system.score >= best.score - TOLERANCE - ROUNDING]
        if near:
            chosen[need] = min(near, key=lambda system: (system.cost, -system.score))
    return chosen


def _choice_row(results: Results, task: str, need: str, system: System, with_latency: bool) -> tuple[str, ...]:
    evaluation, metric = f"{task}-{student_of(results.params, system.model)}", TASKS[task].headline
    teacher, majority = (results.value("evaluate", evaluation, who, metric) for who in ("teacher", "majority"))
    kept = retention(system.score, teacher, majority)
    size_mb, teacher_mb = _size_mb(results, task, system.model, system.form), _size_mb(results, task, "teacher", "fp32")
    time_ms, teacher_ms = row_ms(results, task, system.model, system.form), row_ms(results, task, "teacher", "fp32")
    return (
        task, need, system.model, system.form, score(system.score),
        *(percent(kept[of], 0) for of in ("plain", "above_majority")),
        fixed(size_mb, 2), times(teacher_mb, size_mb),
        *((fixed(time_ms, 3), times(teacher_ms, time_ms)) if with_latency else ()),
    )  # fmt: skip


def _size_mb(results: Results, task: str, model: str, form: str) -> float | None:
    if model not in results.params.quantization.models:
        return None
    return results.value("quantize", f"{task}-{model}", form, "size_mb", "raw")


def verdict(results: Results) -> list[str]:
    """A sentence for each track, on measured numbers alone."""
    return [domain_verdict(results), task_verdict(results)]


def domain_verdict(results: Results) -> str:
    """The domain student of the lowest perplexity on domain text, and the one that answers most questions."""
    students = results.params.domain.students
    perplexity = {name: results.value("evaluate_domain", name, "student", "domain", "perplexity") for name in students}
    answered = {name: results.value("evaluate_domain", name, "student", "quiz", "all", "top1") for name in students}
    lowest, most = min(students, key=perplexity.__getitem__), max(students, key=answered.__getitem__)
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
    if mean(kept[best]) <= 0:
        return f"Tasks: no student is better than the majority guess.{ending}"
    return (
        f"Tasks: {best} keeps {percent(mean(kept[best]))} of the teacher's lead over the majority guess "
        f"(mean of {len(kept[best])}).{ending}"
    )
