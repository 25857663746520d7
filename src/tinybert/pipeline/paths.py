"""Where the stages keep what they exchange; dvc.yaml names the same paths."""

import os
from pathlib import Path

PARAMS_CHECKED = Path("data/params_checked")
TOKENIZER = Path("data/tokenizer")
TEACHER = Path("models/teacher")
STAGE_METRICS = "reports/metrics"


def project_root() -> Path:
    """The project as the user has it: a queued experiment runs in a copy elsewhere, and DVC_ROOT names the original."""
    return Path(os.environ.get("DVC_ROOT", "")).resolve()


def given(path: str) -> Path:
    """A path that params.yaml gives: relative ones start at the project as the user has it.

    In that project they stay as they are written; in the copy of a queued experiment, where files outside of git are
    missing, they lead back to it.
    """
    root = project_root()
    return Path(path) if root == Path.cwd() else root / path


def corpus(name: str, split: str) -> Path:
    """Documents of the general or domain corpus, train or heldout."""
    return Path(f"data/corpus/{name}/{split}.jsonl")


def sequences(name: str, split: str) -> Path:
    """Token blocks of the same."""
    return Path(f"data/sequences/{name}/{split}")


def task_rows(task: str) -> Path:
    """The splits of a task, one JSON-lines file each."""
    return Path(f"data/tasks/{task}")


def augmented(task: str) -> Path:
    """The training rows of a task with their variations."""
    return Path(f"data/augmented/{task}/train.jsonl")


def student(stage: str, name: str) -> Path:
    """A student after its general or domain distillation."""
    return Path(f"models/{stage}/{name}")


def intermediate(task: str, student: str) -> Path:
    """A task student between the two phases."""
    return Path(f"models/intermediate/{task}/{student}")


def task_model(task: str, model: str) -> Path:
    """A task model: the teacher, a student, or a pruned student; all alike to evaluate and quantize."""
    return Path(f"models/task/{task}/{model}")


def final(track: str, model: str) -> Path:
    """All that a finished model ships: weights, tokenizer, card; of a task model also its ONNX forms.

    track: a task, or domain.
    """
    return Path(f"models/final/{track}/{model}")


def metrics(stage: str, instance: str = "") -> Path:
    """The metrics of a stage instance; the report stage brings all of them together in metrics/, which is in git."""
    return _instance_file(STAGE_METRICS, stage, instance, "json")


def curve(stage: str, instance: str = "") -> Path:
    """The loss curve of a stage instance."""
    return _instance_file("reports/curves", stage, instance, "csv")


def timing(stage: str, instance: str = "") -> Path:
    """How long a stage instance took; no declared output, for it differs in each run."""
    return _instance_file("reports/timings", stage, instance, "json")


def answers(student: str) -> Path:
    """The quiz, answered side by side by the teacher and a student."""
    return Path(f"reports/answers/{student}.json")


def predictions(stage: str, instance: str) -> Path:
    """What a stage instance's models answered to the dev rows, or to held-out text and quiz."""
    return _instance_file("reports/predictions", stage, instance, "json")


def latency(task: str, model: str) -> Path:
    """Latencies of the ONNX forms of a task model."""
    return Path(f"reports/latency/{task}-{model}.json")


def teacher_cache_folder() -> Path:
    """Where task teachers' answers are kept between phases, stages and experiments; no output, and not in git."""
    return given(".teacher_cache_folder")


def checkpoints(stage: str, items: dict[str, str]) -> Path:
    """Where a stage instance that trains keeps what it needs to go on after a kill; no output, and not in git.

    In the project as the user has it, so that a queued experiment finds it again.
    """
    return given("/".join([".checkpoints", stage, *items.values()]))


def _instance_file(root: str, stage: str, instance: str, ending: str) -> Path:
    return Path(root, stage, f"{instance}.{ending}") if instance else Path(root, f"{stage}.{ending}")
