"""The report stage's work: the page, the summaries for git and terminal, and the collected metrics."""

import json
import math
import platform
import textwrap
from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from tinybert.config.schema import Params
from tinybert.data.tasks import TASKS
from tinybert.pipeline import paths
from tinybert.pipeline.files import atomic_file, atomic_folder, write_json
from tinybert.pipeline.tracking import RESULT_PATHS, git, package_versions
from tinybert.report import charts, tables
from tinybert.report.results import Results, load_results, stage_instances
from tinybert.report.scores import domain_scores, groups, onnx_systems, pruned_students, records, task_scores
from tinybert.report.tables import ABSENT, Table, count, fixed, percent, task_name

PAGE = Path("reports/index.html")
SUMMARY = Path("reports/summary.md")
TERMINAL_SUMMARY = Path("reports/summary.txt")
SUMMARY_METRICS = Path("reports/summary_metrics.json")
METRICS = Path("metrics")
TERMINAL_COLUMNS = 100
ANSWERS_SHOWN = 12
VARIATIONS_SHOWN = 4
CHANGES_NAMED = 5
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
    texts = {PAGE: page(results), SUMMARY: summary_markdown(results), TERMINAL_SUMMARY: summary_text(results)}
    numbers, rows = summary_metrics(results), result_rows(results)
    for path, text in texts.items():  # nothing is written before everything is made
        with atomic_file(root / path) as handle:
            handle.write(text)
    write_json(root / SUMMARY_METRICS, numbers)
    with atomic_folder(root / METRICS) as folder:
        for instance, tree in results.trees.items():
            write_json(folder / instance.path.relative_to(paths.STAGE_METRICS), tree)
    return rows


def page(results: Results) -> str:
    """The page as HTML: one file, everything escaped, nothing loaded from elsewhere."""
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    maps, seconds = charts.layer_maps(results), charts.timing_chart(results)
    return environment.get_template("page.html.j2").render(
        opening=charts.pareto_chart(results),
        choice=tables.choice_table(results, with_latency=True),
        sentences=sentences(results),
        domain=[tables.domain_table(results), tables.domain_details_table(results), answers_table(results)],
        tasks=[tables.task_table(results), tables.task_metrics_table(results)],
        sparsity=charts.pruning_chart(results),
        variants=[tables.compression_table(results, with_latency=True), latency_table(results)],
        pruned=tables.pruning_table(results),
        maps=[*([charts.layer_map_chart(maps)] if maps else []), *charts.map_weight_charts(results)],
        curves=charts.curve_charts(results),
        data=[corpus_table(results), filter_table(results), task_data_table(results), variations_table(results)],
        seconds=[seconds] if seconds else [],
        stages=stage_table(results),
        params=json.dumps(results.params.model_dump(mode="json"), indent=2, ensure_ascii=False),
        versions=versions_table(results),
    )


def summary_text(results: Results) -> str:
    """For a terminal, which shows the end: the long table first, the student to take last."""
    choice = tables.choice_table(results, with_latency=True)
    variants = tables.compression_table(results, with_latency=False, with_intervals=False)
    shown = (variants, tables.domain_table(results), tables.task_table(results), choice)
    wrapped = [textwrap.fill(sentence, TERMINAL_COLUMNS) for sentence in (choice.note, *sentences(results))]
    return "\n".join([*(table.text() for table in shown), *wrapped]) + "\n"


def summary_markdown(results: Results) -> str:
    """The results in Markdown, without timings and therefore reproducible."""
    shown = (
        tables.task_table, tables.domain_table, tables.domain_details_table, tables.task_metrics_table,
        partial(tables.compression_table, with_latency=False), tables.pruning_table,
    )  # fmt: skip
    choice = tables.choice_table(results, with_latency=False)
    bullets = "".join(f"- {sentence}\n" for sentence in sentences(results))
    first = f"# Results\n\n## {choice.title}\n\n{choice.markdown()}\n{bullets}"
    found = (make(results) for make in shown)
    return "\n".join([first, *(f"## {table.title}\n\n{table.markdown()}" for table in found)])


def sentences(results: Results) -> list[str]:
    """The findings, one sentence for each track, from measured numbers."""
    scores = domain_scores(results)["mean"].loc[list(results.params.domain.students)]
    perplexity, cloze = scores["domain.perplexity"], scores["cloze.all.top1"]
    domain = (
        f"Domain: {perplexity.idxmin()} has the lowest perplexity ({_listed(perplexity.sort_values(), 2)}), "
        f"{cloze.idxmax()} the highest cloze accuracy ({_listed(cloze.sort_values(ascending=False), 3)})."
    )
    found = task_scores(results)
    found = found[found["is_headline"]]
    names = [f"{at.student} on {task_name(results, at.task, at.split)}" for at in records(found) if at.collapsed]
    ending = f" Collapsed: {', '.join(names)}." if names else ""
    shares: dict[str, list[float]] = {}
    for at in records(found.dropna(subset=["above_majority"])):
        shares.setdefault(at.student, []).append(at.above_majority)
    if not shares:
        return [domain, f"Tasks: no teacher beats the majority class, so there is nothing to retain.{ending}"]
    means = {student: sum(values) / len(values) for student, values in shares.items()}
    best = max(means, key=means.__getitem__)
    if means[best] <= 0:
        return [domain, f"Tasks: no student beats the majority class.{ending}"]
    lead = f"{percent(means[best])} of the teacher's lead over the majority class (mean of {len(shares[best])})"
    return [domain, f"Tasks: {best} retains {lead}.{ending}"]


def _listed(values: pd.Series, digits: int) -> str:
    return "; ".join(f"{name} {fixed(value, digits)}" for name, value in values.items())


def summary_metrics(results: Results) -> dict[str, dict[str, dict[str, float | None]]]:
    """The few numbers that `dvc exp show` and `dvc metrics diff` list: track or task -> student -> numbers."""
    means = domain_scores(results)["mean"]
    keys = {"perplexity": "domain.perplexity", "cloze_accuracy": "cloze.all.top1", "agreement": "agreement.domain.top1"}
    tree: dict[str, dict[str, dict[str, Any]]] = {"domain": {}}
    for student in results.params.domain.students:
        tree["domain"][student] = {name: means.loc[student].get(key) for name, key in keys.items()}
    scores, systems = task_scores(results), onnx_systems(results)
    for at in records(scores[scores["is_headline"]].drop_duplicates(["task", "student"])):
        tree.setdefault(at.task, {})[at.student] = {"score": at.score, "retention_above_majority": at.above_majority}
    for (task, model), of in groups(systems[systems["variant"] != "fp32"], ["task", "model"]):
        if model in tree[task]:
            tree[task][model]["int8_worst"] = of["score"].min()
    for at in records(pruned_students(results)):
        tree[at.task][at.student][f"pruned{at.target}"] = at.score
    return {
        group: {name: {key: _rounded(value) for key, value in of.items()} for name, of in students.items()}
        for group, students in tree.items()
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else round(float(value), DIGITS)


def result_rows(results: Results) -> list[dict[str, Any]]:
    """One row for each system, means over seeds: `group` ("domain" or a task), `model` and its numbers."""
    means, pruned, scores = domain_scores(results)["mean"], pruned_students(results), task_scores(results)
    rows = [{"group": "domain", "model": name} | _known(of) for name, of in means.iterrows()]
    for _, of in scores[scores["is_headline"]].iterrows():
        group = of["task"] if of["split"] == TASKS[of["task"]].dev_splits[0] else f"{of['task']}_{of['split']}"
        rows.append({"group": group, "model": of["student"]} | _known(of))
    for _, of in onnx_systems(results).iterrows():
        rows.append({"group": of["task"], "model": f"{of['model']}/{of['variant']}"} | _known(of))
    for _, of in pruned.iterrows():
        rows.append({"group": of["task"], "model": f"{of['student']}_pruned{of['target']}"} | _known(of))
    return rows


def _known(of: pd.Series) -> dict[str, float]:
    """The numbers of a row that are known."""
    return {str(key): float(value) for key, value in of.items() if isinstance(value, (int, float)) and value == value}


def latency_table(results: Results) -> Table:
    """Median, 10th and 90th percentile of each latency."""
    found = results.select("latency")
    wide = found[found["split"] != ""].pivot_table(
        index=["task", "model", "variant", "split"], columns="metric", values="value", sort=False
    )
    rows = [
        (task_name(results, task), model, variant, split.replace("_", " "), *(fixed(ms, 2) for ms in times))
        for (task, model, variant, split), *times in wide.reindex(columns=["median", "p10", "p90"]).itertuples()
    ]
    settings = results.params.quantization.latency
    note = (
        f"On {settings.threads} threads. batch n: n rows of {settings.length_tokens} tokens; dev batch n: n dev rows, "
        "neighbors in length together, so that the spread is mostly one of lengths."
    )
    return Table("Latency", ("task", "model", "variant", "batch", "median ms", "p10", "p90"), rows, names=4, note=note)


def corpus_table(results: Results) -> Table:
    """Documents, words, sequences and tokens of both corpora."""
    general, domain = results.metrics("prepare_corpus"), results.metrics("filter_corpus")
    rows = []
    for corpus in ("general", "domain"):
        for split in ("train", "heldout"):
            tokens = results.metrics("tokenize", model=corpus, split=split)
            texts = (
                general.get(f"{what}.{split}") if corpus == "general" else domain.get(f"{split}.{what}.kept")
                for what in ("documents", "words")
            )
            sizes = (tokens.get("sequences"), tokens.get("tokens"))
            rows.append((corpus, split, *map(count, (*texts, *sizes)), percent(tokens.get("unknown_share"))))
    columns = ("corpus", "split", "documents", "words", "sequences", "tokens", "unknown")
    note = "Unknown: share of tokens that the vocabulary lacks."
    return Table(f"Corpus: {tables.corpus_name(results)} text", columns, rows, names=2, note=note)


def filter_table(results: Results) -> Table:
    """How many training documents hold each subject's terms, and how many of these were kept."""
    found, rows = results.metrics("filter_corpus"), []
    places = [("all", "", "train.documents")]
    for subject, terms in results.params.filter.subjects.items():
        places += [(subject, "any term", f"train.subjects.{subject}")]
        places += [(subject, term, f"train.subjects.{subject}.terms.{term}") for term in terms]
    for subject, term, key in places:
        tally = [found.get(f"{key}.{of}") for of in ("found", "kept", "kept_share")]
        rows.append((subject, term, count(tally[0]), count(tally[1]), percent(tally[2])))
    note = "Training documents in which the term occurs. A document can hold several terms and both subjects."
    return Table("Domain filter", ("subject", "term", "found", "kept", "share kept"), rows, names=2, note=note)


def task_data_table(results: Results) -> Table:
    """Examples of each task by split, and its augmented training rows."""
    rows = []
    for task in results.params.tasks.run:
        for key, size in results.metrics("prepare_task", task=task).items():
            if key.startswith("examples."):
                augmented = count(results.value("augment", "augmented", task=task)) if key.endswith(".train") else ""
                rows.append((task_name(results, task), key.removeprefix("examples."), count(size), augmented))
    return Table("Task data", ("task", "split", "examples", "augmented"), rows, names=2)


def stage_table(results: Results) -> Table:
    """Steps and last mean losses of each training stage; seconds and peak memory of what ran here."""
    rows, total = [], 0.0
    for instance in stage_instances(results.params):
        where = {"task": instance.task, "model": instance.model, "seed": instance.seed}
        found = results.metrics(instance.stage, **where)
        losses = [f"{k.removeprefix('loss.')} {v:.4g}" for k, v in found.items() if k.startswith("loss.")]
        steps = count(found["steps"]) if "steps" in found else ""
        time, memory = (fixed(found.get(key), 0) for key in ("seconds", "peak_memory_mb"))
        rows.append((instance.stage, instance.name, ", ".join(losses), steps, time, memory))
        total += found.get("seconds", 0.0)
    rows.append(("all", "", "", "", fixed(total, 0), ABSENT))
    columns = ("stage", "instance", "last losses", "steps", "seconds", "peak MB")
    note = f"Losses: means over the last logged steps. {ABSENT}: the stage did not run here, DVC restored its outputs."
    return Table("Stages", columns, rows, names=3, note=note)


def versions_table(results: Results) -> Table:
    """Revision, sources that are not committed, seeds, Python and packages."""
    commit = git("rev-parse", "HEAD", root=results.root)
    changed = git("status", "--porcelain", "--", *RESULT_PATHS, root=results.root).splitlines() if commit else []
    more = f" and {len(changed) - CHANGES_NAMED} more" if len(changed) > CHANGES_NAMED else ""
    rows = [
        ("git revision", commit or "none"),
        ("sources not committed", ", ".join(line[3:] for line in changed[:CHANGES_NAMED]) + more or "none"),
        ("seeds", ", ".join(map(str, results.params.seeds))),
        ("Python", platform.python_version()),
        ("machine", f"{platform.system()} {platform.machine()}"),
        *package_versions().items(),
    ]
    return Table("Versions", ("", "version"), rows, names=2)


def answers_table(results: Results) -> Table:
    """Some quiz questions, evenly taken, answered by the teacher and each domain student."""
    answers = {student: results.quiz_answers(student) for student in results.params.domain.students}
    asked = min((len(found) for found in answers.values()), default=0)
    rows = []
    for index in evenly(asked, ANSWERS_SHOWN):
        first = next(iter(answers.values()))[index]
        given = [first["teacher"], *(found[index]["student"] for found in answers.values())]
        rows.append((first["prompt"], first["answer"], *(_best_two(best, first["answer"]) for best in given)))
    columns = ("question", "answer", "teacher", *answers)
    note = "The two likeliest tokens with their probabilities; the right one is marked."
    return Table("Some answers", columns, rows, names=len(columns), note=note)


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
            rows.append((task_name(results, task), "variation" if position else "original", Markup(" ⁄ ").join(parts)))
    note = "Words that the original does not have there are marked. ⁄ separates the two sentences of a pair."
    return Table("Augmented rows", ("task", "", "text"), rows, names=3, note=note)


def marked(original: str, varied: str) -> Markup:
    """`varied` as HTML, escaped, with <mark> around the words that `original` does not have at that place."""
    before, after = original.split(), varied.split()
    parts = []
    for change, _, _, start, end in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if words := escape(" ".join(after[start:end])):
            parts.append(words if change == "equal" else Markup("<mark>{}</mark>").format(words))
    return Markup(" ").join(parts)


def evenly(length: int, limit: int) -> list[int]:
    """At most `limit` indices spread over `length`, the first and the last among them."""
    if length <= limit:
        return list(range(length))
    return [round(i * (length - 1) / (limit - 1)) for i in range(limit)]
