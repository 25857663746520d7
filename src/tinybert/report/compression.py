"""The tables of compressed models: INT8 forms, their latencies, pruned students; and the curve of the latter."""

from tinybert.data.tasks import TASKS
from tinybert.report.charts import COLOURS, Chart, line_chart
from tinybert.report.fronts import fronts, row_ms
from tinybert.report.results import Results, latency_ms, majority_score, onnx_models, pruned_models
from tinybert.report.table import NO_BETTER, Table, fixed, percent, score, times


def compression_table(results: Results, *, with_latency: bool, with_intervals: bool) -> Table:
    """Score, agreement with FP32, size of each ONNX form, and whether it is on the front.

    with_latency: milliseconds too, which differ in each run. with_intervals: that of the score less FP32's, and, with
    latency, milliseconds a dev row.
    """
    batch_sizes = results.params.quantization.latency.batch_sizes if with_latency else ()
    with_rows = with_latency and with_intervals
    best: dict[str, dict[tuple[str, str], list[str]]] = {
        task: fronts(results, task) for task in results.params.tasks.run
    }
    rows = []
    for task, model, form, found in onnx_models(results):
        costs = [cost for cost in best[task].get((model, form), []) if with_latency or cost != "speed"]
        batches_ms = (latency_ms(results, task, model, form, f"batch_{batch_size}") for batch_size in batch_sizes)
        interval, reached = found["difference_95"], found["dev"][TASKS[task].headline]
        rows.append((
            task, model, form,
            score(reached),
            *([f"{signed(interval['low'])} to {signed(interval['high'])}"] if with_intervals else []),
            percent(found["agreement"]),
            *(fixed(found["size_mb"][kind], 2) for kind in ("raw", "compressed")),
            *(fixed(batch_ms, 1) for batch_ms in batches_ms),
            *([fixed(row_ms(results, task, model, form), 3)] if with_rows else []),
            ", ".join(costs) if reached > majority_score(results, task) else NO_BETTER,
        ))  # fmt: skip
    intervals = ("less FP32, 95 %",) if with_intervals else ()
    latency_columns = (*(f"ms × {batch_size}" for batch_size in batch_sizes), *(("ms a row",) if with_rows else ()))
    columns = ("task", "model", "form", "score", *intervals, "as FP32", "MB", "gzip MB", *latency_columns, "best by")
    note = _compression_note(results, with_latency=with_latency, with_intervals=with_intervals)
    return Table("ONNX models", columns, rows, names=3, note=note)


def _compression_note(results: Results, *, with_latency: bool, with_intervals: bool) -> str:
    note = (
        "As FP32: share of dev predictions equal to the FP32 form's. MB: 10^6 bytes. Best by size: no other system of "
        f"the task scores as well from a smaller file. {NO_BETTER}: no better than guessing the majority class."
    )
    if with_intervals:
        note += " Less FP32: 95 % interval of the difference, a paired bootstrap over dev rows."
    if with_latency:
        settings = results.params.quantization.latency
        note += (
            f" ms × n: median of batches of n × {settings.length_tokens} tokens on {settings.threads} threads. "
            "Best by speed: none scores as well in less time a row, on dev rows at their own lengths."
        )
    return note


def signed(difference: float) -> str:
    """A difference of scores with its sign; what rounds to nothing has none of its own."""
    return f"{round(difference, 3) + 0.0:+.3f}"


def latency_table(results: Results) -> Table:
    """Median and spread of each latency, and how many times faster than the teacher's FP32 form."""
    settings = results.params.quantization.latency
    kinds = {f"batch_{size}": (str(size), f"{settings.length_tokens} tokens") for size in settings.batch_sizes}
    kinds |= {f"dev_batch_{size}": (str(size), "dev rows") for size in settings.batch_sizes}
    rows = []
    for task, model, form, _ in onnx_models(results):
        for batch, names in kinds.items():
            spread = [latency_ms(results, task, model, form, batch, of) for of in ("median", "p10", "p90")]
            teacher = latency_ms(results, task, "teacher", "fp32", batch)
            rows.append((task, model, form, *names, *(fixed(ms, 2) for ms in spread), times(teacher, spread[0])))
    columns = ("task", "model", "form", "batch", "rows of", "median ms", "p10", "p90", "speed-up")
    note = (
        f"On {settings.threads} threads. Speed-up: over the teacher in FP32 on the same rows. Dev rows: "
        "neighbours in length together, so that their spread is mostly one of lengths."
    )
    return Table("Latency", columns, rows, names=5, note=note)


def pruning_table(results: Results) -> Table:
    """Pruned students: true sparsity, score beside the unpruned one, size of the weights file."""
    rows = []
    for task, student, target, found in pruned_models(results):
        metric = TASKS[task].headline
        dense = results.value("evaluate", f"{task}-{student}", "student", metric)
        rows.append((
            task, student, f"{target} %", percent(found["sparsity"]), score(dense), score(found["dev"][metric]),
            *(fixed(found["size_mb"][kind], 2) for kind in ("raw", "compressed")),
            NO_BETTER if found["dev"][metric] <= majority_score(results, task) else "",
        ))  # fmt: skip
    columns = ("task", "student", "target", "sparsity", "unpruned", "score", "MB", "gzip MB", "flag")
    note = (
        "Sparsity: share of exact zeros over all Linear weights. MB of the weights file: 10^6 bytes. "
        f"{NO_BETTER}: no better than guessing the majority class."
    )
    return Table("Pruned students", columns, rows, names=2, note=note)


def pruning_charts(results: Results) -> list[Chart]:
    """For each task the score of its students over their sparsity, from the unpruned one on."""
    curves: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for task, student, _, found in pruned_models(results):
        metric = TASKS[task].headline
        dense = results.value("evaluate", f"{task}-{student}", "student", metric)
        points = curves.setdefault(f"{task}: {metric} over sparsity", {}).setdefault(student, [(0.0, dense)])
        points.append((100 * found["sparsity"], found["dev"][metric]))
    charts = []
    for title, students in curves.items():
        lines = {name: (number % COLOURS, points) for number, (name, points) in enumerate(students.items())}
        charts.append(line_chart(title, lines, unit="%"))
    return charts
