"""The report stage's work: the page, the summaries for git and terminal, and the collected metrics."""

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd

from tinybert.config.schema import Params
from tinybert.data.tasks import TASKS
from tinybert.pipeline import paths
from tinybert.pipeline.files import atomic_file, atomic_folder, write_json
from tinybert.report import charts, tables
from tinybert.report.rendering import Table, render
from tinybert.report.results import Results, load_results
from tinybert.report.scores import domain_scores, groups, onnx_systems, pruned_students, records, task_scores

PAGE = Path("reports/index.html")
SUMMARY = Path("reports/summary.md")
TERMINAL_SUMMARY = Path("reports/summary.txt")
SUMMARY_METRICS = Path("reports/summary_metrics.json")
METRICS = Path("metrics")
DIGITS = 4


def build_report(params: Params, root: str | Path = ".") -> list[dict[str, Any]]:
    """Writes the page, the summaries and metrics/ under `root` from the results of the stages there.

    Returns:
        One row for each system: `group` ("domain" or a task), `model` and its numbers, for Run.log_result_table.

    Raises:
        UserError: Metrics that params ask for are missing or damaged, one line for each file.
    """
    root = Path(root)
    results = load_results(params, root)
    found = {"params": params} | findings(results)
    # summary.md is in git: it holds no timings, so that the same metrics give the same text.
    shared, timed = (summary_tables(results, with_latency=with_latency) for with_latency in (False, True))
    terminal = shared | {"choice": timed["choice"]}
    texts = {
        PAGE: page(results, timed, found),
        SUMMARY: render("summary.md.j2", **found, tables=shared, with_latency=False),
        TERMINAL_SUMMARY: render("summary.txt.j2", **found, tables=terminal, with_latency=True),
    }
    numbers, rows = summary_metrics(results), result_rows(results)
    for path, text in texts.items():  # nothing is written before everything is made
        with atomic_file(root / path) as handle:
            handle.write(text)
    write_json(root / SUMMARY_METRICS, numbers)
    with atomic_folder(root / METRICS) as folder:
        for instance, tree in results.trees.items():
            write_json(folder / instance.path.relative_to(paths.STAGE_METRICS), tree)
    return rows


def summary_tables(results: Results, *, with_latency: bool) -> dict[str, Table]:
    """The tables that page and summaries share."""
    return {
        "choice": tables.choice_table(results, with_latency=with_latency),
        "tasks": tables.task_table(results),
        "domain": tables.domain_table(results),
        "onnx": tables.onnx_table(results, with_latency=with_latency),
        "pruned": tables.pruning_table(results),
    }


def page(results: Results, shared: dict[str, Table], context: dict[str, Any]) -> str:
    """The page as HTML: one file, everything escaped, nothing loaded from elsewhere."""
    maps = charts.layer_maps(results)
    more = {
        "answers": tables.answers_table(results),
        "corpus": tables.corpus_table(results),
        "filter": tables.filter_table(results),
        "task_data": tables.task_data_table(results),
        "variations": tables.variations_table(results),
        "stages": tables.stage_table(results),
        "versions": tables.versions_table(results),
    }
    shown = context | {
        "tables": shared | more,
        "with_latency": True,
        "opening": charts.pareto_chart(results),
        "sparsity": charts.pruning_chart(results),
        "maps": charts.layer_map_chart(maps) if maps else "",
        "curves": charts.curve_charts(results),
        "settings": json.dumps(results.params.model_dump(mode="json"), indent=2, ensure_ascii=False),
    }
    return render("page.html.j2", **shown)


def findings(results: Results) -> dict[str, Any]:
    """The numbers that words.j2 makes sentences, titles and notes of."""
    domain = domain_scores(results)["mean"].loc[list(results.params.domain.students)]
    scores = task_scores(results)
    scores = scores[scores["is_headline"]]
    fallen = scores[scores["collapsed"] > 0]
    leads = scores.dropna(subset=["above_majority"]).groupby("student", sort=False)["above_majority"]
    ranked = pd.DataFrame({"share": leads.mean(), "tasks": leads.count()})
    ranked = ranked.sort_values("share", ascending=False, kind="stable")
    return {
        "perplexities": domain["domain.perplexity"].sort_values(),
        "accuracies": domain["cloze.all.top1"].sort_values(ascending=False),
        "lead": next(records(ranked), None),
        "collapsed": [f"{at.student} on {tables.task_name(results, at.task, at.split)}" for at in records(fallen)],
        "questions_dropped": results.select("evaluate_domain", metric="questions_dropped")["value"].max(),
    }


def summary_metrics(results: Results) -> dict[str, dict[str, dict[str, float | None]]]:
    """The few numbers that `dvc exp show` and `dvc metrics diff` list: track or task -> student -> numbers."""
    means = domain_scores(results)["mean"]
    keys = {"perplexity": "domain.perplexity", "cloze_accuracy": "cloze.all.top1", "agreement": "agreement.domain.top1"}
    tree: dict[str, dict[str, dict[str, Any]]] = {"domain": {}}
    for student in results.params.domain.students:
        tree["domain"][student] = {name: _rounded(means.loc[student].get(key)) for name, key in keys.items()}
    scores, systems = task_scores(results), onnx_systems(results)
    for at in records(scores[scores["is_headline"]].drop_duplicates(["task", "student"])):
        found = {"score": _rounded(at.score), "retention_above_majority": _rounded(at.above_majority)}
        tree.setdefault(at.task, {})[at.student] = found
    for (task, model), of in groups(systems[systems["variant"] != "fp32"], ["task", "model"]):
        if model in tree[task]:
            tree[task][model]["int8_worst"] = _rounded(of["score"].min())
    for at in records(pruned_students(results)):
        tree[at.task][at.student][f"pruned{at.target}"] = _rounded(at.score)
    return tree


def _rounded(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else round(float(value), DIGITS)


def result_rows(results: Results) -> list[dict[str, Any]]:
    """One row for each system, means over seeds: `group` ("domain" or a task), `model` and its numbers."""
    domain, scores = domain_scores(results)["mean"], task_scores(results)
    systems, pruned = onnx_systems(results), pruned_students(results)
    frames = [domain.assign(group="domain", model=list(domain.index))]
    scores = scores[scores["is_headline"]]
    splits = zip(scores["task"], scores["split"], strict=True)
    groups = [task if split == TASKS[task].dev_splits[0] else f"{task}_{split}" for task, split in splits]
    frames.append(scores.assign(group=groups, model=scores["student"]))
    frames.append(systems.assign(group=systems["task"], model=systems["model"] + "/" + systems["variant"]))
    names = pruned["student"] + "_pruned" + pruned["target"].astype(str)
    frames.append(pruned.assign(group=pruned["task"], model=names))
    return [
        {name: of[name] for name in ("group", "model")}
        | {key: float(value) for key, value in of.items() if isinstance(value, (int, float)) and pd.notna(value)}
        for frame in frames
        for of in frame.to_dict("records")
    ]
