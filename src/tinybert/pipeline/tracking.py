"""MLflow tracking of a stage, and which commit made a result.

A process of its own writes to MLflow (mlflow_store.py) while the stage computes: importing MLflow and opening its store
take two seconds. Tracking never stops the work: if it fails, a warning is printed and the stage continues untracked.
"""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tinybert.pipeline.process import is_main_process

# Metrics and reports are results themselves.
RESULT_PATHS = ("src", "stages", "dvc.yaml", "params.yaml", "requirements.txt")
LONGEST_WAIT_S = 60  # for the writer, after the stage's work
PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "datasets", "onnx", "onnxruntime", "numpy")


class Run:
    """The MLflow run of one stage instance; without a writer every method does nothing.

    Args:
        writer: The process that runs mlflow_store.py; it reads pickled calls of StoredRun's methods.
    """

    def __init__(self, writer: subprocess.Popen | None = None) -> None:
        self._writer = writer

    def log_metrics(self, metrics: dict[str, Any], step: int = 0) -> None:
        """Logs the numbers of a nested mapping as `outer/inner`; other values are left out."""
        self._send("log_metrics", metrics, step)

    def log_dataset(self, frame: Any, source: str, name: str, context: str) -> None:
        """Logs which data the run used, and for what (`context`): columns, size and digest of a pandas frame."""
        self._send("log_dataset", frame, source, name, context)

    def log_model_reference(self, name: str, folder: str | Path, metrics: dict[str, Any]) -> None:
        """Lists a model that DVC stores as an external LoggedModel, with the md5 under which DVC keeps its weights."""
        self._send("log_model_reference", name, str(folder), metrics)

    def log_result_table(self, rows: list[dict[str, Any]]) -> None:
        """Logs all results: as metrics of the parent run, where experiments compare, and as results.json of this run.

        The numbers of a row become the metrics `<group>/<model>/<name>`; the row's own texts are its group and model.
        """
        self._send("log_result_table", rows)

    def _send(self, method: str, *arguments: Any) -> None:
        if self._writer and self._writer.stdin:
            with suppress(OSError):  # the writer has ended; _end reports it
                pickle.dump((method, arguments), self._writer.stdin)
                self._writer.stdin.flush()

    def _end(self, status: str) -> None:
        self._send("end", status)
        if not self._writer:
            return
        try:  # this closes the writer's input and waits
            self._writer.communicate(timeout=LONGEST_WAIT_S if status == "FINISHED" else LONGEST_WAIT_S / 10)
        except subprocess.TimeoutExpired:
            self._writer.kill()
        if self._writer.wait() < 0:
            print("tracking: continues without MLflow: its process was killed, or took too long", file=sys.stderr)


@contextmanager
def stage_run(stage: str, instance: str, *, params: dict[str, Any], tags: dict[str, str]) -> Iterator[Run]:
    """Runs its block under an MLflow run `<stage>/<instance>`, which ends FINISHED, FAILED or KILLED.

    Of several processes launched together only the first is tracked.

    Args:
        instance: The stage's matrix items; empty for a stage without a matrix.
        params: Nested settings, logged as `outer.inner`.
        tags: Such as task and student.
    """
    run = Run(_start_writer() if is_main_process() else None)
    run._send("start", stage, instance, params, tags)
    status = "FINISHED"
    try:
        with _termination_unwinds():
            yield run
    except BaseException as error:
        status = "FAILED" if isinstance(error, Exception) else "KILLED"
        raise
    finally:
        run._end(status)


def _start_writer() -> subprocess.Popen | None:
    """A process of a group of its own: Ctrl-C reaches the stage alone, which sends the run's end."""
    source = Path(__file__).resolve().parents[2]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "tinybert.pipeline.mlflow_store"]
    try:
        return subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, process_group=0)
    except OSError as error:
        print(f"tracking: continues without MLflow: {error}", file=sys.stderr)
        return None


@contextmanager
def _termination_unwinds() -> Iterator[None]:
    """SIGTERM ends the block as an exit would, so that its run does not stay RUNNING forever."""
    previous = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def head_revision() -> str:
    """The commit that is checked out; "none" outside of git."""
    return git("rev-parse", "HEAD") or "none"


def code_revision() -> str:
    """The last commit that changed code, pipeline or params: committing results does not change it.

    Ends in " and uncommitted changes" if there are such in them; "none" outside of git.
    """
    commit = git("log", "-1", "--format=%H", "--", *RESULT_PATHS)
    if not commit:
        return "none"
    return f"{commit} and uncommitted changes" if git("status", "--porcelain", "--", *RESULT_PATHS) else commit


def package_versions() -> dict[str, str]:
    """The versions of the packages that decide results."""
    return {package: version(package) for package in PACKAGES}


def git(*arguments: str, root: str | Path = ".") -> str:
    """What a git command prints, without the last line's end; empty if it fails."""
    try:
        answer = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.rstrip("\n") if answer.returncode == 0 else ""
