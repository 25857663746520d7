"""MLflow tracking of a stage.

A separate process writes to MLflow while the stage computes, because importing MLflow and opening its store take two
seconds. The stage sends pickled calls (Run); the process executes them (StoredRun). Tracking never stops the work: if
it fails, a warning is printed and the stage continues untracked.

Each stage instance has a run, nested in one parent run for each state of the project: a DVC experiment, a git revision
and a params.yaml. The store is MLFLOW_TRACKING_URI, or else mlflow.db beside dvc.yaml; the experiment is
MLFLOW_EXPERIMENT_NAME, or else tinybert.
"""

import hashlib
import inspect
import math
import os
import pickle
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tinybert.pipeline.files import flatten, one_line
from tinybert.pipeline.paths import project_root
from tinybert.pipeline.process import git, is_main_process

LONGEST_WAIT_S = 60  # for the writer, after the stage's work
EXPERIMENT = "tinybert"
PARENT_KEY_TAG = "tinybert.parent_key"
# Quiet, without telemetry, and quick to give up on a server that does not answer; what the user has set stays.
MLFLOW_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",  # it prints pages of traceback for a locked database
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


class Run:
    """The MLflow run of one stage instance: calls StoredRun's methods in the writer, or does nothing without one."""

    def __init__(self, writer: subprocess.Popen | None = None) -> None:
        self._writer = writer

    def __getattr__(self, method: str) -> Callable[..., None]:
        signature = inspect.signature(getattr(StoredRun, method))  # a wrong call fails here, not in the other process
        return lambda *arguments: self._send(method, *signature.bind(self, *arguments).args[1:])

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
            self._writer.communicate(timeout=LONGEST_WAIT_S if status == "FINISHED" else LONGEST_WAIT_S / 4)
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
    # SIGTERM ends the block as an exit would, so that its run does not stay RUNNING forever.
    previous = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    run, status = Run(_start_writer() if is_main_process() else None), "FINISHED"
    run.start(stage, instance, params, tags)
    try:
        yield run
    except BaseException as error:
        status = "FAILED" if isinstance(error, Exception) else "KILLED"
        raise
    finally:
        signal.signal(signal.SIGTERM, previous)
        run._end(status)


def _start_writer() -> subprocess.Popen | None:
    """A process of a group of its own: Ctrl-C reaches the stage alone, which sends the run's end."""
    source = Path(__file__).resolve().parents[2]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "tinybert.pipeline.tracking"]
    try:
        return subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, process_group=0)
    except OSError as error:
        print(f"tracking: continues without MLflow: {error}", file=sys.stderr)
        return None


class StoredRun:
    """The MLflow run of one stage instance, in the writer."""

    mlflow: Any = None  # until the run starts

    def start(self, stage: str, instance: str, params: dict[str, Any], tags: dict[str, str]) -> None:
        """Starts the run under its parent."""
        import fcntl  # not on Windows

        for key, value in MLFLOW_SETTINGS.items():  # MLflow reads them when it is imported
            os.environ.setdefault(key, value)
        import mlflow

        root, self.mlflow = project_root(), mlflow
        mlflow.set_tracking_uri(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{root / 'mlflow.db'}")
        experiment, revision = os.environ.get("DVC_EXP_NAME") or "workspace", git("rev-parse", "HEAD") or "none"
        origin = {
            "stage": stage, "dvc.exp": experiment, "dvc.stage": os.environ.get("DVC_STAGE", stage),
            "mlflow.source.name": f"stages/{stage}.py", "mlflow.source.type": "LOCAL",
            "mlflow.source.git.commit": revision,
        }  # fmt: skip
        with open(root / "mlflow.db.lock", "a", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # several stages may start together: one makes what is missing
            mlflow.set_experiment(experiment_id=_experiment_id(mlflow, root))
            self.parent_id = _parent_id(mlflow, experiment, revision)
        mlflow.start_run(run_id=self.parent_id)
        mlflow.start_run(run_name=f"{stage}/{instance}" if instance else stage, nested=True, tags=origin | tags)
        mlflow.log_params({_legal(key): value for key, value in flatten(params, ".")})

    def log_metrics(self, metrics: dict[str, Any], step: int = 0) -> None:
        """Logs the numbers of a nested mapping as `outer/inner`; other values are left out."""
        self.mlflow.log_metrics(_numbers(metrics), step=step)

    def log_dataset(self, frame: Any, source: str, name: str, context: str) -> None:
        """Logs which data the run used, and for what (`context`): columns, size and digest of a pandas frame."""
        self.mlflow.log_input(self.mlflow.data.from_pandas(frame, source=source, name=name), context=context)

    def log_model_reference(self, name: str, folder: Path, metrics: dict[str, Any]) -> None:
        """Lists a model that DVC stores as an external LoggedModel, with the md5 under which DVC keeps its weights."""
        with open(folder / "model.safetensors", "rb") as weights:
            md5 = hashlib.file_digest(weights, "md5").hexdigest()
        run_id, tags = self.mlflow.active_run().info.run_id, {"dvc.path": str(folder), "dvc.md5": md5}
        model = self.mlflow.create_external_model(name=_legal(name), source_run_id=run_id, tags=tags)
        self.mlflow.log_metrics(_numbers(metrics), model_id=model.model_id)

    def log_result_table(self, rows: list[dict[str, Any]], params: dict[str, Any]) -> None:
        """Logs results and settings on the parent run, where experiments compare, and the results in results.json too.

        The numbers of a row become the metrics `<group>/<model>/<name>`; the row's own texts are its group and model.
        """
        self.mlflow.log_params({_legal(key): value for key, value in flatten(params, ".")}, run_id=self.parent_id)
        numbers = _numbers({f"{row['group']}/{row['model']}": row for row in rows})
        self.mlflow.log_metrics(numbers, step=0, run_id=self.parent_id)
        columns = dict.fromkeys(key for row in rows for key in row)
        self.mlflow.log_table({key: [row.get(key) for row in rows] for key in columns}, "results.json")

    def end(self, status: str) -> None:
        """Ends the run and its parent, which takes each finished child's status: no child knows that it is last."""
        while self.mlflow and self.mlflow.active_run():
            self.mlflow.end_run(status)


def main() -> None:
    """Writes what the stage sends; a stage that dies without an end is KILLED."""
    warnings.simplefilter("ignore")  # MLflow's about pandas and SQLAlchemy
    run = StoredRun()
    try:
        with suppress(EOFError, pickle.UnpicklingError):  # a stage may die while it sends
            while True:
                method, arguments = pickle.load(sys.stdin.buffer)
                getattr(run, method)(*arguments)
        run.end("KILLED")
    except Exception as error:
        reason = one_line(str(error).partition("[SQL:")[0])[:300] or type(error).__name__
        print(f"tracking: continues without MLflow: {reason}", file=sys.stderr)
        with suppress(Exception):  # the same store, which has been reported
            run.end("FAILED")


def _experiment_id(mlflow: Any, root: Path) -> str:
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
    if found := mlflow.get_experiment_by_name(name):
        return found.experiment_id
    # A server has its own place for artifacts. For a database MLflow would take the current folder, which is a
    # temporary one in a queued experiment.
    on_server = mlflow.get_tracking_uri().startswith(("http://", "https://"))
    return mlflow.create_experiment(name, artifact_location=None if on_server else str(root / "mlartifacts"))


def _parent_id(mlflow: Any, name: str, revision: str) -> str:
    """The id of the parent run of this project state; creates the run if there is none."""
    params_sha1 = hashlib.sha1(Path("params.yaml").read_bytes()).hexdigest()
    key = f"{name} {revision} {params_sha1}"
    found = mlflow.search_runs(filter_string=f"tags.`{PARENT_KEY_TAG}` = '{key}'", max_results=1, output_format="list")
    if found:
        return found[0].info.run_id
    tags = {PARENT_KEY_TAG: key, "dvc.exp": name, "mlflow.source.git.commit": revision, "params.sha1": params_sha1}
    with mlflow.start_run(run_name=name, tags=tags) as parent:
        return parent.info.run_id


def _numbers(tree: dict[str, Any]) -> dict[str, float]:
    """The finite numbers of a nested mapping, under names that MLflow accepts."""
    return {
        _legal(key): float(value)
        for key, value in flatten(tree, "/")
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    }


def _legal(name: str) -> str:
    return re.sub(r"[^\w\-. /]", "_", name)[:250]  # MLflow's limits


if __name__ == "__main__":
    main()
