"""The tables of results, the same cells for page, Markdown and terminal; their titles and notes are in words.j2."""

import math
import platform
from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup, escape

from tinybert.data.tasks import TASKS
from tinybert.pipeline.tracking import RESULT_PATHS, git, package_versions
from tinybert.report.rendering import (
    ABSENT,
    COLLAPSED,
    NO_BETTER,
    Table,
    count,
    fixed,
    interval,
    percent,
    spread,
    table,
)
from tinybert.report.results import NO_SEED, Results
from tinybert.report.scores import (
    best_students,
    domain_scores,
    groups,
    onnx_systems,
    pruned_students,
    records,
    retained,
    task_scores,
)

NO_LEAD = "teacher within noise of the majority"
# Layers, width and feed-forward width of the students whose scores were published, and BERT-base's parameters.
PUBLISHED_SHAPES = {"tinybert4": (4, 312, 1200), "tinybert6": (6, 768, 3072)}
BERT_BASE_LAYERS, BERT_BASE_PARAMETERS = 12, range(100_000_000, 120_000_000)
ANSWERS_SHOWN = 12
VARIATIONS_SHOWN = 4
CHANGES_NAMED = 5


def task_name(results: Results, task: str, split: str = "") -> str:
    """A task with its data: "synthetic CoLA", "MNLI mismatched"."""
    source = {"synthetic": "synthetic ", "hub": "", "local": "local "}[results.params.tasks.source]
    ending = f" {split.removeprefix('dev_')}" if split.startswith("dev_") else ""
    return f"{source}{TASKS[task].tsv.folder}{ending}"


def choice_table(results: Results, *, with_latency: bool) -> Table:
    """Which student to use for each task; `with_latency`: the fastest and milliseconds, which differ in each run."""
    systems, scores = onnx_systems(results), task_scores(results)
    teachers = scores[scores["is_headline"]].drop_duplicates("task").set_index("task")["teacher"]
    rows: list[tuple[str, ...]] = []
    for task, of_task in groups(systems, "task"):
        name, theirs = task_name(results, str(task)), of_task[of_task["model"] + of_task["variant"] == "teacherfp32"]
        for need, at in best_students(of_task).items():
            of_teacher = f"{fixed(at['score'])} of {fixed(teachers[task])}"
            costs = _cost(at, theirs, "size_mb", "smaller", 2), _cost(at, theirs, "row_ms", "faster", 3)
            rows.append((name, need, f"{at['model']} {at['variant']}", of_teacher, *costs))
        if not rows or rows[-1][0] != name:
            rows.append((name, ABSENT, "none beats the majority class", *[ABSENT] * 3))
    columns = ["task", "take", "system", "score of teacher's", "MB", "ms a row"]
    cells = pd.DataFrame(rows, columns=columns)
    if with_latency:
        return Table(cells, names=3)
    return Table(cells[cells["take"] != "fastest"], names=3).without("ms a row")


def _cost(system: pd.Series, teacher: pd.DataFrame, cost: str, word: str, digits: int) -> str:
    """A size or time, and how many times less than the teacher's it is."""
    factor = teacher[cost].sum(min_count=1) / system[cost]
    return fixed(system[cost], digits) + ("" if math.isnan(factor) else f" ({factor:.1f} × {word})")


def task_table(results: Results) -> Table:
    """Each score of each task student with its teacher's and the majority class's."""
    scores = task_scores(results)
    flags = np.select([scores["collapsed"] > 0, scores["score"] <= scores["majority"]], [COLLAPSED, NO_BETTER], ABSENT)
    frame = scores.assign(
        flag=flags,
        name=[f"{task_name(results, at.task, at.split)}: {at.metric}" for at in records(scores)],
        retained=[_retention(results, at) for at in records(scores)],
        published=[_published(results, at) for at in records(scores)],
    )
    shown = table(frame, {
        "task": (str, "name"), "student": (str, "student"), "teacher": (fixed, "teacher"),
        "score": (spread, "score", "std"), "majority": (fixed, "majority"), "of teacher's": (percent, "retention"),
        "retention": (str, "retained"), "published": (str, "published"), "flag": (str, "flag"),
    })  # fmt: skip
    # A column that says nothing goes.
    return shown.without(*(name for name in ("published", "flag") if (frame[name] == ABSENT).all()))


def _retention(results: Results, at: Any) -> str:
    """Above-majority retention; of the headline metric on the first dev split with interval, rows and seeds."""
    if math.isnan(at.above_majority):
        return NO_LEAD
    if at.is_headline and at.split == TASKS[at.task].dev_splits[0]:
        ends, rows = retained(results, at.task, at.student)
        if rows and ends is None:
            return NO_LEAD
        if ends:
            within = f"[{100 * ends['low']:.0f}, {100 * ends['high']:.0f}]"
            return f"{percent(at.above_majority, 0)} {within}, n {rows} × {len(results.params.seeds)}"
    return percent(at.above_majority, 0)


def _published(results: Results, at: Any) -> str:
    """The published score where metric, rows and shapes are the published ones; else a dash."""
    task, shape = TASKS[at.task], results.params.students[at.student].architecture
    teacher = results.metrics("finetune_teacher", task=at.task)
    is_shape = (shape.layers, shape.width, shape.feed_forward) == PUBLISHED_SHAPES.get(at.student)
    is_base = teacher["layers"] == BERT_BASE_LAYERS and int(teacher.get("parameters", 0)) in BERT_BASE_PARAMETERS
    is_real = results.params.tasks.source != "synthetic" and at.metric == task.published_metric
    if not (is_real and is_shape and is_base and at.student in task.published):
        return ABSENT
    return fixed(task.published[at.student][task.dev_splits.index(at.split)])


def domain_table(results: Results) -> Table:
    """Cloze accuracy, perplexity and agreement of the teacher, each student and an untrained one."""
    scores = domain_scores(results)
    subjects = [key for key in scores["mean"].columns if key.startswith("cloze.") and key.endswith(".top1")]
    shown = {
        "cloze accuracy": ("cloze.all.top1", 3), "ppl domain": ("domain.perplexity", 2),
        "ppl general": ("general.perplexity", 2), "same top-1": ("agreement.domain.top1", 3),
        "KL": ("agreement.domain.kl", 3), "cloze top 5": ("cloze.all.top5", 3),
    }  # fmt: skip
    shown |= {f"cloze, {key.split('.')[1]}": (key, 3) for key in subjects if ".all." not in key}
    shown |= {"parameters": ("parameters", 0)}
    keys = [(part, key) for key, _ in shown.values() for part in ("mean", "std")]
    columns = {
        heading: (partial(spread, digits=digits), ("mean", key), ("std", key))
        for heading, (key, digits) in shown.items()
    }
    frame = scores.reindex(columns=pd.MultiIndex.from_tuples([("model", ""), *keys]))
    frame["model", ""] = list(scores.index)
    return table(frame, {"model": (str, ("model", ""))} | columns)


def onnx_table(results: Results, *, with_latency: bool) -> Table:
    """Score, agreement, size and latency of each ONNX variant, and whether it is on the Pareto front."""
    systems, sizes = onnx_systems(results), results.params.quantization.latency.batch_sizes
    costs = ["size", "speed"] if with_latency else ["size"]
    best = [", ".join(cost for cost in costs if at[f"best_{cost}"]) for _, at in systems.iterrows()]
    names = [task_name(results, task) for task in systems["task"]]
    frame = systems.assign(name=names, best=np.where(systems["beats"], best, NO_BETTER))
    shown = table(frame, {
        "task": (str, "name"), "model": (str, "model"), "variant": (str, "variant"), "score": (fixed, "score"),
        "minus FP32, 95 %": (interval, "low", "high"), "as FP32": (percent, "agreement"),
        "MB": (partial(fixed, digits=2), "size_mb"), "gzip MB": (partial(fixed, digits=2), "gzip_mb"),
        **{f"ms × {n}": (_time, f"ms_{n}", f"p10_{n}", f"p90_{n}") for n in sizes}, "ms a row": (fixed, "row_ms"),
        "best by": (str, "best"),
    })  # fmt: skip
    return shown if with_latency else shown.without("ms a row", *(f"ms × {n}" for n in sizes))


def _time(median: float, p10: float, p90: float) -> str:
    return ABSENT if math.isnan(median) else f"{median:.1f} [{fixed(p10, 1)}, {fixed(p90, 1)}]"


def pruning_table(results: Results) -> Table:
    """Pruned students: sparsity, score beside the unpruned one, size of the weights file."""
    students = pruned_students(results)
    flags = np.where(students["score"] <= students["majority"], NO_BETTER, "")
    frame = students.assign(name=[task_name(results, task) for task in students["task"]], flag=flags)
    return table(frame, {
        "task": (str, "name"), "student": (str, "student"), "target": ("{} %".format, "target"),
        "sparsity": (percent, "sparsity"), "unpruned": (fixed, "unpruned"), "score": (fixed, "score"),
        "MB": (partial(fixed, digits=2), "raw_mb"), "gzip MB": (partial(fixed, digits=2), "gzip_mb"),
        "flag": (str, "flag"),
    })  # fmt: skip


def corpus_table(results: Results) -> Table:
    """Documents, words, sequences and tokens of both corpora."""
    general, domain = results.metrics("prepare_corpus"), results.metrics("filter_corpus")
    rows = []
    for split in ("train", "heldout"):
        texts = {"general": [general.get(f"{what}.{split}") for what in ("documents", "words")]}
        texts["domain"] = [domain.get(f"{split}.{what}.kept") for what in ("documents", "words")]
        for corpus, sizes in texts.items():
            tokens = results.metrics("tokenize", model=corpus, split=split)
            sizes += [tokens.get(what) for what in ("sequences", "tokens")]
            rows.append((corpus, split, *map(count, sizes), percent(tokens.get("unknown_share"))))
    columns = ["corpus", "split", "documents", "words", "sequences", "tokens", "unknown"]
    return Table(pd.DataFrame(rows, columns=columns), names=2)


def filter_table(results: Results) -> Table:
    """How many training documents hold each subject's terms, and how many of these were kept."""
    found, rows = results.metrics("filter_corpus"), []
    places = [("all", "", "train.documents")]
    for subject, terms in results.params.filter.subjects.items():
        places += [(subject, "any term", f"train.subjects.{subject}")]
        places += [(subject, term, f"train.subjects.{subject}.terms.{term}") for term in terms]
    for subject, term, key in places:
        tally = (found.get(f"{key}.{of}", math.nan) for of in ("found", "kept", "kept_share"))
        rows.append((subject, term, *tally))
    frame = pd.DataFrame(rows, columns=["subject", "term", "found", "kept", "share"])
    return table(frame, {"subject": (str, "subject"), "term": (str, "term"), "found": (count, "found"),
                         "kept": (count, "kept"), "share kept": (percent, "share")})  # fmt: skip


def task_data_table(results: Results) -> Table:
    """Examples of each task by split, and its augmented training rows."""
    found = results.select("prepare_task")
    found = found[found["metric"].str.startswith("examples.")]
    augmented = results.select("augment", metric="augmented").set_index("task")["value"]
    split = found["metric"].str.removeprefix("examples.")
    frame = found.assign(
        name=[task_name(results, task) for task in found["task"]],
        split=split,
        augmented=np.where(split == "train", found["task"].map(augmented).map(count), ""),
    )
    return table(frame, {"task": (str, "name"), "split": (str, "split"), "examples": (count, "value"),
                         "augmented": (str, "augmented")})  # fmt: skip


def stage_table(results: Results) -> Table:
    """Steps of each training stage; seconds and peak memory of what ran here."""
    columns = ["steps", "seconds", "peak_memory_mb"]
    found = results.frame[results.frame["metric"].isin(columns) & (results.frame["stage"] != "latency")]
    place = ["stage", "task", "model", "seed"]
    wide = found.pivot_table(index=place, columns="metric", values="value", sort=False).reindex(columns=columns)
    frame = wide.reset_index()
    frame["seed"] = frame["seed"].astype(str).replace(str(NO_SEED), "")
    total = {"stage": "all", "task": "", "model": "", "seed": "", "seconds": frame["seconds"].sum()}
    frame = pd.concat([frame, pd.DataFrame([total])], ignore_index=True)
    names = {name: (str, name) for name in place}
    return table(frame, names | {"steps": (count, "steps"), "seconds": (count, "seconds"),
                                 "peak MB": (count, "peak_memory_mb")})  # fmt: skip


def versions_table(results: Results) -> Table:
    """Revision, sources that are not committed, seeds, Python and packages."""
    commit = git("rev-parse", "HEAD", root=results.root)
    changed = git("status", "--porcelain", "--", *RESULT_PATHS, root=results.root).splitlines() if commit else []
    more = f" and {len(changed) - CHANGES_NAMED} more" if len(changed) > CHANGES_NAMED else ""
    rows = [
        ("git revision", commit or "none"),
        ("sources not committed", ", ".join(line[3:] for line in changed[:CHANGES_NAMED]) + more or "none"),
        ("seeds", ", ".join(map(str, results.params.seeds))),
        ("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        *package_versions().items(),
    ]
    return Table(pd.DataFrame(rows, columns=["", "version"]), names=2)


def answers_table(results: Results) -> Table:
    """Some quiz questions, evenly taken, answered by the teacher and each domain student."""
    answers = {student: results.quiz_answers(student) for student in results.params.domain.students}
    asked = min((len(found) for found in answers.values()), default=0)
    rows = []
    for index in np.linspace(0, asked - 1, num=min(asked, ANSWERS_SHOWN)).round().astype(int):
        first = next(iter(answers.values()))[index]
        given = [first["teacher"], *(found[index]["student"] for found in answers.values())]
        rows.append([first["prompt"], first["answer"], *(_best_two(best, first["answer"]) for best in given)])
    columns = ["question", "answer", "teacher", *answers]
    return Table(pd.DataFrame(rows, columns=columns, dtype=object), names=len(columns))


def _best_two(best: Sequence[tuple[str, float]], right: str) -> Markup:
    forms = (Markup("<mark>{} {}</mark>") if token == right else Markup("{} {}") for token, _ in best[:2])
    return Markup(", ").join(form.format(token, fixed(p, 2)) for form, (token, p) in zip(forms, best[:2], strict=True))


def variations_table(results: Results) -> Table:
    """For each task an original training row and its augmented copies, changed words marked."""
    rows = []
    for task in results.params.tasks.run:
        found = results.variations(task, VARIATIONS_SHOWN)
        for position, row in enumerate(found):
            parts = [marked(found[0][column], row[column]) for column in TASKS[task].columns]
            rows.append([task_name(results, task), "variation" if position else "original", Markup(" ⁄ ").join(parts)])
    return Table(pd.DataFrame(rows, columns=["task", "", "text"], dtype=object), names=3)


def marked(original: str, varied: str) -> Markup:
    """`varied` as HTML, escaped, with <mark> around the words that `original` does not have at that place."""
    before, after = original.split(), varied.split()
    parts = []
    for change, _, _, start, end in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if words := escape(" ".join(after[start:end])):
            parts.append(words if change == "equal" else Markup("<mark>{}</mark>").format(words))
    return Markup(" ").join(parts)
