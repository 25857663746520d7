"""What batches of like length cost in score and give in speed, against batches drawn at random.

`python -m benchmarks.length_buckets [--task cola] [--seeds 5]`, after `dvc repro`: distils the task student of
params.yaml through both phases with each seed, once with either order of rows, and scores it on the dev split. Both
see each row once an epoch, as many in a batch, and no row padded beyond the longest of its batch. The last line is the
ratio of the times.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import mean, median, stdev
from unittest.mock import patch

from tinybert import paths
from tinybert.corpus.tokenizer import load_tokenizer
from tinybert.evaluation.glue import evaluate
from tinybert.glue.encoding import read_examples
from tinybert.glue.tasks import TASKS, Task
from tinybert.params import Declared, load_params
from tinybert.training.result import save_trained
from tinybert.training.task_distill import distil

ORDERS = {"like length": 50, "random": 1}  # batches a pool; rows are sorted within a pool
POOL = "tinybert.training.order.BATCHES_A_POOL"


def distilled_score(params, task: Task, name: str, *, seed: int, pool: int) -> tuple[float, float]:
    """Dev score (headline metric) and seconds of both phases, with `pool` batches a pool."""
    started = time.perf_counter()
    settings = {"params": params, "task": task, "name": name, "seed": seed}
    with tempfile.TemporaryDirectory() as folder, patch(POOL, pool):
        between = Path(folder) / "intermediate"
        first = distil("intermediate", paths.student("general", name), **settings)
        save_trained(first.model, first.objective, between)
        student = distil("prediction", between, **settings).model
    seconds = time.perf_counter() - started
    path, limit = paths.glue(task.name) / f"{task.dev_splits[0]}.jsonl", params.glue[task.name].max_length_tokens
    dev = read_examples(path, task, load_tokenizer(paths.TOKENIZER), max_length_tokens=limit)
    return evaluate(student, dev, task)[task.headline], seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="cola", choices=TASKS)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    task = TASKS[options.task]
    keys = ("seed", "precision", "optimizer", "students", "glue.students", "glue.kept_answers_gb", f"glue.{task.name}")
    params = Declared(load_params(), keys)
    name = params.glue.students[0]
    print(f"{name} on {task.name}, {task.headline} on the dev split, {options.seeds} seeds")
    found: dict[str, list[tuple[float, float]]] = {order: [] for order in ORDERS}
    for seed in range(params.seed, params.seed + options.seeds):
        for order, pool in ORDERS.items():
            found[order].append(distilled_score(params, task, name, seed=seed, pool=pool))
            print(f"seed {seed}, {order}: {found[order][-1][0]:.3f}", flush=True)
    for order, runs in found.items():
        scores, seconds = zip(*runs, strict=True)
        print(f"{order:12}{mean(scores):7.3f} ± {stdev(scores):.3f}{mean(seconds):8.1f} s a run")
    differences = [mine[0] - other[0] for mine, other in zip(*found.values(), strict=True)]
    print(f"difference {mean(differences):+.3f} ± {stdev(differences) / len(differences) ** 0.5:.3f} (standard error)")
    print(f"ratio {median(other[1] / mine[1] for mine, other in zip(*found.values(), strict=True)):.2f}")


if __name__ == "__main__":
    main()
