"""The report stage's work: the page, the summary in Markdown, the summary for the terminal."""

import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinybert.config.schema import Params
from tinybert.data.tasks import TASKS
from tinybert.pipeline import paths
from tinybert.pipeline.files import atomic_file, atomic_folder, write_json
from tinybert.report.compression import compression_table, pruning_table
from tinybert.report.headline import HEADLINE, headline
from tinybert.report.page import render_page
from tinybert.report.recommendation import best_students_table, verdict
from tinybert.report.results import Results, latency_ms, load_results, onnx_models, pruned_models
from tinybert.report.table import TERMINAL_COLUMNS, as_markdown, as_text
from tinybert.report.tables import (
    domain_table,
    evaluations,
    quiz_table,
    seeds_tables,
    task_metrics_table,
    task_table,
)

PAGE = Path("reports/index.html")
SUMMARY = Path("reports/summary.md")
METRICS = Path("metrics")


@dataclass(frozen=True)
class Report:
    """summary_text: for the terminal, at most 100 columns. result_rows: all results, for Run.log_result_table."""

    summary_text: str
    result_rows: list[dict[str, Any]]


def build_report(params: Params, root: str | Path = ".") -> Report:
    """Writes reports/index.html, summary.md, headline.json and metrics/ under `root` from what the stages left there.

    What is read follows from the lists of params, never from what lies in the folders. UserError with a line for
    each metrics file that is missing.
    """
    root = Path(root)
    results = load_results(params, root)
    pages = {PAGE: render_page(results), SUMMARY: summary_markdown(results)}
    report, numbers = Report(summary_text(results), result_rows(results)), headline(results)
    for path, text in pages.items():  # nothing is written before all is made
        with atomic_file(root / path) as handle:
            handle.write(text)
    write_json(root / HEADLINE, numbers)
    with atomic_folder(root / METRICS) as folder:
        for (stage, instance), content in results.metrics.items():
            write_json(folder / paths.metrics(stage, instance).relative_to(paths.STAGE_METRICS), content)
    return report


def summary_text(results: Results) -> str:
    """For a terminal, that shows the end: the long table first, the student to take and the verdict last."""
    tables = (
        compression_table(results, with_latency=True, with_intervals=False),
        domain_table(results),
        task_table(results),
        *seeds_tables(results),
        choice := best_students_table(results, with_latency=True),
    )
    sentences = [textwrap.fill(sentence, TERMINAL_COLUMNS) for sentence in (choice.note, *verdict(results))]
    return "\n".join([*map(as_text, tables), *sentences]) + "\n"


def summary_markdown(results: Results) -> str:
    """The results in Markdown, without timings: the same text for the same metrics."""
    tables = (
        domain_table(results),
        quiz_table(results),
        task_table(results),
        *seeds_tables(results),
        task_metrics_table(results),
        compression_table(results, with_latency=False, with_intervals=True),
        pruning_table(results),
    )
    sentences = "".join(f"- {sentence}\n" for sentence in verdict(results))
    choice = as_markdown(best_students_table(results, with_latency=False))
    return "\n".join(["# Results", "", choice, sentences, *map(as_markdown, tables)])


def result_rows(results: Results) -> list[dict[str, Any]]:
    """One row for each system: `group` (domain or a task), `model`, and its numbers."""
    return [*_domain_rows(results), *_task_rows(results), *_compression_rows(results)]


def _domain_rows(results: Results) -> list[dict[str, Any]]:
    students = results.params.domain.students
    rows = []
    for name, student, role in (("teacher", students[0], "teacher"), *((name, name, "student") for name in students)):
        found = results.value("evaluate_domain", student, role)
        agreement = results.value("evaluate_domain", student, "agreement") if role == "student" else {}
        rows.append(
            {"group": "domain", "model": name}
            | {f"perplexity_{corpus}": found[corpus]["perplexity"] for corpus in ("general", "domain")}
            | {f"quiz_{hit}": found["quiz"]["all"][hit] for hit in ("top1", "top5")}
            | {f"agreement_{what}": same["top1"] for what, same in agreement.items()}
        )
    return rows


def _task_rows(results: Results) -> list[dict[str, Any]]:
    rows = []
    for task, student, split, found in evaluations(results):
        scores = {who: found[who][TASKS[task].headline] for who in ("teacher", "majority")}
        rows.append(
            {"group": task if split == TASKS[task].dev_splits[0] else f"{task}_{split}", "model": student}
            | {"score": found["student"][TASKS[task].headline], **scores}
            | {f"retention_{kind}": share for kind, share in found["retention"].items()}
            | {"collapsed": int(found["collapsed"])}
        )
    return rows


def _compression_rows(results: Results) -> list[dict[str, Any]]:
    batch_sizes = results.params.quantization.latency.batch_sizes
    rows = []
    for task, model, form, found in onnx_models(results):
        times = {
            f"latency_ms_batch_{size}": latency_ms(results, task, model, form, f"batch_{size}") for size in batch_sizes
        }
        rows.append(
            {"group": task, "model": f"{model}/{form}", "score": found["dev"][TASKS[task].headline]}
            | {"agreement_fp32": found["agreement"], "size_mb": found["size_mb"]["raw"]}
            | times
        )
    for task, student, target, found in pruned_models(results):
        rows.append(
            {"group": task, "model": f"{student}_pruned{target}", "score": found["dev"][TASKS[task].headline]}
            | {"sparsity": found["sparsity"], "compressed_mb": found["size_mb"]["compressed"]}
        )
    return rows
