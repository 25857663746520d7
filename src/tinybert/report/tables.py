"""The tables of results: the domain examination and the tasks."""

from collections.abc import Iterator
from statistics import mean, stdev

from tinybert.data.tasks import TASKS
from tinybert.report.results import Results
from tinybert.report.table import ABSENT, COLLAPSED, NO_BETTER, Table, count, fixed, percent, score


def domain_table(results: Results) -> Table:
    """Perplexity, quiz and agreement of the teacher, each student, and untrained students."""
    rows = []
    for name, student, role in examined_models(results):
        found = {key: results.value("evaluate_domain", student, role, key) for key in ("general", "domain", "quiz")}
        agreement = results.value("evaluate_domain", student, "agreement", "domain") if role == "student" else {}
        rows.append((
            name,
            count(_parameters(results, student, role)),
            *(fixed(found[corpus]["perplexity"], 2) for corpus in ("general", "domain")),
            *(score(found["quiz"]["all"][hit]) for hit in ("top1", "top5")),
            score(agreement.get("top1")),
            score(agreement.get("kl")),
        ))  # fmt: skip
    columns = ("model", "parameters", "ppl general", "ppl domain", "quiz top-1", "quiz top-5", "same top-1", "KL")
    note = (
        "Held-out text with masked tokens: perplexity (ppl), and on domain text the agreement with the teacher "
        "(same most likely piece; mean KL divergence in nats). Quiz: share of questions answered."
    )
    return Table("Domain examination", columns, rows, note=note)


def quiz_table(results: Results) -> Table:
    """The quiz by subject: questions, top-1 and top-5."""
    rows = []
    for name, student, role in examined_models(results):
        for subject, found in results.value("evaluate_domain", student, role, "quiz").items():
            rows.append((name, subject, count(found["questions"]), score(found["top1"]), score(found["top5"])))
    dropped = results.value("evaluate_domain", results.params.domain.students[0], "quiz_dropped")
    note = f"Left out: {dropped} questions whose answer is not one word piece."
    return Table("Quiz by subject", ("model", "subject", "questions", "top-1", "top-5"), rows, names=2, note=note)


def heldout_table(results: Results) -> Table:
    """Masked-LM loss and accuracy on both corpora, and agreement with the teacher on each."""
    rows = []
    for name, student, role in examined_models(results):
        for what in ("general", "domain", "quiz"):
            text = results.value("evaluate_domain", student, role, what) if what != "quiz" else {}
            same = results.value("evaluate_domain", student, "agreement", what) if role == "student" else {}
            if text or same:
                numbers = (text.get("loss"), text.get("accuracy"), same.get("top1"), same.get("kl"))
                rows.append((name, what, *(score(number) for number in numbers)))
    columns = ("model", "on", "loss", "accuracy", "same top-1", "KL")
    return Table("Held-out text and agreement with the teacher", columns, rows, names=2)


def examined_models(results: Results) -> list[tuple[str, str, str]]:
    """(name, student whose file holds it, role) of each model; equal untrained students are named once."""
    students = results.params.domain.students
    untrained: dict[str, list[str]] = {}
    for student in students:
        untrained.setdefault(str(results.value("evaluate_domain", student, "untrained")), []).append(student)
    return [
        ("teacher", students[0], "teacher"),
        *((student, student, "student") for student in students),
        *(
            ("untrained" if len(untrained) == 1 else f"untrained {group[0]}", group[0], "untrained")
            for group in untrained.values()
        ),
    ]


def _parameters(results: Results, student: str, role: str) -> int:
    if role == "teacher":
        return results.value("prepare_teacher", "", "parameters")
    return results.value("domain_distill", student, "parameters")


def task_table(results: Results) -> Table:
    """Headline score of each task student beside teacher, majority guess and published figure."""
    rows, selections = [], set()
    for task, student, split, found in evaluations(results):
        metric, kept = TASKS[task].headline, found["retention"]
        rows.append((
            split_name(task, split), student, metric,
            *(score(found[who][metric]) for who in ("teacher", "student", "majority")),
            percent(kept["plain"]), percent(kept["above_majority"]),
            _published_student(task, student, split),
            _flag(found, metric),
        ))  # fmt: skip
        selections.add(results.value("evaluate", f"{task}-{student}", "selection"))
    columns = ("task", "student", "metric", "teacher", "score", "majority", "kept", "above maj.", "published", "flag")
    note = (
        "Scores on the dev split. Kept: score / teacher. Above maj.: (score − majority) / (teacher − majority). "
        "Published: of TinyBERT4 and 6 on the test server, with its metric where that is another one. Collapsed: one "
        f"answer for nearly all rows; {NO_BETTER}: no better than that guess. Seed {results.params.seed}. "
        f"Model selection: {'; '.join(sorted(selections))}."
    )
    return Table("GLUE tasks, dev split", columns, rows, names=3, note=note)


def _flag(found: dict, metric: str) -> str:
    if found["collapsed"]:
        return COLLAPSED
    return NO_BETTER if found["student"][metric] <= found["majority"][metric] else ""


def task_metrics_table(results: Results) -> Table:
    """Every metric of teacher, student and majority guess on every split."""
    rows = []
    for task, student, split, found in evaluations(results):
        for metric in TASKS[task].metrics:
            scores = (score(found[who][metric]) for who in ("teacher", "student", "majority"))
            rows.append((task, split, student, metric, *scores))
    columns = ("task", "split", "student", "metric", "teacher", "score", "majority")
    return Table("All metrics", columns, rows, names=4)


def seeds_tables(results: Results) -> list[Table]:
    """Each task student over all its seeds, mean and spread; nothing where there is one seed."""
    seeds = [seed for seed in results.params.seeds if seed != results.params.seed]
    if not seeds:
        return []
    rows = []
    for task in results.params.tasks.run:
        for student in results.params.tasks.students:
            runs = [("evaluate", f"{task}-{student}")]
            runs += [("repeat_task_distill", f"{task}-{student}-{seed}") for seed in seeds]
            metric = TASKS[task].headline
            scores = [results.value(*run, "student", metric) for run in runs]
            fallen = sum(results.value(*run, "collapsed") for run in runs)
            spread = f"{score(mean(scores))} ± {score(stdev(scores))}"
            flag = f"{fallen} {COLLAPSED}" if fallen else ""
            rows.append((task, student, metric, " ".join(map(score, scores)), spread, flag))
    columns = ("task", "student", "metric", "each seed", "mean ± deviation", "flag")
    note = (
        f"Seeds {results.params.seed}, {', '.join(map(str, seeds))}: both phases anew, from the same general student "
        "and teacher. Standard deviation of the sample, first dev split."
    )
    return [Table("Task students over seeds", columns, rows, names=3, note=note)]


def split_name(task: str, split: str) -> str:
    """The task's name, with its split where the task has several."""
    return task if len(TASKS[task].dev_splits) == 1 else f"{task} {split.removeprefix('dev_')}"


def _published_student(task: str, student: str, split: str) -> str:
    known = TASKS[task]
    if student not in known.published:
        return ABSENT
    figure = score(known.published[student][known.dev_splits.index(split)])
    return figure if known.published_metric == known.headline else f"{known.published_metric} {figure}"


def evaluations(results: Results) -> Iterator[tuple[str, str, str, dict]]:
    """(task, student, split, its comparison); MNLI has a further split."""
    for task in results.params.tasks.run:
        for student in results.params.tasks.students:
            instance = f"{task}-{student}"
            for key in ("teacher", "student", "majority"):
                results.value("evaluate", instance, key, TASKS[task].headline)
            found = results.metrics["evaluate", instance]
            yield task, student, results.value("evaluate", instance, "split"), found
            for split, further in found.get("further_splits", {}).items():
                yield task, student, split, further


def published_table(results: Results) -> Table:
    """Published scores of the tasks, in the papers' metrics."""
    rows = []
    for task in (TASKS[name] for name in results.params.tasks.run):
        for index, split in enumerate(task.dev_splits):
            if task.published:
                figures = (score(scores[index]) for scores in task.published.values())
                rows.append((task.name, split.replace("dev", "test"), task.published_metric, *figures))
    columns = ("task", "split", "metric", "BERT-base", "TinyBERT4", "TinyBERT6")
    return Table("Published scores", columns, rows, names=3, note="GLUE test server (Jiao et al. 2020, table 1).")
