"""What a run of the pipeline left in a project: whether all of it is whole, and hashes to compare it by."""

import csv
import hashlib
import json
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import onnx
from safetensors import safe_open

from tests.support.project import tiny_params

OUTPUTS = ("data", "metrics", "models", "reports")
MEASURED = ("reports/latency", "reports/timings", "reports/index.html", "reports/summary.txt")  # of this very run
CURRENT_REVISION = "README.md"  # and of this very copy: a model card names its commit


def few_students_params() -> dict:
    """Tiny params with one student in the domain track and one in the task track: each kind of stage still runs."""
    tree = tiny_params()
    tree["general"]["students"] = ["little_professor", "tinybert4"]
    tree["tasks"]["students"] = tree["quantization"]["models"] = ["tinybert4"]
    return tree


def check_whole(project: Path) -> None:
    """AssertionError or a reader's own where a file is cut short; temporary files are none of the outputs."""
    for path in output_files(project):
        if path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".jsonl":
            assert all(json.loads(line) for line in path.read_text().splitlines()), path
        elif path.suffix == ".safetensors":
            with safe_open(path, "pt") as file:
                assert all(file.get_tensor(name).numel() for name in file.keys()), path  # noqa: SIM118 (no mapping)
        elif path.suffix == ".onnx":
            onnx.checker.check_model(onnx.load(path), check_custom_domain=False)
        elif path.suffix == ".csv":
            assert len({len(row) for row in csv.reader(path.read_text().splitlines())}) == 1, path
        if path.is_relative_to(project / "data/unlabeled"):  # empty for a task without such rows
            metrics = project / f"reports/metrics/prepare_task/{path.parent.name}.json"  # the stage writes it last
            counts = json.loads(metrics.read_text())["examples"] if metrics.is_file() else {}
            assert not counts or len(path.read_text().splitlines()) == counts.get("unlabeled", 0), path
        else:
            assert path.stat().st_size, path
    check_mlflow(project)


def check_mlflow(project: Path) -> None:
    """AssertionError where there is a store that cannot be read."""
    if (project / "mlflow.db").exists():
        with sqlite3.connect(project / "mlflow.db") as database:
            assert database.execute("pragma integrity_check").fetchall() == [("ok",)]


def output_files(project: Path) -> Iterator[Path]:
    """All files under data, metrics, models and reports, but for those that bear the name of something unfinished."""
    for folder in OUTPUTS:
        for path in sorted((project / folder).rglob("*")):
            if path.is_file() and ".partial" not in str(path.relative_to(project)):
                yield path


def leftovers(project: Path) -> list[str]:
    """Temporary files and folders, and what git would show beside the results that belong in it."""
    found = [str(path.relative_to(project)) for path in project.rglob("*.partial") if ".dvc" not in path.parts]
    status = ["git", "status", "--porcelain", "--untracked-files=all"]
    listed = subprocess.run(status, cwd=project, check=True, capture_output=True, text=True).stdout.splitlines()
    kept = ("metrics/", "dvc.lock", "params.yaml", "reports/summary.md", "reports/summary_metrics.json", ".gitignore")
    return found + [line for line in listed if not line[3:].startswith(kept)]


def hashes(project: Path) -> dict[str, str]:
    """path -> SHA-256 of all outputs, without what holds a measured time or names the copy's commit."""
    found = {}
    for path in output_files(project):
        name = str(path.relative_to(project))
        if not name.startswith(MEASURED) and path.name != CURRENT_REVISION:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found
