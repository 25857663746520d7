"""Equal numbers: two cold runs, one and two tokenizer threads, simultaneous experiments from the queue."""

import os
import subprocess
import time
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.support.outputs import few_students_params, hashes
from tests.support.project import copy_project, run, set_key, write_params
from tests.support.properties import at

pytestmark = pytest.mark.long
TARGET = "general_distill@tinybert4"
EXPERIMENTS = {
    "base": (),
    "other-seed": ("seed=44",),
    "other-loss": ("students.tinybert4.general.losses.attention=2.0",),
}
SECONDS_TO_WAIT = 3000


def small_project(folder: Path) -> Path:
    project = copy_project(folder)
    write_params(project, few_students_params())
    return project


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU: one thread")
def test_cold_runs_leave_the_same_bytes_on_one_and_two_threads(tmp_path, monkeypatch):
    found = []
    for threads in (1, 2):
        monkeypatch.setenv("RAYON_NUM_THREADS", str(threads))  # of the tokenizer
        project = small_project(tmp_path / f"threads{threads}")
        if threads == 2:
            edit(project / "src/tinybert/data/sequences.py", "BATCH_DOCUMENTS = 16", "BATCH_DOCUMENTS = 3")
        done = run_to_end(project, "dvc", "repro")
        assert done.returncode == 0, done.stderr[-3000:]
        found.append(hashes(project))
    assert found[0] == found[1]
    kinds = {Path(name).suffix for name in found[0]}
    assert {".json", ".jsonl", ".npy", ".csv", ".safetensors", ".onnx"} <= kinds


def test_queued_experiments_side_by_side_equal_plain_runs(tmp_path):
    queued, plain = small_project(tmp_path / "queued"), small_project(tmp_path / "plain")
    for name, settings in EXPERIMENTS.items():
        options = [part for setting in settings for part in ("-S", setting)]
        asked = run(queued, "dvc", "exp", "run", "--queue", "--name", name, *options, TARGET)
        assert asked.returncode == 0, asked.stderr
    run(queued, "dvc", "queue", "start", "-j", "2")
    wait_for_queue(queued)
    for name, settings in EXPERIMENTS.items():
        write_params(plain, few_students_params())
        for setting in settings:
            change(plain, *setting.split("="))
        done = run_to_end(plain, "dvc", "repro", TARGET)
        assert done.returncode == 0, done.stderr[-3000:]
        expected = recorded(YAML(typ="safe").load(plain / "dvc.lock"))
        assert recorded(YAML(typ="safe").load(experiments_file(queued, name, "dvc.lock"))) == expected
        assert {
            "models/teacher",
            "models/general/tinybert4",
            "reports/metrics/general_distill/tinybert4.json",
        } <= expected.keys()


def edit(path: Path, shipped: str, changed: str) -> None:
    assert path.read_text().count(shipped) == 1
    path.write_text(path.read_text().replace(shipped, changed))


def run_to_end(project: Path, *command: str) -> subprocess.CompletedProcess:
    return run(project, *command, seconds=SECONDS_TO_WAIT)


def change(project: Path, key: str, value: str) -> None:
    """One key of params.yaml."""
    tree = YAML(typ="safe").load(project / "params.yaml")
    kind = type(at(tree, tuple(key.split("."))))
    write_params(project, set_key(tree, key, kind(value)))


def wait_for_queue(project: Path) -> None:
    deadline = time.monotonic() + SECONDS_TO_WAIT
    while "Running" in (status := run(project, "dvc", "queue", "status").stdout) or "Queued" in status:
        assert time.monotonic() < deadline
        time.sleep(5)
    assert status.count("Success") == len(EXPERIMENTS), status


def experiments_file(project: Path, name: str, path: str) -> str:
    """The text of a file as an experiment left it."""
    git = ["git", "-C", str(project)]
    listed = subprocess.run([*git, "for-each-ref", "--format=%(refname)", "refs/exps"], capture_output=True, text=True)
    (ref,) = [ref for ref in listed.stdout.split() if ref.endswith(f"/{name}")]
    return subprocess.run([*git, "show", f"{ref}:{path}"], check=True, capture_output=True, text=True).stdout


def recorded(lock: dict) -> dict[str, str]:
    """Output -> hash as DVC records them."""
    return {out["path"]: out["md5"] for stage in lock["stages"].values() for out in stage["outs"]}
