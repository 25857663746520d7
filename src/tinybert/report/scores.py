"""What the report says of its systems, computed once from the frame: task scores, domain scores, ONNX variants."""

import math
from functools import lru_cache

import pandas as pd

from tinybert.evaluate.scoring import METRICS, choose_variant, read_predictions, retention_interval
from tinybert.pipeline import paths
from tinybert.pipeline.paths import VARIANTS
from tinybert.report.results import SYSTEMS, Results

NAMES = {"tfidf": "TF-IDF", "static": "static embeddings"}
TOLERANCE = 0.01 + 1e-9  # what a smaller or faster student may score below the best; the rest is rounding
# Name in summary_metrics.json -> key of `domain_scores`.
DOMAIN_KEYS = {
    "perplexity": "domain.perplexity",
    "cloze_accuracy": "cloze.all.top1",
    "agreement": "agreement.domain.top1",
}
PLACES = ["task", "split", "metric"]
STAGES = ("majority", "baselines", "finetune_student", "evaluate", "teacher")  # what wrote a score, in order of display


def wide(found: pd.DataFrame, index: list[str]) -> pd.DataFrame:
    """Rows of the tidy frame with a column for each metric; "score" is the task's headline metric."""
    found = found.assign(metric=found["metric"].mask(found["is_headline"], "score"))
    return found.pivot_table(index=index, columns="metric", values="value", sort=False)


@lru_cache(maxsize=64)
def task_systems(results: Results) -> pd.DataFrame:
    """The scores, means over seeds, and the costs of all systems on the tasks.

    Returns:
        One row for each system, task, split and metric, the headline metric first: task, student, split, metric,
        is_headline, teacher, score, std (over seeds, NaN of one), majority, retention (plain), above_majority, and
        collapsed (how many seeds are). A retention whose denominator is not positive is NaN. stage, which wrote them,
        "majority" or "teacher"; model, the name to show; parameters, flops (of a dev row, mean) and row_ms (of the FP32
        ONNX variant), NaN if not known. The rows of one task, split and metric: majority class, linear baselines,
        fine-tuned students, students, teacher.
    """
    found = results.frame[results.frame["stage"].isin(STAGES) & results.frame["split"].str.startswith("dev")]
    found = found.rename(columns={"model": "student"})
    place = ["stage", "task", "student", "split"]
    scores = found[found["variant"].isin(SYSTEMS)].pivot_table(
        index=[*place, "metric", "is_headline"], columns="variant", values="value", aggfunc=["mean", "std"], sort=False
    )
    frame = scores[["mean"]].droplevel(0, axis="columns").rename(columns={"student": "score"})
    frame = frame.assign(std=scores.get(("std", "student"), math.nan)).reset_index()
    score, guess, teacher = frame["score"], frame["majority"], frame["teacher"]
    frame["retention"] = (score / teacher).where(teacher > 0)
    frame["above_majority"] = ((score - guess) / (teacher - guess)).where(teacher > guess)
    collapsed = found[found["metric"] == "collapsed"].groupby(place)["value"].sum().rename("collapsed")
    frame = frame.join(collapsed, on=place)
    unknown = dict.fromkeys(("std", "retention", "above_majority"), math.nan)
    first = frame[frame["stage"] == "evaluate"].drop_duplicates(PLACES).assign(**unknown, collapsed=0)
    references = [first.assign(stage=at, student=at, score=first[at]) for at in ("majority", "teacher")]
    frame = pd.concat([frame, *references])
    frame = frame.sort_values("stage", key=lambda stages: stages.map(STAGES.index), kind="stable")
    frame = pd.concat([of for _, of in frame.groupby(PLACES, sort=False)], ignore_index=True)
    is_tuned = frame["stage"] == "finetune_student"
    frame["model"] = frame["student"].replace(NAMES).mask(is_tuned, frame["student"] + " fine-tuned")
    costs = results.frame[results.frame["split"] == "costs"].rename(columns={"model": "student"})
    costs.loc[costs["variant"] == "teacher", ["stage", "student"]] = "teacher"
    times = onnx_systems(results).query("variant == 'fp32'").set_index(["task", "model"])["row_ms"]
    place = ["stage", "task", "student"]
    frame = frame.join(wide(costs, place), on=place).join(times, on=["task", "student"])
    return frame.assign(row_ms=frame["row_ms"].mask(is_tuned))  # the fine-tuned are not exported


def retained(results: Results, stage: str, task: str, model: str) -> tuple[dict[str, float] | None, int, int]:
    """How sure the above-majority retention of a task student or a baseline is, by the stage that scored it.

    Returns:
        Its 95 % interval on the first dev split, None if the teacher is within noise of the majority class; the number
        of rows, 0 if no predictions were kept; the number of seeds.
    """
    wanted = stage, task, model
    names = [paths.predictions(stage, at.name) for at in results.trees if (at.stage, at.task, at.model) == wanted]
    files = [results.read(path, lambda path: read_predictions(path.read_text("utf-8")), {}) for path in names]
    if not all(set(SYSTEMS) <= file.keys() for file in files):
        return None, 0, 0
    reference = {name: files[0][name].predictions for name in ("teacher", "majority")}
    reference["labels"] = files[0]["student"].labels
    students = [file["student"].predictions for file in files]
    interval = retention_interval(METRICS[results.tasks[task].headline], students, reference, seed=results.params.seed)
    return interval, len(students[0]), len(students)


@lru_cache(maxsize=64)
def domain_scores(results: Results) -> pd.DataFrame:
    """Scores of the teacher, the domain students and an untrained student.

    Returns:
        One row for each model, its name the index. Columns ("mean", key) and ("std", key) over seeds; keys are
        <corpus>.perplexity, cloze.<subject>.top1, agreement.<corpus>.top1 and so on, and parameters. No rows without
        domain students.
    """
    students, found = results.params.domain.students, results.select("evaluate_domain")
    if not students:
        return pd.DataFrame(columns=pd.MultiIndex.from_product([["mean", "std"], DOMAIN_KEYS.values()]), dtype=float)
    is_student = found["variant"].isin(["student", "agreement"])
    # All students are compared with one teacher and one untrained model.
    is_first = (found["model"] == students[0]) & (found["seed"] == results.params.seed)
    prefix = found["variant"].map({"agreement": "agreement."}).fillna("")
    names = found["model"].where(is_student, found["variant"])
    found = found.assign(key=prefix + found["split"] + "." + found["metric"], name=names)[is_student | is_first]
    frame = found.pivot_table(index="name", columns="key", values="value", aggfunc=["mean", "std"], sort=False)
    frame = frame.reindex(["teacher", *students, "untrained"])
    parameters = [results.value("domain_distill", model=model, metric="parameters") for model in students]
    teacher = results.value("prepare_teacher", metric="parameters")
    frame["mean", "parameters"] = [teacher, *parameters, parameters[0]]
    return frame


@lru_cache(maxsize=64)
def onnx_systems(results: Results) -> pd.DataFrame:
    """The ONNX variants of the task models.

    Returns:
        One row for each task, model and variant: these, student (the model before pruning), the metrics of stage
        quantize and batch_<n>.median, .p10 and .p90 (ms of n full rows), score, row_ms (ms of a dev row in the largest
        batches); NaN if not measured. chosen: by the gate. beats: the score is above the majority class's. sound:
        beats, and a student that did not collapse. best_size, best_speed: beats, and on the Pareto front of score
        against size or row_ms.
    """
    largest = max(results.params.quantization.latency.batch_sizes)
    batch_ms = f"dev_batch_{largest}.median"
    frame = wide(pd.concat([results.select("quantize"), results.select("latency")]), ["task", "model", "variant"])
    frame = frame.reindex(columns=frame.columns.union([batch_ms, "dev_examples", "collapsed"], sort=False))
    rows = frame["dev_examples"].groupby(["task", "model"]).transform("max").clip(upper=largest)
    frame = frame.assign(row_ms=frame[batch_ms] / rows).drop(columns=[batch_ms, "dev_examples"]).reset_index()
    frame = frame[frame["variant"].isin(VARIANTS)].reset_index(drop=True)
    drop = results.params.quantization.max_score_drop
    chosen = {
        (at.task, at.model, choose_variant(tree, results.tasks[at.task].headline, drop))
        for at, tree in results.trees.items()
        if at.stage == "quantize"
    }
    frame["chosen"] = [tuple(at) in chosen for at in frame[["task", "model", "variant"]].values]
    frame["student"] = frame["model"].str.replace(r"_pruned\d+$", "", regex=True)
    frame["beats"] = frame["score"] > frame["task"].map(majority_scores(results))
    fallen = results.select("evaluate", metric="collapsed").query("value > 0").set_index(["task", "model"]).index
    has_fallen = frame.set_index(["task", "student"]).index.isin(fallen) | (frame["collapsed"] > 0)
    frame["sound"] = frame["beats"] & (frame["student"] != "teacher") & ~has_fallen
    for name, cost in (("best_size", "size_mb.raw"), ("best_speed", "row_ms")):
        best = [index for _, of_task in frame.groupby("task") for index in pareto(of_task, cost)]
        frame[name] = frame.index.isin(best) & frame["beats"]
    return frame


def pruned_students(results: Results) -> pd.DataFrame:
    """Scores of the pruned students.

    Returns:
        One row for each: task, student, target (%), the metrics of stage prune, score, unpruned (the score of the
        global seed, from which it was pruned), and majority.
    """
    frame = wide(results.select("prune", variant=""), ["task", "model"]).reset_index()
    frame[["student", "target"]] = frame["model"].str.rsplit("_pruned", n=1, expand=True)
    whole = results.select("evaluate", seed=results.params.seed, variant="student", is_headline=True)
    unpruned = whole.drop_duplicates(["task", "model"]).set_index(["task", "model"])["value"].rename("unpruned")
    return frame.join(unpruned, on=["task", "student"]).assign(majority=frame["task"].map(majority_scores(results)))


def majority_scores(results: Results) -> pd.Series:
    """The majority class's headline score on the first dev split by task."""
    return results.select("prepare_task", is_headline=True).set_index("task")["value"]


def pareto(frame: pd.DataFrame, cost: str) -> list[int]:
    """The index of the rows that no other equals or beats in score and cost, cheapest first; of equals the first."""
    ordered = frame.dropna(subset=[cost]).sort_values([cost, "score"], ascending=[True, False], kind="stable")
    best_cheaper = ordered["score"].cummax().shift(fill_value=-math.inf)
    return list(ordered.index[ordered["score"] > best_cheaper])


def best_students(frame: pd.DataFrame) -> dict[str, pd.Series]:
    """The sound systems of one task to use: the "best" score, and the "smallest" and "fastest" within a point of it."""
    best = frame[frame["sound"]].sort_values(["score", "size_mb.raw"], ascending=[False, True], kind="stable")
    chosen = {"best": best}
    for need, cost in (("smallest", "size_mb.raw"), ("fastest", "row_ms")):
        near = best[best["score"] >= best["score"].max() - TOLERANCE].dropna(subset=[cost])
        chosen[need] = near.sort_values([cost, "score"], ascending=[True, False], kind="stable")
    return {need: ordered.iloc[0] for need, ordered in chosen.items() if len(ordered)}
