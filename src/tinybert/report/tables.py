"""The tables of results, the same cells for page, Markdown and terminal; their titles and notes are in words.j2."""

import math
import platform
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tinybert.config.tasks import REPRODUCED
from tinybert.evaluate.scoring import METRICS, SAME_SIZE, read_predictions, retention_interval
from tinybert.pipeline import paths
from tinybert.pipeline.files import read_json
from tinybert.pipeline.process import code_revision, package_versions
from tinybert.report.rendering import ABSENT, COLLAPSED, NO_BETTER, TextTable, fixed, interval, percent, spread, table
from tinybert.report.results import SYSTEMS, Results, domain_scores, onnx_systems, pruned_students, task_systems, wide

# Layers, width and feed-forward width of the students whose scores were published, and the sizes of their teacher.
PUBLISHED_SHAPES = {"tinybert4": (4, 312, 1200), "tinybert6": (6, 768, 3072)}
BERT_BASE = {"layers": 12, "width": 768}
ANSWERS_SHOWN = 12
TOLERANCE = 0.01 + 1e-9  # what a smaller or faster student may score below the best; the rest is rounding
NO_RETENTION = "teacher within noise of the majority"
count, megabytes = partial(fixed, digits=0), partial(fixed, digits=2)


def task_name(results: Results, task: str, split: str = "") -> str:
    """A task with its data: "synthetic CoLA", "MNLI mismatched"."""
    source = {"synthetic": "synthetic ", "hub": "", "local": "local "}[results.params.tasks.source]
    ending = f" {split.removeprefix('dev_')}" if split.startswith("dev_") else ""
    return f"{'' if results.tasks[task].is_own else source}{results.tasks[task].title}{ending}"


def choice_table(results: Results) -> TextTable:
    """Which student to use for each task, and which control scores as high as the student."""
    systems = task_systems(results).query("is_headline")
    teachers = systems.drop_duplicates("task").set_index("task")["teacher"]
    students = systems.assign(flag=_flags(systems)).query("stage == 'evaluate'")
    flags = students.drop_duplicates(["task", "student"]).set_index(["task", "student"])["flag"]  # of the first split
    rows: list[tuple[str, ...]] = []
    for task, of_task in onnx_systems(results).groupby("task", sort=False):
        name, theirs = task_name(results, str(task)), of_task.query("model == 'teacher' and variant == 'fp32'")
        found = best_students(of_task)
        for need, row in found.items():
            of_teacher = f"{fixed(row['score'])} of {fixed(teachers[task])}"
            costs = _cost(row, theirs, "size_mb.raw", "smaller", 2), _cost(row, theirs, "row_ms", "faster", 3)
            system = f"{row['model']} {row['variant']}"
            rows.append((name, need, system, of_teacher, *costs, flags[task, row["student"]]))
        if not found:
            rows.append((name, ABSENT, "none beats the majority class", *[ABSENT] * 3, ""))
    columns = ["task", "take", "system", "score of teacher's", "MB", "ms a row", "flag"]
    cells = pd.DataFrame(rows, columns=columns)
    return TextTable(cells if any(cells["flag"]) else cells.drop(columns="flag"), names=3)


def best_students(frame: pd.DataFrame) -> dict[str, pd.Series]:
    """The sound systems of one task to use: the "best" score, and the "smallest" and "fastest" within a point of it.

    The smallest is, among files within SAME_SIZE of the smallest, the one with the highest score, as `choose_variant`
    chooses.
    """
    best = frame[frame["sound"]].sort_values(["score", "size_mb.raw"], ascending=[False, True], kind="stable")
    near = best[best["score"] >= best["score"].max() - TOLERANCE]
    smallest = near[near["size_mb.raw"] <= SAME_SIZE * near["size_mb.raw"].min()]
    fastest = near.dropna(subset=["row_ms"]).sort_values("row_ms", kind="stable")
    chosen = {"best": best, "smallest": smallest, "fastest": fastest}
    return {need: ordered.iloc[0] for need, ordered in chosen.items() if len(ordered)}


def _cost(system: pd.Series, teacher: pd.DataFrame, cost: str, word: str, digits: int) -> str:
    """A size or time, and how many times less than the teacher's it is."""
    factor = teacher[cost].sum(min_count=1) / system[cost]
    return fixed(system[cost], digits) + ("" if math.isnan(factor) else f" ({factor:.1f} × {word})")


def task_table(results: Results) -> TextTable:
    """The headline metric of each task: score, retention and costs of controls, students and teacher."""
    return table(_systems(results, "is_headline"), ["task", "model"], {
        "score": (spread, "score", "std"), "of teacher's": (percent, "retention"), "retention": (str, "retained"),
        "parameters": (count, "parameters"), "MFLOPs": (_millions, "flops"),
        "MB": (lambda parameters: _millions(4 * parameters), "parameters"), "ms a row": (fixed, "row_ms"),
        "published": (str, "published"), "flag": (str, "flag"),
    })  # fmt: skip


def other_metrics_table(results: Results) -> TextTable:
    """The other metrics of the tasks that have some, without rows for the majority class and the teacher."""
    return table(_systems(results, "not is_headline and stage not in @SYSTEMS"), ["task", "model"], {
        "score": (spread, "score", "std"), "teacher": (fixed, "teacher"), "majority": (fixed, "majority"),
        "of teacher's": (percent, "retention"), "retention": (str, "retained"), "published": (str, "published"),
        "flag": (str, "flag"),
    })  # fmt: skip


def _systems(results: Results, condition: str) -> pd.DataFrame:
    """Rows of `task_systems` with the texts of their cells: task (with its metric), retained, published, flag."""
    scores = task_systems(results).query(condition)
    rows = list[Any](scores.itertuples())
    return scores.assign(
        task=[f"{task_name(results, row.task, row.split)}: {row.metric}" for row in rows],
        retained=[retention(results, row) for row in rows],
        published=[_published(results, row) for row in rows],
        flag=_flags(scores),
    )


def _millions(value: float) -> str:
    return "< 0.01" if value < 1e4 else fixed(value / 1e6, 2)


def _flags(systems: pd.DataFrame) -> list[str]:
    """`_flag` of each row; the rows of a task, split and metric stand together."""
    groups = systems.groupby(["task", "split", "metric"], sort=False)
    return [_flag(row, group) for _, group in groups for row in group.itertuples()]


def _flag(row: Any, of_task: pd.DataFrame) -> str:
    """Whether a system collapsed, or which control scores as high: the majority class, a baseline, fine-tuning."""
    if row.collapsed:
        return COLLAPSED
    if row.stage != "majority" and row.score <= row.majority:
        return NO_BETTER
    is_control = (of_task["stage"] == "finetune_student") & (of_task["student"] == row.student)
    as_high = of_task[(is_control | (of_task["stage"] == "baselines")) & (of_task["score"] >= row.score)]
    return f"≤ {as_high.loc[as_high['score'].idxmax(), 'model']}" if row.stage == "evaluate" and len(as_high) else ""


def retention(results: Results, row: Any) -> str:
    """Above-majority retention; of the headline metric on the first dev split with interval, rows and seeds."""
    if row.stage in SYSTEMS:
        return ABSENT
    is_first = row.is_headline and row.split == results.tasks[row.task].dev_splits[0]
    if math.isnan(row.above_majority):
        return NO_RETENTION
    share, wanted = percent(row.above_majority, 0), (row.stage, row.task, row.student)
    scored = [key.name for key in results.trees if is_first and (key.stage, key.task, key.model) == wanted]
    predicted = [paths.predictions(row.stage, name) for name in scored]
    files = [results.read(path, lambda path: read_predictions(path.read_text("utf-8")), {}) for path in predicted]
    if not files or not all(set(SYSTEMS) <= file.keys() for file in files):
        return share
    reference = {name: files[0][name].predictions for name in ("teacher", "majority")}
    reference["labels"] = files[0]["student"].labels
    students, metric = [file["student"].predictions for file in files], METRICS[results.tasks[row.task].headline]
    ends = retention_interval(metric, students, reference, seed=results.params.seed)
    if not ends:
        return NO_RETENTION
    return f"{share} [{100 * ends['low']:.0f}, {100 * ends['high']:.0f}], n {len(students[0])} × {len(students)}"


def _published(results: Results, row: Any) -> str:
    """The published scores and their data, if metric, rows, teacher and shape are the published ones."""
    task, system = results.tasks[row.task], {"teacher": "bert_base", "evaluate": row.student}.get(row.stage)
    if not system or results.params.tasks.source == "synthetic" or results.params.tasks.heldout_fraction:
        return ABSENT
    if any(results.value("finetune_teacher", task=row.task, metric=key) != size for key, size in BERT_BASE.items()):
        return ABSENT
    if row.stage == "evaluate":
        shape = results.params.students[row.student].architecture
        if (shape.layers, shape.width, shape.feed_forward) != PUBLISHED_SHAPES.get(row.student):
            return ABSENT
    found = []
    if scores := task.published.get((system, row.metric)):
        found.append(f"{fixed(scores[task.dev_splits.index(row.split)])} paper (test)")
    if row.is_headline and row.student == "tinybert4" and row.task in REPRODUCED:
        found.append(f"{fixed(REPRODUCED[row.task])} reproduction (dev)")
    return ", ".join(found) or ABSENT


def domain_table(results: Results) -> TextTable:
    """Cloze accuracy, perplexity and agreement of the teacher, each student and an untrained one."""
    shown = [
        ("cloze accuracy", "cloze.all.top1", 3), ("ppl domain", "domain.perplexity", 2),
        ("ppl general", "general.perplexity", 2), ("same top-1", "agreement.domain.top1", 3),
        ("KL", "agreement.domain.kl", 3), ("cloze top 5", "cloze.all.top5", 3),
        *((f"cloze, {name}", f"cloze.{name}.top1", 3) for name in results.params.filter.subjects),
        ("parameters", "parameters", 0),
    ]  # fmt: skip
    columns = {title: (partial(spread, digits=digits), ("mean", key), ("std", key)) for title, key, digits in shown}
    return table(domain_scores(results).reset_index(names="model"), ["model"], columns)


def onnx_table(results: Results) -> TextTable:
    """Score, agreement, size and latency of each ONNX variant; whether it is chosen, or on the Pareto front."""
    systems, sizes = onnx_systems(results), results.params.quantization.latency.batch_sizes
    return table(systems.assign(task=systems["task"].map(partial(task_name, results))), ["task", "model", "variant"], {
        "score": (fixed, "score"), "minus FP32, 95 %": (interval, "difference_95.low", "difference_95.high"),
        "as FP32": (percent, "agreement"), "MB": (megabytes, "size_mb.raw"),
        "gzip MB": (megabytes, "size_mb.compressed"),
        **{f"ms × {n}": (_time, *(f"batch_{n}.{time}" for time in ("median", "p10", "p90"))) for n in sizes},
        "ms a row": (fixed, "row_ms"),
        "best by": (lambda *is_best: ", ".join(compress(("size", "speed"), is_best)), "best_size", "best_speed"),
        "INT8": (lambda is_chosen: "chosen" if is_chosen else "", "chosen"),
        "flag": (lambda beats: "" if beats else NO_BETTER, "beats"),
    })  # fmt: skip


def _time(median: float, p10: float, p90: float) -> str:
    return ABSENT if math.isnan(median) else f"{median:.1f} [{fixed(p10, 1)}, {fixed(p90, 1)}]"


def pruning_table(results: Results) -> TextTable:
    """Pruned students: sparsity, score beside the unpruned one, size of the weights file."""
    students = pruned_students(results)
    return table(students.assign(task=students["task"].map(partial(task_name, results))), ["task", "student"], {
        "target": ("{} %".format, "target"), "sparsity": (percent, "sparsity"), "unpruned": (fixed, "unpruned"),
        "score": (fixed, "score"), "MB": (megabytes, "size_mb.raw"), "gzip MB": (megabytes, "size_mb.compressed"),
        "flag": (lambda score, majority: NO_BETTER if score <= majority else "", "score", "majority"),
    })  # fmt: skip


def corpus_table(results: Results) -> TextTable:
    """Documents, sequences and tokens of both corpora."""
    frame = wide(results.select("tokenize", variant=""), ["model", "split"]).reset_index(names=["corpus", "split"])
    return table(frame, ["corpus", "split"], {
        "documents": (count, "documents"), "sequences": (count, "sequences"), "tokens": (count, "tokens"),
        "unknown": (percent, "unknown_share"),
    })  # fmt: skip


def filter_table(results: Results) -> TextTable:
    """How many training documents hold each subject's terms, and how many of these were kept."""
    place = r"train\.(?:documents|subjects\.(?P<subject>[^.]+)(?:\.terms\.(?P<term>.+))?)"
    found = results.select("filter_corpus")
    parts = found["metric"].str.extract(rf"^{place}\.(?P<metric>found|kept|kept_share)$").fillna("")
    found = found.assign(**parts).query("metric != ''")
    numbers = {"found": (count, "found"), "kept": (count, "kept"), "share kept": (percent, "kept_share")}
    return table(wide(found, ["subject", "term"]).reset_index(), ["subject", "term"], numbers)


def task_data_table(results: Results) -> TextTable:
    """Examples of each task by split, and its augmented training rows."""
    found = pd.concat([results.select("prepare_task"), results.select("augment", metric="augmented")])
    found = found[found["metric"].str.match(r"examples\.|augmented")].sort_values("task", kind="stable")
    names = found["task"].map(partial(task_name, results))
    frame = found.assign(task=names, rows=found["metric"].str.removeprefix("examples."))
    return table(frame, ["task", "rows"], {"number": (count, "value")})


def stage_table(results: Results) -> TextTable:
    """Steps of each training stage; seconds and peak memory of what ran here."""
    names, numbers = ["stage", "task", "model", "seed"], ["steps", "seconds", "peak_memory_mb"]
    frame = wide(results.frame[results.frame["metric"].isin(numbers)], names).reset_index()
    total = results.frame.loc[results.frame["metric"] == "seconds", "value"].sum()
    all_stages = dict.fromkeys(names, "") | {"stage": "all", "seconds": total}
    columns = {"steps": (count, "steps"), "seconds": (count, "seconds"), "peak MB": (count, "peak_memory_mb")}
    return table(pd.concat([frame, pd.DataFrame([all_stages])]), names, columns)


def versions_table(results: Results) -> TextTable:
    """Revision, seeds, Python and packages."""
    rows = {"git revision": code_revision(), "seeds": ", ".join(map(str, results.params.seeds))}
    rows["Python"] = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return TextTable(pd.DataFrame((rows | package_versions()).items(), columns=["", "version"]), names=2)


def answers_table(results: Results) -> TextTable:
    """Some quiz questions, evenly spaced, with the answers of the teacher and each domain student."""
    files = {student: paths.quiz_answers(student, results.params.seed) for student in results.params.domain.students}
    found = {student: results.read(path, _answers, pd.DataFrame()) for student, path in files.items()}
    cells = next(iter(found.values()), pd.DataFrame()).drop(columns="student", errors="ignore")
    for student, answers in found.items():
        cells[student] = answers.get("student", ABSENT)
    shown = np.linspace(0, len(cells) - 1, num=min(len(cells), ANSWERS_SHOWN)).round().astype(int)
    return TextTable(cells.iloc[shown].fillna(ABSENT), names=len(cells.columns))


def _answers(path: Path) -> pd.DataFrame:
    """Questions, right answers, and the two likeliest answers of the teacher and a student."""
    rows = pd.DataFrame(read_json(path), columns=["prompt", "answer", "teacher", "student"])
    for who in ("teacher", "student"):
        rows[who] = [", ".join(f"{top['token']} {top['probability']:.2f}" for top in best[:2]) for best in rows[who]]
    return rows.rename(columns={"prompt": "question"}).astype(str)
