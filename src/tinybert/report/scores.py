"""What the report says of its systems, computed once from the frame: task scores, domain scores, ONNX variants."""

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pandas as pd

from tinybert.data.tasks import TASKS
from tinybert.evaluate.predictions import retention_interval
from tinybert.evaluate.scoring import METRICS, retention
from tinybert.pipeline.paths import VARIANTS
from tinybert.report.results import Results

TOLERANCE = 0.01 + 1e-9  # what a smaller or faster student may score below the best; the rest is rounding
SYSTEMS = ("teacher", "student", "majority")


def records(frame: pd.DataFrame) -> Iterator[Any]:
    """The rows of a frame, each with its columns as attributes."""
    yield from frame.itertuples(index=False)


def groups(frame: pd.DataFrame, columns: list[str]) -> Iterator[tuple[Any, pd.DataFrame]]:
    """The values of the columns and the rows that have them, in the order of the frame."""
    yield from frame.groupby(columns, sort=False)


@lru_cache(maxsize=64)
def task_scores(results: Results) -> pd.DataFrame:
    """Scores of the task students, means over seeds.

    Returns:
        One row for each task, student, split and metric, the headline metric first: task, student, split, metric,
        is_headline, teacher, score, std (over seeds, NaN of one), majority, retention (plain), above_majority, and
        collapsed (how many seeds are).
    """
    rows = []
    for (task, student, split), found in groups(results.select("evaluate"), ["task", "model", "split"]):
        if split not in TASKS[task].dev_splits:  # parameters and timings
            continue
        collapsed = found.loc[found["metric"] == "collapsed", "value"].sum()
        for metric in TASKS[task].metrics:
            of = {s: found.loc[(found["variant"] == s) & (found["metric"] == metric), "value"] for s in SYSTEMS}
            teacher, ours, guess = (of[system].mean() for system in SYSTEMS)
            shares = retention(ours, teacher, guess)
            rows.append({
                "task": task, "student": student, "split": split, "metric": metric,
                "is_headline": metric == TASKS[task].headline, "teacher": teacher, "score": ours,
                "std": of["student"].std(), "majority": guess, "retention": shares["plain"],
                "above_majority": shares["above_majority"], "collapsed": int(collapsed),
            })  # fmt: skip
    return pd.DataFrame(rows).astype({"retention": float, "above_majority": float})


@lru_cache(maxsize=64)
def retained(results: Results, task: str, student: str) -> tuple[dict[str, float] | None, int]:
    """The 95 % interval of the above-majority retention on the first dev split, and the number of rows.

    Returns:
        None where the teacher is within noise of the majority class; 0 rows where no predictions were kept.
    """
    files = [results.predictions("evaluate", f"{task}-{student}-{seed}") for seed in results.params.seeds]
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
    of_seeds = {name: part.groupby("key", sort=False)["value"] for name, part in parts.items()}
    frame = pd.DataFrame({name: values.agg(["mean", "std"]).unstack() for name, values in of_seeds.items()}).T
    distilled = [results.select("domain_distill", model=s, metric="parameters")["value"].iloc[0] for s in students]
    frame["mean", "parameters"] = [results.value("prepare_teacher", "parameters"), *distilled, distilled[0]]
    return frame


@lru_cache(maxsize=64)
def onnx_systems(results: Results) -> pd.DataFrame:
    """The ONNX variants of the task models.

    Returns:
        One row for each task, model and variant: these, score, low and high (of the score minus FP32's),
        agreement, size_mb, gzip_mb, ms_<n> (a batch of n full rows), row_ms (a dev row in the largest batches); NaN
        where not measured. beats: the score is above the majority class's. sound: it also is a student's that did not
        collapse. best_size, best_speed: it beats, and is on the Pareto front of score against size_mb or row_ms.
    """
    rows = []
    for task in results.params.tasks.run:
        for model in results.params.quantization.models:
            rows += [_system(results, task, model, variant) for variant in VARIANTS]
    frame = pd.DataFrame(rows)
    scores = task_scores(results)
    fallen = scores[scores["collapsed"] > 0]
    fallen_systems = set(zip(fallen["task"], fallen["student"], strict=True))
    frame["student"] = frame["model"].str.replace(r"_pruned\d+$", "", regex=True)
    guesses = {
        task: results.value("prepare_task", f"majority.{TASKS[task].headline}", task=task)
        for task in results.params.tasks.run
    }
    frame["beats"] = frame["score"] > frame["task"].map(guesses)
    is_fallen = [pair in fallen_systems for pair in zip(frame["task"], frame["student"], strict=True)]
    is_student = frame["student"] != "teacher"
    frame["sound"] = frame["beats"] & is_student & (frame["collapsed"] == 0) & ~pd.Series(is_fallen, index=frame.index)
    for name, cost in (("best_size", "size_mb"), ("best_speed", "row_ms")):
        best = [index for _, of_task in frame.groupby("task") for index in pareto(of_task, cost)]
        frame[name] = frame.index.isin(best) & frame["beats"]
    return frame


def _system(results: Results, task: str, model: str, variant: str) -> dict[str, Any]:
    of = results.metrics("quantize", task=task, model=model, variant=variant)
    latency = results.select("latency", task=task, model=model)
    medians = latency[(latency["variant"] == variant) & (latency["metric"] == "median")]
    ms = medians.set_index("split")["value"].to_dict()
    sizes = results.params.quantization.latency.batch_sizes
    measured = latency.loc[latency["metric"] == "dev_examples", "value"].tolist()
    keys = {"score": f"dev.{TASKS[task].headline}", "low": "difference_95.low", "high": "difference_95.high",
            "agreement": "agreement", "size_mb": "size_mb.raw", "gzip_mb": "size_mb.compressed"}  # fmt: skip
    return (
        {"task": task, "model": model, "variant": variant, "collapsed": of.get("collapsed", 0.0)}
        | {name: of.get(key, math.nan) for name, key in keys.items()}
        | {f"ms_{size}": ms.get(f"batch_{size}", math.nan) for size in sizes}
        | {"row_ms": ms.get(f"dev_batch_{max(sizes)}", math.nan) / max(1.0, min([max(sizes), *measured]))}
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
    """One row for each pruned student: task, student, target (%), sparsity, score, unpruned, raw_mb, compressed_mb."""
    params, rows = results.params, []
    for task in params.tasks.run:
        for student in params.tasks.students:
            headline, split = TASKS[task].headline, TASKS[task].dev_splits[0]
            where = {"task": task, "model": student, "seed": params.seed, "variant": "student", "split": split}
            unpruned = results.value("evaluate", headline, **where)
            for target in params.pruning.sparsities_percent:
                of = results.metrics("prune", task=task, model=f"{student}_pruned{target}")
                sizes = {f"{kind}_mb": of.get(f"size_mb.{kind}", math.nan) for kind in ("raw", "compressed")}
                rows.append({"task": task, "student": student, "target": target, "sparsity": of["sparsity"],
                             "score": of[f"dev.{headline}"], "unpruned": unpruned} | sizes)  # fmt: skip
    return pd.DataFrame(rows)
