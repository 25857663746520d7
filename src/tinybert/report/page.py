"""The report stage's work: the page, the summaries for git and terminal, and the collected metrics."""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from tinybert.config.schema import Params
from tinybert.pipeline import paths
from tinybert.pipeline.files import atomic_folder, write_file, write_json
from tinybert.report import charts, tables
from tinybert.report.rendering import TextTable, render
from tinybert.report.results import Results, domain_scores, load_results, onnx_systems, pruned_students, task_systems

# Name in summary_metrics.json -> key of `domain_scores`.
DOMAIN_KEYS = {"perplexity": "domain.perplexity", "cloze_accuracy": "cloze.all.top1",
               "agreement": "agreement.domain.top1"}  # fmt: skip
TABLES = {
    "choice": tables.choice_table, "tasks": tables.task_table, "other_metrics": tables.other_metrics_table,
    "domain": tables.domain_table, "answers": tables.answers_table, "onnx": tables.onnx_table,
    "pruned": tables.pruning_table, "corpus": tables.corpus_table, "filter": tables.filter_table,
    "task_data": tables.task_data_table, "stages": tables.stage_table, "versions": tables.versions_table,
}  # fmt: skip


def build_report(params: Params, root: Path = Path()) -> list[dict[str, Any]]:
    """Writes the page, the summaries and metrics/ under `root` from the results of the stages there.

    Returns:
        The rows of `result_rows`, for StoredRun.log_result_table.

    Raises:
        UserError: Metrics that params ask for are missing or damaged, one line for each file.
    """
    results = load_results(params, root)
    text_tables = {name: make(results) for name, make in TABLES.items()}
    context: dict[str, Any] = findings(results) | {
        "params": params, "with_latency": True, "tables": text_tables, "opening": charts.pareto_chart(results),
        "sparsity": charts.pruning_chart(results), "curves": charts.curve_charts(results),
        "settings": json.dumps(params.model_dump(mode="json"), indent=2, ensure_ascii=False),
    }  # fmt: skip
    # summary.md is in git: it holds no timings, so that the same metrics give the same text.
    choice = text_tables["choice"].cells.query("take != 'fastest'")
    choice = choice.loc[:, (choice != "").any()]  # without flags, if only the fastest has one
    untimed = {"tables": text_tables | {"choice": TextTable(choice, names=3).without("ms")}, "with_latency": False}
    texts = {
        "reports/index.html": render("page.html.j2", **context),
        "reports/summary.md": render("summary.md.j2", **context | untimed),
        "reports/summary.txt": render("summary.txt.j2", **context),
    }
    numbers, rows = summary_metrics(results), result_rows(results)
    for path, text in texts.items():  # nothing is written before everything is made
        write_file(root / path, text)
    write_json(root / "reports/summary_metrics.json", numbers)
    with atomic_folder(root / "metrics") as folder:
        for instance, tree in results.trees.items():
            write_json(folder / instance.path.relative_to(paths.STAGE_METRICS), tree)
    return rows


def findings(results: Results) -> dict[str, Any]:
    """The numbers that words.j2 makes sentences, titles and notes of."""
    domain = domain_scores(results)["mean"].loc[list(results.params.domain.students)]
    scores = task_systems(results).query("is_headline and stage == 'evaluate'")
    first = scores.drop_duplicates(["task", "student"])  # the first split of each task
    known = [tables.retention(results, row) != tables.NO_RETENTION for row in first.itertuples()]
    share, tasks = ("above_majority", "mean"), ("above_majority", "count")
    retained = first[known].groupby("student", sort=False).agg(share=share, tasks=tasks).dropna()
    fallen = scores[scores["collapsed"] > 0].to_dict("records")
    return {
        "perplexities": domain["domain.perplexity"].sort_values(),
        "accuracies": domain["cloze.all.top1"].sort_values(ascending=False),
        "best": next(retained.sort_values("share", ascending=False, kind="stable").itertuples(), None),
        "collapsed": [f"{row['student']} on {tables.task_name(results, row['task'], row['split'])}" for row in fallen],
        "own_tasks": sum(task.is_own for task in results.tasks.values()),
        "questions_dropped": results.select("evaluate_domain", metric="questions_dropped")["value"].max(),
    }


def summary_metrics(results: Results) -> dict[str, dict[str, dict[str, float | None]]]:
    """The few numbers that `dvc exp show` and `dvc metrics diff` list: track or task -> student -> numbers."""
    means, tree = domain_scores(results)["mean"], dict[str, dict[str, dict[str, Any]]]({"domain": {}})
    for student in results.params.domain.students:
        tree["domain"][student] = {name: means.get(key, {}).get(student) for name, key in DOMAIN_KEYS.items()}
    scores = task_systems(results).query("is_headline and stage == 'evaluate'").drop_duplicates(["task", "student"])
    for row in scores.to_dict("records"):
        found = {"score": row["score"], "retention_above_majority": row["above_majority"]}
        tree.setdefault(row["task"], {})[row["student"]] = found
    int8 = onnx_systems(results).query("variant != 'fp32'").groupby(["task", "model"], sort=False)["score"].min()
    for row in int8.reset_index().to_dict("records"):
        if row["model"] in tree[row["task"]]:
            tree[row["task"]][row["model"]]["int8_worst"] = row["score"]
    for row in pruned_students(results).to_dict("records"):
        tree[row["task"]][row["student"]][f"pruned{row['target']}"] = row["score"]
    for found in (found for models in tree.values() for found in models.values()):
        found |= {name: round(float(value), 4) if pd.notna(value) else None for name, value in found.items()}
    return tree


def result_rows(results: Results) -> list[dict[str, Any]]:
    """One row for each system, means over seeds: `group`, `model` and its numbers.

    The group is "domain", a task, or <task>_<split> for a further dev split.
    """
    domain, systems, pruned = domain_scores(results)["mean"], onnx_systems(results), pruned_students(results)
    scores = task_systems(results).query("is_headline")
    is_first = scores["split"] == scores["task"].map({name: task.dev_splits[0] for name, task in results.tasks.items()})
    groups = scores["task"].where(is_first, scores["task"] + "_" + scores["split"])
    frames = [
        domain.assign(group="domain", model=domain.index),
        scores.assign(group=groups),
        systems.assign(group=systems["task"], model=systems["model"] + "/" + systems["variant"]),
        pruned.assign(group=pruned["task"]),
    ]
    return [
        {name: row[name] for name in ("group", "model")}
        | {key: float(value) for key, value in row.items() if isinstance(value, (int, float)) and pd.notna(value)}
        for frame in frames
        for row in frame.to_dict("records")
    ]
