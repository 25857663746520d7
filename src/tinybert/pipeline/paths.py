"""The paths of all files that stages exchange; dvc.yaml names the same paths."""

import os
from functools import partial
from pathlib import Path

PARAMS_CHECKED = Path("data/params_checked")
CODE_DIGESTS = Path("data/code")
TOKENIZER = Path("data/tokenizer")
TEACHER = Path("models/teacher")
DOMAIN_STUDENTS = Path("models/domain")
STAGE_METRICS = "reports/metrics"
INT8_VARIANTS = ("int8-dynamic", "int8-qdq", "int8-qoperator")
VARIANTS = ("fp32", *INT8_VARIANTS)  # of a model in ONNX


def project_root() -> Path:
    """The user's project: a queued experiment runs in a copy, and DVC_ROOT names the original."""
    return Path(os.environ.get("DVC_ROOT", "")).resolve()


def resolve(path: str) -> Path:
    """A path from params.yaml: as written in the user's project, and pointing back to it from a queued experiment."""
    root = project_root()
    return Path(path) if root == Path.cwd() else root / path


def corpus(name: str, split: str) -> Path:
    """Documents of a corpus ("general" or "domain"); split is "train" or "heldout"."""
    return Path(f"data/corpus/{name}/{split}.jsonl")


def sequences(name: str, split: str) -> Path:
    """Token sequences of the same documents."""
    return Path(f"data/sequences/{name}/{split}")


def task_rows(task: str) -> Path:
    """The splits of a task, one JSON-lines file each."""
    return Path(f"data/tasks/{task}")


def unlabeled(task: str) -> Path:
    """The unlabeled rows of a task, often none; apart from its splits, because only stage augment reads them."""
    return Path(f"data/unlabeled/{task}/rows.jsonl")


def trainings(task: str, student: str) -> Path:
    """The training settings of a student's task phases; its control reads only these, not the phases' losses."""
    return Path(f"data/trainings/{task}-{student}.json")


def augmented(task: str) -> Path:
    """The training rows of a task, each followed by its augmented copies, and its unlabeled rows."""
    return Path(f"data/augmented/{task}/train.jsonl")


def general_student(student: str) -> Path:
    """A student after general distillation."""
    return Path(f"models/general/{student}")


def domain_student(student: str, seed: int | str) -> Path:
    """A student after domain distillation."""
    return DOMAIN_STUDENTS / student / f"seed{seed}"


def intermediate(task: str, seed: int | str, student: str) -> Path:
    """A task student after the intermediate phase."""
    return Path(f"models/intermediate/{task}/{student}/seed{seed}")


def task_model(task: str, seed: int | str, model: str) -> Path:
    """A finished task model: the teacher, a student or a pruned student."""
    return Path(f"models/task/{task}/{model}/seed{seed}")


def onnx(task: str, model: str) -> Path:
    """The ONNX variants of a task model, one file each."""
    return Path(f"models/onnx/{task}/{model}")


def final(track: str, model: str) -> Path:
    """The folder of a final model; `track` is a task or "domain"."""
    return Path(f"models/final/{track}/{model}")


def _of_instance(root: str, ending: str, stage: str, instance: str = "") -> Path:
    return Path(root, stage, f"{instance}.{ending}") if instance else Path(root, f"{stage}.{ending}")


# Files of a stage instance. The report stage collects all metrics in metrics/, which is in git. Timings are no declared
# output, because they differ in each run.
metrics = partial(_of_instance, STAGE_METRICS, "json")
curve = partial(_of_instance, "reports/curves", "csv")  # the loss curve
timing = partial(_of_instance, "reports/timings", "json")  # duration and memory
predictions = partial(_of_instance, "reports/predictions", "json")  # of its models, for each row


def quiz_answers(student: str, seed: int | str) -> Path:
    """The cloze probe's answers of the teacher and a student side by side."""
    return Path(f"reports/quiz_answers/{student}-{seed}.json")


def latency(task: str, model: str) -> Path:
    """Latencies of the ONNX variants of a task model."""
    return Path(f"reports/latency/{task}-{model}.json")


def teacher_cache() -> Path:
    """Cached outputs of task teachers, shared by phases, stages and experiments; not an output, not in git."""
    return resolve(".teacher_cache")


def checkpoints(stage: str, items: dict[str, str]) -> Path:
    """Checkpoints that let a killed stage instance, queued or not, resume; not an output, not in git."""
    return resolve("/".join([".checkpoints", stage, *items.values()]))
