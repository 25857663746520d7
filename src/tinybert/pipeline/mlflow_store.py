"""MLflow's store: one run for each stage instance, nested in one parent run for each state of the project.

A DVC experiment, a git revision and a params.yaml make a state. The store is MLFLOW_TRACKING_URI, or else mlflow.db
beside dvc.yaml; the experiment is MLFLOW_EXPERIMENT_NAME, or else tinybert. As a program, this module writes the run of
a stage: it reads pickled calls from the stage (tracking.py) until that ends or dies.
"""

import fcntl
import hashlib
import math
import os
import pickle
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from tinybert.pipeline.errors import UserError
from tinybert.pipeline.paths import project_root
from tinybert.pipeline.tracking import head_revision

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


class StoredRun:
    """The MLflow run of one stage instance, for whose methods see tracking.Run."""

    mlflow: Any = None  # until the run starts

    def start(self, stage: str, instance: str, params: dict[str, Any], tags: dict[str, str]) -> None:
        """Starts the run under its parent."""
        root, mlflow = project_root(), import_mlflow()
        self.mlflow = mlflow
        origin = {
            "stage": stage,
            "dvc.exp": _dvc_experiment(),
            "dvc.stage": os.environ.get("DVC_STAGE", stage),
            "mlflow.source.name": f"stages/{stage}.py",
            "mlflow.source.type": "LOCAL",
            "mlflow.source.git.commit": head_revision(),
        }
        with open(root / "mlflow.db.lock", "a", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # several stages may start together: one makes what is missing
            mlflow.set_experiment(experiment_id=_experiment_id(mlflow, root))
            self.parent_id = _parent_id(mlflow)
        mlflow.start_run(run_id=self.parent_id)
        mlflow.start_run(run_name=f"{stage}/{instance}" if instance else stage, nested=True, tags=origin | tags)
        mlflow.log_params({_legal(key): value for key, value in _flatten(params, ".")})

    def log_metrics(self, metrics: dict[str, Any], step: int) -> None:
        self.mlflow.log_metrics(_numbers(metrics), step=step)

    def log_dataset(self, frame: Any, source: str, name: str, context: str) -> None:
        dataset = self.mlflow.data.from_pandas(frame, source=source, name=name)
        self.mlflow.log_input(dataset, context=context)

    def log_model_reference(self, name: str, folder: str, metrics: dict[str, Any]) -> None:
        with open(Path(folder) / "model.safetensors", "rb") as weights:
            md5 = hashlib.file_digest(weights, "md5").hexdigest()
        run_id, tags = self.mlflow.active_run().info.run_id, {"dvc.path": folder, "dvc.md5": md5}
        model = self.mlflow.create_external_model(name=_legal(name), source_run_id=run_id, tags=tags)
        self.mlflow.log_metrics(_numbers(metrics), model_id=model.model_id)

    def log_result_table(self, rows: list[dict[str, Any]]) -> None:
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
        reason = " ".join(str(error).partition("[SQL:")[0].split())[:300] or type(error).__name__
        print(f"tracking: continues without MLflow: {reason}", file=sys.stderr)
        with suppress(Exception):  # the same store, which has been reported
            run.end("FAILED")


def register_model(name: str, folder: Path) -> str:
    """Adds a model folder to MLflow's registry as a new version; UserError if it is absent. Returns a line about it."""
    if not folder.is_dir():
        raise UserError(f"{folder}: absent; fix: run dvc repro, or dvc pull")
    mlflow = import_mlflow()
    from mlflow.exceptions import MlflowException

    client = mlflow.MlflowClient()
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise UserError(f"mlflow: {' '.join(str(error).split())[:300]}") from error
    tags = {"mlflow.source.git.commit": head_revision(), "dvc.path": str(folder)}
    made = client.create_model_version(name, source=str(folder.resolve()), tags=tags)
    return f"{name}, version {made.version}: {folder}"


def import_mlflow() -> Any:
    """MLflow, set up for the project's store."""
    for key, value in MLFLOW_SETTINGS.items():
        os.environ.setdefault(key, value)
    import mlflow

    mlflow.set_tracking_uri(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{project_root() / 'mlflow.db'}")
    return mlflow


def _experiment_id(mlflow: Any, root: Path) -> str:
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
    if found := mlflow.get_experiment_by_name(name):
        return found.experiment_id
    # A server has its own place for artifacts. For a database MLflow would take the current folder, which is a
    # temporary one in a queued experiment.
    on_server = mlflow.get_tracking_uri().startswith(("http://", "https://"))
    return mlflow.create_experiment(name, artifact_location=None if on_server else str(root / "mlartifacts"))


def _parent_id(mlflow: Any) -> str:
    """The parent run of the project's state, which is created if there is none."""
    name, revision = _dvc_experiment(), head_revision()
    params = Path("params.yaml")
    params_sha1 = hashlib.sha1(params.read_bytes()).hexdigest() if params.is_file() else "none"
    key = f"{name} {revision} {params_sha1}"
    found = mlflow.search_runs(filter_string=f"tags.`{PARENT_KEY_TAG}` = '{key}'", max_results=1, output_format="list")
    if found:
        return found[0].info.run_id
    tags = {PARENT_KEY_TAG: key, "dvc.exp": name, "mlflow.source.git.commit": revision, "params.sha1": params_sha1}
    with mlflow.start_run(run_name=name, tags=tags) as parent:
        return parent.info.run_id


def _dvc_experiment() -> str:
    return os.environ.get("DVC_EXP_NAME") or "workspace"


def _flatten(tree: dict[str, Any], separator: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flatten(value, separator, f"{prefix}{key}{separator}")
        else:
            yield f"{prefix}{key}", value


def _numbers(tree: dict[str, Any]) -> dict[str, float]:
    """The finite numbers of a nested mapping, under names that MLflow accepts."""
    return {
        _legal(key): float(value)
        for key, value in _flatten(tree, "/")
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    }


def _legal(name: str) -> str:
    return re.sub(r"[^\w\-. /]", "_", name)[:250]  # MLflow's limits


if __name__ == "__main__":
    main()
