"""The tables of results, the same cells for page, Markdown and terminal."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import pandas as pd
from markupsafe import Markup, escape

from tinybert.data.tasks import TASKS
from tinybert.report.results import Results
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

ABSENT = "–"
COLLAPSED = "collapsed"
NO_BETTER = "≤ majority"  # the majority class scores as well
NO_LEAD = "teacher within noise of the majority"
FLAGS = (COLLAPSED, NO_BETTER)
TERMINAL_CELL = 16  # characters of a cell's line on the terminal
# Layers, width and feed-forward width of the students whose scores were published, and BERT-base's parameters.
PUBLISHED_SHAPES = {"tinybert4": (4, 312, 1200), "tinybert6": (6, 768, 3072)}
BERT_BASE_LAYERS, BERT_BASE_PARAMETERS = 12, range(100_000_000, 120_000_000)


@dataclass(frozen=True)
class Table:
    """Cells as they are shown. `names`: how many columns on the left are text; the others are numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    names: int = 1
    note: str = ""

    def html(self) -> Markup:
        """The table as HTML; texts are escaped, flags are marked."""

        def cell(text: str) -> Markup:
            return Markup('<strong class="flag">{}</strong>').format(text) if text in FLAGS else escape(text)

        frame = pd.DataFrame([list(map(cell, row)) for row in self.rows], columns=list(map(escape, self.columns)))
        with pd.option_context("display.max_colwidth", None):  # else pandas cuts cells
            return Markup(frame.to_html(index=False, escape=False, border=0, classes=f"names{self.names}"))

    def markdown(self) -> str:
        """The table in Markdown with its note, without the title."""

        def cell(text: str) -> str:
            return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").split())

        rows = [list(map(cell, row)) for row in self.rows]
        body = self._tabulated(rows, list(map(cell, self.columns)), tablefmt="pipe")
        return f"{body}\n\n{self.note}\n" if self.note else f"{body}\n"

    def text(self) -> str:
        """The table for a terminal under its title; long cells are wrapped."""
        lines = [["\n".join(wrap(cell, TERMINAL_CELL)) for cell in row] for row in (self.columns, *self.rows)]
        return f"{self.title}\n{self._tabulated(lines[1:], lines[0], tablefmt='plain')}\n"

    def _tabulated(self, rows: Sequence[Sequence[str]], columns: Sequence[str], *, tablefmt: str) -> str:
        align = ["left" if number < self.names else "right" for number in range(len(columns))]
        frame = pd.DataFrame(rows, columns=list(columns))
        return frame.to_markdown(index=False, disable_numparse=True, colalign=align, tablefmt=tablefmt)


def fixed(value: float | None, digits: int = 3) -> str:
    """A number with so many digits after the point; a dash where there is none."""
    return ABSENT if value is None or math.isnan(value) else f"{value:,.{digits}f}"


def count(value: float | None) -> str:
    return fixed(value, 0)


def percent(share: float | None, digits: int = 1) -> str:
    return ABSENT if share is None or math.isnan(share) else f"{100 * share:.{digits}f} %"


def spread(mean: float, std: float, digits: int = 3) -> str:
    """A mean over seeds ± the standard deviation of the sample, which a single seed does not have."""
    return fixed(mean, digits) if math.isnan(std) else f"{fixed(mean, digits)} ± {fixed(std, digits)}"


def signed(difference: float) -> str:
    """A difference of scores with its sign; what rounds to zero has none."""
    return ABSENT if math.isnan(difference) else f"{round(difference, 3) + 0.0:+.3f}"


def task_name(results: Results, task: str, split: str = "") -> str:
    """A task with its data: "synthetic CoLA", "MNLI mismatched"."""
    source = {"synthetic": "synthetic ", "hub": "", "local": "local "}[results.params.tasks.source]
    ending = f" {split.removeprefix('dev_')}" if split.startswith("dev_") else ""
    return f"{source}{TASKS[task].tsv.folder}{ending}"


def corpus_name(results: Results) -> str:
    """The name of the corpus, as put before "text"."""
    corpus = results.params.corpus
    return {"synthetic": "synthetic", "hub": corpus.hub.dataset, "local": "local"}[corpus.source]


def seeds_note(results: Results) -> str:
    """How many seeds a number stands for."""
    seeds = results.params.seeds
    named = ", ".join(map(str, seeds))
    return f"Mean ± standard deviation over seeds {named}." if len(seeds) > 1 else f"Seed {named}."


def choice_table(results: Results, *, with_latency: bool) -> Table:
    """Which student to use for each task; `with_latency`: the fastest and milliseconds, which differ in each run."""
    systems = onnx_systems(results)
    scores = task_scores(results)
    teachers = scores[scores["is_headline"]].drop_duplicates("task").set_index("task")["teacher"]
    rows = []
    for (task,), of_task in groups(systems, ["task"]):
        name, chosen = task_name(results, task), best_students(of_task)
        theirs = of_task[(of_task["model"] == "teacher") & (of_task["variant"] == "fp32")]
        for need, system in chosen.items():
            if need == "fastest" and not with_latency:
                continue
            costs = []
            for cost, digits, word in (("size_mb", 2, "smaller"), ("row_ms", 3, "faster"))[: 1 + with_latency]:
                factor = theirs[cost].sum(min_count=1) / system[cost]
                costs.append(fixed(system[cost], digits) + ("" if math.isnan(factor) else f" ({factor:.1f} × {word})"))
            of_teacher = f"{fixed(system['score'])} of {fixed(teachers[task])}"
            rows.append([name, need, f"{system['model']} {system['variant']}", of_teacher, *costs])
        if not chosen:
            rows.append([name, ABSENT, "none beats the majority class", *[ABSENT] * (2 + with_latency)])
    columns = ["task", "take", "system", "score of teacher's", "MB", "ms a row"][: 5 + with_latency]
    note = (
        f"Smallest{' and fastest' if with_latency else ''}: within 0.01 of the best student's score. Compared with the "
        "teacher's FP32 file. Chosen on the dev rows that give the scores."
    )
    return Table("Which student do I take?", columns, rows, names=3, note=note)


def task_table(results: Results) -> Table:
    """Headline score of each task student, its teacher and the majority class."""
    scores = task_scores(results)
    rows = []
    for at in records(scores[scores["is_headline"]]):
        flag = COLLAPSED if at.collapsed else NO_BETTER if at.score <= at.majority else ABSENT
        rows.append((
            f"{task_name(results, at.task, at.split)}: {at.metric}", at.student, fixed(at.teacher),
            spread(at.score, at.std), fixed(at.majority), _retention(results, at), _published(results, at), flag,
        ))  # fmt: skip

    columns = ["task", "student", "teacher", "score", "majority", "retention", "published", "flag"]
    note = (
        f"{seeds_note(results)} Retention: (score - majority) / (teacher - majority) [95 % interval: paired bootstrap "
        "over n rows × seeds]. Nothing was selected by these rows: weights are those of the last step. Collapsed: one "
        "answer for nearly all rows. Published: GLUE's test server (Jiao et al. 2020), only for its rows and shapes."
    )
    # A column that says nothing goes.
    used = [i for i in range(len(columns)) if i < 6 or any(row[i] != ABSENT for row in rows)]
    source = {"synthetic": "Synthetic tasks", "hub": "GLUE tasks", "local": "Local tasks"}[results.params.tasks.source]
    return Table(
        f"{source}, dev split", [columns[i] for i in used], [[row[i] for i in used] for row in rows], names=2, note=note
    )


def _retention(results: Results, at: Any) -> str:
    """Above-majority retention with interval, rows and seeds; of a further dev split without these."""
    if math.isnan(at.above_majority):
        return NO_LEAD
    if at.split == TASKS[at.task].dev_splits[0]:
        interval, rows = retained(results, at.task, at.student)
        if rows and interval is None:
            return NO_LEAD
        if interval:
            ends = f"[{100 * interval['low']:.0f}, {100 * interval['high']:.0f}]"
            return f"{percent(at.above_majority, 0)} {ends}, n {rows} × {len(results.params.seeds)}"
    return percent(at.above_majority, 0)


def _published(results: Results, at: Any) -> str:
    """The published score where rows and shapes are the published ones; else a dash."""
    task, shape = TASKS[at.task], results.params.students[at.student].architecture
    teacher = results.metrics("finetune_teacher", task=at.task)
    is_shape = (shape.layers, shape.width, shape.feed_forward) == PUBLISHED_SHAPES.get(at.student)
    is_base = teacher["layers"] == BERT_BASE_LAYERS and int(teacher.get("parameters", 0)) in BERT_BASE_PARAMETERS
    if results.params.tasks.source == "synthetic" or not is_shape or not is_base or at.student not in task.published:
        return ABSENT
    figure = fixed(task.published[at.student][task.dev_splits.index(at.split)])
    return figure if task.published_metric == task.headline else f"{task.published_metric} {figure}"


def task_metrics_table(results: Results) -> Table:
    """Every metric of teacher, student and majority class on every split."""
    rows = [
        (task_name(results, at.task, at.split), at.student, at.metric, fixed(at.teacher), spread(at.score, at.std),
         fixed(at.majority), percent(at.retention))
        for at in records(task_scores(results))
    ]  # fmt: skip
    columns = ("task", "student", "metric", "teacher", "score", "majority", "score / teacher's")
    return Table("All metrics of the tasks", columns, rows, names=3, note=seeds_note(results))


def domain_table(results: Results) -> Table:
    """Cloze accuracy, perplexity and agreement of the teacher, each student and an untrained one."""
    shown = {
        "cloze accuracy": ("cloze.all.top1", 3), "ppl domain": ("domain.perplexity", 2),
        "ppl general": ("general.perplexity", 2), "same top-1": ("agreement.domain.top1", 3),
        "KL": ("agreement.domain.kl", 3),
    }  # fmt: skip
    note = (
        f"{seeds_note(results)} Cloze accuracy: of the likeliest token, on the questions; ppl: perplexity of masked "
        "tokens in held-out text; same top-1, KL (nats): agreement with the teacher on domain text."
    )
    title = f"Domain evaluation on {corpus_name(results)} text"
    return Table(title, ("model", *shown), _domain_rows(results, shown), note=note)


def domain_details_table(results: Results) -> Table:
    """Size, cloze accuracy by subject and in the top 5, accuracy on held-out text, agreement elsewhere."""
    keys = domain_scores(results)["mean"].columns
    subjects = [key for key in keys if key.startswith("cloze.") and key.endswith("top1") and ".all." not in key]
    shown = {"parameters": ("parameters", 0), "cloze top-5": ("cloze.all.top5", 3)}
    shown |= {f"cloze, {key.split('.')[1]}": (key, 3) for key in subjects}
    shown |= {f"accuracy, {corpus}": (f"{corpus}.accuracy", 3) for corpus in ("general", "domain")}
    shown |= {f"same top-1, {what}": (f"agreement.{what}.top1", 3) for what in ("general", "cloze")}
    dropped = results.select("evaluate_domain", metric="questions_dropped")["value"].max()
    note = f"Left out: {count(dropped)} questions whose answer is not a single token."
    return Table("Domain evaluation in detail", ("model", *shown), _domain_rows(results, shown), note=note)


def _domain_rows(results: Results, shown: dict[str, tuple[str, int]]) -> list[tuple[str, ...]]:
    """The models' names and the keys of domain_scores with their digits; a dash where a model has none."""
    rows = []
    for name, of in domain_scores(results).iterrows():
        numbers = ((of.get(("mean", key), math.nan), of.get(("std", key), math.nan), d) for key, d in shown.values())
        rows.append((str(name), *(spread(*found) for found in numbers)))
    return rows


def compression_table(results: Results, *, with_latency: bool, with_intervals: bool = True) -> Table:
    """Score, agreement and size of each ONNX variant, and whether it is on the Pareto front."""
    latency = results.params.quantization.latency
    sizes = latency.batch_sizes if with_latency else ()
    rows = []
    for at in records(onnx_systems(results)):
        best = [cost for cost in ("size", "speed")[: 1 + with_latency] if getattr(at, f"best_{cost}")]
        interval = [f"{signed(at.low)} to {signed(at.high)}"] if with_intervals else []
        rows.append([
            task_name(results, at.task), at.model, at.variant, fixed(at.score), *interval,
            percent(at.agreement), fixed(at.size_mb, 2), fixed(at.gzip_mb, 2),
            *(fixed(getattr(at, f"ms_{size}"), 1) for size in sizes), *([fixed(at.row_ms)] if with_latency else []),
            ", ".join(best) if at.beats else NO_BETTER,
        ])  # fmt: skip
    columns = ["task", "model", "variant", "score", *(["minus FP32, 95 %"] if with_intervals else []), "as FP32", "MB"]
    columns += ["gzip MB", *(f"ms × {size}" for size in sizes), *(["ms a row"] if with_latency else []), "best by"]
    note = (
        "As FP32: share of dev predictions equal to FP32's. MB: 10^6 bytes. Best by: on the Pareto front of score "
        f"against size{' or ms a dev row' if with_latency else ''}; {NO_BETTER}: the majority class is as good."
    )
    if with_latency:
        note += f" ms × n: n rows of {latency.length_tokens} tokens on {latency.threads} threads."
    return Table("ONNX variants", columns, rows, names=3, note=note)


def pruning_table(results: Results) -> Table:
    """Pruned students: sparsity, score beside the unpruned one, size of the weights file."""
    rows = []
    for at in records(pruned_students(results)):
        guess = results.value("prepare_task", f"majority.{TASKS[at.task].headline}", task=at.task)
        flag = NO_BETTER if at.score <= guess else ""
        rows.append((
            task_name(results, at.task), at.student, f"{at.target} %", percent(at.sparsity), fixed(at.unpruned),
            fixed(at.score), fixed(at.raw_mb, 2), fixed(at.compressed_mb, 2), flag,
        ))  # fmt: skip
    columns = ("task", "student", "target", "sparsity", "unpruned", "score", "MB", "gzip MB", "flag")
    note = "Sparsity: share of exact zeros over all Linear weights. MB of the weights file: 10^6 bytes."
    return Table("Pruned students", columns, rows, names=2, note=note)
