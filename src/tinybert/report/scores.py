"""What the report says of its systems, computed once from the frame: task scores, domain scores, ONNX variants."""

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pandas as pd

from tinybert.data.tasks import TASKS
from tinybert.evaluate.predictions import retention_interval
from tinybert.evaluate.scoring import METRICS
from tinybert.pipeline.paths import VARIANTS
from tinybert.report.results import SYSTEMS, Results

TOLERANCE = 0.01 + 1e-9  # what a smaller or faster student may score below the best; the rest is rounding


def records(frame: pd.DataFrame) -> Iterator[Any]:
    """The rows of a frame, each with its columns as attributes."""
    yield from frame.itertuples()


def groups(frame: pd.DataFrame, columns: str | list[str]) -> Iterator[tuple[Any, pd.DataFrame]]:
    """The values of the columns and the rows that have them, in the order of the frame."""
    yield from frame.groupby(columns, sort=False)


@lru_cache(maxsize=64)
def task_scores(results: Results) -> pd.DataFrame:
    """Scores of the task students, means over seeds.

    Returns:
        One row for each task, student, split and metric, the headline metric first: task, student, split, metric,
        is_headline, teacher, score, std (over seeds, NaN of one), majority, retention (plain), above_majority, and
        collapsed (how many seeds are). A retention whose denominator is not positive is NaN.
    """
    found = results.select("evaluate")
    found = found[found["split"].str.startswith("dev")].rename(columns={"model": "student"})
    place = ["task", "student", "split"]
    scores = found[found["variant"].isin(SYSTEMS)]
    mean, std = (
        scores.pivot_table(index=[*place, "metric"], columns="variant", values="value", aggfunc=how, sort=False)
        for how in ("mean", "std")
    )
    frame = mean.rename(columns={"student": "score"}).assign(std=std.get("student", math.nan)).reset_index()
    guess, teacher = frame["majority"], frame["teacher"]
    frame["retention"] = (frame["score"] / teacher).where(teacher > 0)
    frame["above_majority"] = ((frame["score"] - guess) / (teacher - guess)).where(teacher > guess)
    frame["is_headline"] = frame["metric"] == frame["task"].map(lambda task: TASKS[task].headline)
    collapsed = found[found["metric"] == "collapsed"].groupby(place)["value"].sum().rename("collapsed")
    return frame.join(collapsed, on=place)


@lru_cache(maxsize=64)
def retained(results: Results, task: str, student: str) -> tuple[dict[str, float] | None, int]:
    """The 95 % interval of the above-majority retention on the first dev split, and the number of rows.

    Returns:
        None where the teacher is within noise of the majority class; 0 rows where no predictions were kept.
    """
    files = [results.predictions("evaluate", f"{task}/{student}-{seed}") for seed in results.params.seeds]
    if not all(set(SYSTEMS) <= file.keys() for file in files):
        return None, 0
    reference = {name: files[0][name].predictions for name in ("teacher", "majority")}
    reference["labels"] = files[0]["student"].labels
    students = [file["student"].predictions for file in files]
    metric = METRICS[TASKS[task].headline]
    return retention_interval(metric, students, reference, seed=results.params.seed), len(students[0])


@lru_cache(maxsize=64)
def domain_scores(results: Results) -> pd.DataFrame:
    """Scores of the teacher, the domain students and an untrained student.

    Returns:
        One row for each model, its name the index. Columns ("mean", key) and ("std", key) over seeds; keys are
        <corpus>.perplexity, cloze.<subject>.top1, agreement.<corpus>.top1 and so on, and parameters.
    """
    students, found = results.params.domain.students, results.select("evaluate_domain")
    prefix = found["variant"].map(lambda variant: "agreement." if variant == "agreement" else "")
    found = found.assign(key=prefix + found["split"] + "." + found["metric"])
    first = found[(found["model"] == students[0]) & (found["seed"] == results.params.seed)]
    parts = {"teacher": first[first["variant"] == "teacher"]}
    parts |= {s: found[(found["model"] == s) & found["variant"].isin(["student", "agreement"])] for s in students}
    parts["untrained"] = first[first["variant"] == "untrained"]
    frame = pd.concat(parts, names=["name"]).pivot_table(
        index="name", columns="key", values="value", aggfunc=["mean", "std"], sort=False
    )
    distilled = [results.select("domain_distill", model=s, metric="parameters")["value"].iloc[0] for s in students]
    frame["mean", "parameters"] = [results.value("prepare_teacher", "parameters"), *distilled, distilled[0]]
    return frame


@lru_cache(maxsize=64)
def onnx_systems(results: Results) -> pd.DataFrame:
    """The ONNX variants of the task models.

    Returns:
        One row for each task, model and variant: these, student (the model before pruning), score, low and high (of
        the score minus FP32's), agreement, size_mb, gzip_mb, ms_<n>, p10_<n>, p90_<n> (a batch of n full rows), row_ms
        (a dev row in the largest batches); NaN where not measured. beats: the score is above the majority class's.
        sound: it also is a student's that did not collapse. best_size, best_speed: it beats, and is on the Pareto
        front of score against size_mb or row_ms.
    """
    tasks, models = results.params.tasks.run, results.params.quantization.models
    frame = pd.DataFrame([_system(results, t, m, variant) for t in tasks for m in models for variant in VARIANTS])
    frame["student"] = frame["model"].str.replace(r"_pruned\d+$", "", regex=True)
    guesses = {task: results.value("prepare_task", f"majority.{TASKS[task].headline}", task=task) for task in tasks}
    frame["beats"] = frame["score"] > frame["task"].map(guesses)
    scores = task_scores(results)
    fallen = scores.loc[scores["collapsed"] > 0, ["task", "student"]].agg("/".join, axis=1)
    has_fallen = (frame["task"] + "/" + frame["student"]).isin(fallen) | (frame["collapsed"] > 0)
    frame["sound"] = frame["beats"] & (frame["student"] != "teacher") & ~has_fallen
    for name, cost in (("best_size", "size_mb"), ("best_speed", "row_ms")):
        best = [index for _, of_task in frame.groupby("task") for index in pareto(of_task, cost)]
        frame[name] = frame.index.isin(best) & frame["beats"]
    return frame


def _system(results: Results, task: str, model: str, variant: str) -> dict[str, Any]:
    of = results.metrics("quantize", task=task, model=model, variant=variant)
    latency = results.metrics("latency", task=task, model=model, variant=variant)
    sizes = results.params.quantization.latency.batch_sizes
    dev_rows = results.value("latency", "dev_examples", task=task, model=model)
    keys = {"score": f"dev.{TASKS[task].headline}", "low": "difference_95.low", "high": "difference_95.high",
            "agreement": "agreement", "size_mb": "size_mb.raw", "gzip_mb": "size_mb.compressed"}  # fmt: skip
    times = {"ms": "median", "p10": "p10", "p90": "p90"}
    batch = max(sizes) if math.isnan(dev_rows) else max(1.0, min(max(sizes), dev_rows))
    return (
        {"task": task, "model": model, "variant": variant, "collapsed": of.get("collapsed", 0.0)}
        | {name: of.get(key, math.nan) for name, key in keys.items()}
        | {f"{at}_{n}": latency.get(f"batch_{n}.{name}", math.nan) for n in sizes for at, name in times.items()}
        | {"row_ms": latency.get(f"dev_batch_{max(sizes)}.median", math.nan) / batch}
    )


def pareto(frame: pd.DataFrame, cost: str) -> list[int]:
    """The index of the rows that no other equals or beats in score and cost, cheapest first; of equals the first."""
    ordered = frame.dropna(subset=[cost]).sort_values([cost, "score"], ascending=[True, False], kind="stable")
    best_cheaper = ordered["score"].cummax().shift(fill_value=-math.inf)
    return list(ordered.index[ordered["score"] > best_cheaper])


def best_students(frame: pd.DataFrame) -> dict[str, pd.Series]:
    """The sound systems of one task to take: of the "best" score, and the "smallest" and "fastest" within a point."""
    sound = frame[frame["sound"]].dropna(subset=["size_mb"])
    if sound.empty:
        return {}
    chosen = {"best": sound.sort_values(["score", "size_mb"], ascending=[False, True], kind="stable").iloc[0]}
    near = sound[sound["score"] >= chosen["best"]["score"] - TOLERANCE]
    for need, cost in (("smallest", "size_mb"), ("fastest", "row_ms")):
        ordered = near.dropna(subset=[cost]).sort_values([cost, "score"], ascending=[True, False], kind="stable")
        if len(ordered):
            chosen[need] = ordered.iloc[0]
    return chosen


def pruned_students(results: Results) -> pd.DataFrame:
    """One row for each pruned student: task, student, target (%), sparsity, score, unpruned, majority, raw_mb, gzip_mb.

    `unpruned` is the score of the global seed, from which it was pruned.
    """
    rows = []
    for instance in results.trees:
        if instance.stage == "prune":
            student, _, target = instance.model.rpartition("_pruned")
            task, of = TASKS[instance.task], results.metrics("prune", task=instance.task, model=instance.model)
            where = {"model": student, "seed": results.params.seed, "variant": "student", "split": task.dev_splits[0]}
            rows.append({
                "task": task.name, "student": student, "target": int(target), "sparsity": of["sparsity"],
                "score": of[f"dev.{task.headline}"],
                "unpruned": results.value("evaluate", task.headline, task=task.name, **where),
                "majority": results.value("prepare_task", f"majority.{task.headline}", task=task.name),
                "raw_mb": of.get("size_mb.raw", math.nan), "gzip_mb": of.get("size_mb.compressed", math.nan),
            })  # fmt: skip
    return pd.DataFrame(rows)
