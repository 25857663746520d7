"""What speed costs in score: bfloat16 with cached teacher outputs against float32 with a live teacher.

`python -m benchmarks.speed_cost [--task cola] [--seeds 3] [--epochs 3 2]`, after `dvc repro`: distills the task student
of params.yaml in both phases with each seed and either way, and scores it on the dev split. Both see the same
rows in the same order. Printed are the 95 % interval of the difference, a paired bootstrap over seeds and dev rows,
and last the ratio of the times; outputs that an earlier run cached are used, so it is the ratio of further runs.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, median, stdev
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.ours import best_precision
from tinybert.config.load import PARAMS, check_params, read_yaml
from tinybert.config.schema import Params
from tinybert.config.students import training_of
from tinybert.config.tasks import TASKS, Task
from tinybert.data.encoding import Encoded, encode, read_rows
from tinybert.data.tokenizer import load_tokenizer
from tinybert.distill.batches import predict
from tinybert.distill.loop import Settings, train
from tinybert.distill.metric_log import TrainRun
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.distill.teacher_cache import CachedTeacher, TeacherCache
from tinybert.evaluate.scoring import METRICS, paired_interval, score
from tinybert.models.bert import SequenceClassifier
from tinybert.models.model_folders import Classifier, load_bert, load_classifier, load_task_model, save_model
from tinybert.pipeline import paths
from tinybert.pipeline.files import read_jsonl

CACHE_GB = 10.0


class TrialRun(NamedTuple):
    """A student's predictions on the dev split, its headline score, and the seconds that both phases took."""

    predictions: np.ndarray
    score: float
    seconds: float


def ways(task: Task, epochs: list[int] | None) -> dict[str, Params]:
    """params.yaml as it is trained fast, and plainly; with other epochs of the two phases if they are given."""
    tree = read_yaml(PARAMS)
    for phase, number in zip(("intermediate", "prediction"), epochs or (), strict=False):
        tree["tasks"][task.name][phase] |= {"epochs": number, "max_steps": None}
    speeds = {"fast": (best_precision(), CACHE_GB), "plain": ("float32", 0.0)}
    return {
        name: check_params(tree | {"precision": precision, "tasks": tree["tasks"] | {"teacher_cache_gb": cache_gb}})
        for name, (precision, cache_gb) in speeds.items()
    }


def distilled(params: Params, task: Task, seed: int) -> TrialRun:
    """Both phases with one seed."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        between = Path(folder) / "intermediate"
        general = paths.general_student(params.tasks.students[0])
        student, loss = distill_phase("intermediate", params, task, seed, general)
        between.mkdir()
        save_model(student, between)
        loss.save(between)
        student, _ = distill_phase("prediction", params, task, seed, between)
    seconds, dev = time.perf_counter() - started, dev_rows(params, task)
    predictions = predict(student, dev, task)
    return TrialRun(predictions, score(task, predictions, dev.labels)[task.headline], seconds)


def distill_phase(
    phase: str, params: Params, task: Task, seed: int, source: Path
) -> tuple[Classifier, DistillationLoss]:
    """A phase as its stage runs it with the default, from the student in `source`."""
    name, settings = params.tasks.students[0], params.tasks[task.name]
    torch.manual_seed(seed)
    is_new = phase == "intermediate"
    student = load_classifier(source, task) if is_new else load_task_model(source)
    teacher = load_bert(SequenceClassifier, paths.task_model(task.name, params.seed, "teacher"))
    limit = settings.max_length_tokens
    config = DistillationConfig.of(params.students[name], phase, seed=seed, length_tokens=limit)
    loss = DistillationLoss(config, student.config, teacher.config)
    loss.load(source)
    training = training_of(params, name, phase, task=task.name)
    if loss.weights and training.epochs:
        augmented = list(read_jsonl(paths.augmented(task.name)))
        rows = encode(augmented, task, load_tokenizer(paths.TOKENIZER), max_length_tokens=limit)
        cache = TeacherCache(paths.teacher_cache(), int(params.tasks.teacher_cache_gb * 1e9))
        cached = CachedTeacher(teacher, loss, rows, cache)
        batches = cached.student_batches(rows, task, batch_size=training.batch_size, seed=seed)
        how = Settings(training, params.optimizer, seed, params.precision)
        train(student, loss, batches, how, teacher=cached, run=TrainRun(phase))
    return student, loss


def dev_rows(params: Params, task: Task) -> Encoded:
    """The rows that all are scored on."""
    limit = params.tasks[task.name].max_length_tokens
    rows = read_rows(task, task.dev_splits[0])
    return encode(rows, task, load_tokenizer(paths.TOKENIZER), max_length_tokens=limit)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="cola", choices=TASKS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, nargs=2, metavar=("INTERMEDIATE", "PREDICTION"))
    options = parser.parse_args()
    task = TASKS[options.task]
    speeds = ways(task, options.epochs)
    params = speeds["fast"]
    student = params.students[params.tasks.students[0]]
    if student.init.per_task or params.tasks.vocabulary_tokens or getattr(student.intermediate, "pruning", None):
        sys.exit("params.yaml: per_task, vocabulary_tokens or phase-1 pruning is set; fix: use the default params")
    dev, training = dev_rows(params, task), params.tasks[task.name]
    print(
        f"{params.tasks.students[0]} on {task.name}: {training.intermediate.epochs} and {training.prediction.epochs} "
        f"epochs, {options.seeds} seeds; fast: {params.precision}; {task.headline} on {len(dev)} dev rows"
    )
    runs: dict[str, list[TrialRun]] = {name: [] for name in speeds}
    for number in range(options.seeds):
        seed, names = params.seed + number, list(speeds)
        for name in names if number % 2 else reversed(names):  # neither is always the first
            runs[name].append(distilled(speeds[name], task, seed))
            print(f"seed {seed}, {name}: {runs[name][-1].score:.3f} in {runs[name][-1].seconds:.0f} s", flush=True)
    report(runs, task, dev, seed=params.seed)


def report(runs: dict[str, list[TrialRun]], task: Task, dev: Encoded, *, seed: int) -> None:
    """Prints means, the interval of their difference, and the ratio."""
    for name, its_runs in runs.items():
        scores = [run.score for run in its_runs]
        spread = f" ± {stdev(scores):.3f}" if len(scores) > 1 else ""
        print(f"{name:6}{mean(scores):7.3f}{spread}{mean(run.seconds for run in its_runs):8.1f} s a run")
    fast, plain = ([run.predictions for run in runs[name]] for name in ("fast", "plain"))
    interval = paired_interval(METRICS[task.headline], fast, plain, [dev.labels] * len(fast), seed=seed)
    difference = mean(run.score for run in runs["fast"]) - mean(run.score for run in runs["plain"])
    print(f"difference {difference:+.3f}, 95 % interval {interval['low']:+.3f} to {interval['high']:+.3f}")
    pairs = zip(runs["fast"], runs["plain"], strict=True)
    print(f"ratio {median(slow.seconds / quick.seconds for quick, slow in pairs):.2f}")


if __name__ == "__main__":
    main()
