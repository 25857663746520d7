"""Plain params, and a copy of the project in a temporary folder with a params.yaml that is quick to run."""

import copy
import json
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import yaml

from tests.support import fork_server
from tests.support.root import ROOT
from tinybert.config.load import read_yaml

SHORT = {"epochs": 1, "max_steps": 4, "batch_size": 8, "learning_rate": 1e-3}
WHOLE_EPOCHS = SHORT | {"epochs": 2, "batch_size": 32}  # so few rows; the teacher's outputs are cached then
TASK = {"data": None, "max_length_tokens": 32, "augmented_copies": 1, "train_fraction": 0.9, "finetuned_teacher": None}
TASK |= {"teacher": SHORT, "intermediate": WHOLE_EPOCHS, "prediction": WHOLE_EPOCHS, "pruning": SHORT}


@cache
def _shipped() -> dict:
    return read_yaml(ROOT / "params.yaml")


def default_tree(changes: dict | None = None) -> dict:
    """A copy of the shipped params.yaml with `changes`, which map dotted keys to values."""
    tree = copy.deepcopy(_shipped())
    for key, value in (changes or {}).items():
        set_key(tree, key, value)
    return tree


def set_key(tree: dict, key: str, value) -> dict:
    """Sets a dotted key in place; returns the tree."""
    *parents, last = key.split(".")
    node = tree
    for parent in parents:
        node = node[parent]
    node[last] = value
    return tree


def tiny_params(*, heads: int = 2) -> dict:
    """The default with few students, one of them no BERT, one task, few documents and few steps."""
    tree = default_tree()
    small = {"layers": 2, "width": 8 * heads, "heads": heads, "feed_forward": 32, "dropout": 0.0}
    tree["teacher"]["synthetic"] = {"vocabulary_size": 1000, "architecture": small | {"width": 24}}
    tree["teacher"]["pretraining"] = SHORT
    tree["corpus"]["max_documents"] = 100
    for name, student in tree["students"].items():
        student["architecture"] = student["architecture"] | {"embedding": 16} if name == "bilstm" else small
    tree["students"]["bilstm"]["prediction"]["training"] = WHOLE_EPOCHS
    tree["general"] = {"students": ["little_professor", "tinybert4", "bilstm"], "training": SHORT}
    tree["domain"] = {"students": ["little_professor"], "training": SHORT}
    tree["tasks"] |= {
        "run": ["cola"],
        "students": ["tinybert4", "bilstm"],
        "synthetic": {"train_examples": 40, "dev_examples": 20},
        "cola": TASK,
        "vocabulary_tokens": 200,
    }
    tree["seeds"] = [42, 43]
    tree["augmentation"]["substitution"]["word_vectors"]["dimensions"] = 4
    tree["pruning"]["sparsities_percent"] = [20]
    tree["quantization"]["models"] = ["tinybert4"]
    tree["quantization"]["calibration"]["examples"] = 16
    tree["quantization"]["max_score_drop"] = 1.0  # of 20 rows
    tree["quantization"]["latency"] |= {"length_tokens": 16, "runs": 2, "warmup_runs": 1}
    return json.loads(json.dumps(tree))  # sections that are one object here become several


def write_params(project: Path, tree: dict) -> None:
    (project / "params.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))


def copy_project(folder: Path) -> Path:
    """The tracked files of the project but its records, as a git repository in `folder`, with tiny params."""
    for name in filter(None, git(ROOT, "ls-files", "-z", ":!results").split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    write_params(folder, tiny_params())
    (folder / "dvc.lock").unlink(missing_ok=True)
    shutil.rmtree(folder / "metrics", ignore_errors=True)
    commit_all(folder)
    return folder


def git(folder: Path, *command: str) -> str:
    """Runs git in `folder` with an identity; returns what it prints."""
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    done = subprocess.run(["git", *identity, *command], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit_all(folder: Path) -> None:
    """Makes `folder` a git repository of one commit, on the branch main."""
    for command in ("init --quiet --initial-branch main", "add --all", "commit --quiet --message first"):
        git(folder, *command.split())


@cache
def forking_python() -> Path:
    """The fork server's `python`; Python itself if coverage is measured, which starts with a process."""
    if "COVERAGE_PROCESS_CONFIG" in os.environ:
        return Path(sys.executable)
    return fork_server.start(Path(tempfile.mkdtemp(prefix="fork-server-")))


def run(project: Path, *command: str, seconds: int = 1800, **environment: str) -> subprocess.CompletedProcess:
    """Runs a Python module of the project's environment in the copy, by the fork server; never raises."""
    python = forking_python()
    path = os.pathsep.join([str(python.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    names = ("MLFLOW_TRACKING_URI", "DVC_ROOT", "DVC_STAGE", "DVC_EXP_NAME")
    inherited = {name: value for name, value in os.environ.items() if name not in names}
    return subprocess.run(
        [python, "-m", *command],
        cwd=project,
        env=inherited | {"PATH": path} | environment,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
