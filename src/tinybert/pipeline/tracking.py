"""MLflow tracking, the only module that imports mlflow: one run a stage instance, under one parent run.

Where the pipeline runs decides the parent: a DVC experiment, a git revision and a params.yaml make one. The
store is MLFLOW_TRACKING_URI where that is set, else mlflow.db beside dvc.yaml. Tracking never stops the work:
when it fails, one warning is printed and the stage goes on untracked.
"""

import fcntl
import hashlib
import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tinybert.pipeline.paths import project_root
from tinybert.pipeline.process import is_main_process
from tinybert.pipeline.revision import head_revision

EXPERIMENT = "tinybert"
PARENT_KEY_TAG = "tinybert.parent_key"
LEGAL_NAME_LENGTH = 250  # MLflow's limits
LEGAL_VALUE_LENGTH = 6000
PARAMS_A_BATCH = 100
METRICS_A_BATCH = 1000

# Quiet, offline, and soon to give up on a server that does not answer; what the user has set stays.
MLFLOW_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",  # it prints pages of traceback for a locked database
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


class Run:
    """The MLflow run of one stage instance; without a store (`session` None) every method does nothing."""

    def __init__(self, session: "_Session | None" = None) -> None:
        self._session = session

    @property
    def is_tracked(self) -> bool:
        return self._session is not None

    def log_curve_point(self, step: int, values: dict[str, float]) -> None:
        """Logs the numbers of one optimizer step, at once, as `curve/<name>`."""
        self._attempt(lambda session: session.log_metrics({"curve": values}, step=step))

    def log_metrics(self, metrics: dict[str, Any]) -> None:
        """Logs the numbers of a nested mapping as `outer/inner`; what is no number is left out."""
        self._attempt(lambda session: session.log_metrics(metrics, step=0))

    def log_result_table(self, rows: list[dict[str, Any]]) -> None:
        """Logs the table of all results onto the parent run.

        rows: each has the texts `group` (a task, or the domain) and `model`; its numbers become the metrics
        `<group>/<model>/<name>`, and the whole table the artifacts results/table.json and results/table.md.
        """
        self._attempt(lambda session: session.log_table(rows))

    def _attempt(self, work: "Callable[[_Session], None]") -> None:
        if self._session is None:
            return
        try:
            work(self._session)
        except Exception as error:
            _warn(error)
            self._session.close("FAILED", quietly=True)
            self._session = None

    def _close(self, status: str) -> None:
        self._attempt(lambda session: session.close(status))


@contextmanager
def stage_run(stage: str, instance: str, *, params: dict[str, Any], tags: Mapping[str, str | None]) -> Iterator[Run]:
    """Runs its block under an MLflow run `<stage>/<instance>`, which ends FINISHED, FAILED or KILLED.

    params: nested settings, logged as `outer.inner`. tags: such as task and student; None is left out.
    Of several processes launched together only the first is tracked.
    """
    run = Run(_open_session(stage, instance, params, tags) if is_main_process() else None)
    status = "FINISHED"
    try:
        with _termination_unwinds():
            yield run
    except BaseException as error:
        status = "FAILED" if isinstance(error, Exception) else "KILLED"
        raise
    finally:
        run._close(status)


class _Session:
    """A child run that is open in a store, and its parent."""

    def __init__(self, client: Any, *, experiment_id: str, parent_id: str, name: str, tags: dict[str, str]) -> None:
        self.client, self.parent_id = client, parent_id
        self.run_id = client.create_run(
            experiment_id, run_name=name, tags=tags | {"mlflow.parentRunId": parent_id}
        ).info.run_id

    def log_params(self, params: dict[str, Any]) -> None:
        from mlflow.entities import Param

        flat = [Param(_legal(key), str(value)[:LEGAL_VALUE_LENGTH]) for key, value in _flatten(params, ".")]
        for start in range(0, len(flat), PARAMS_A_BATCH):
            self.client.log_batch(self.run_id, params=flat[start : start + PARAMS_A_BATCH])

    def log_metrics(self, metrics: dict[str, Any], *, step: int, run_id: str | None = None) -> None:
        from mlflow.entities import Metric

        now_ms = int(time.time() * 1000)
        flat = [
            Metric(_legal(key), float(value), now_ms, int(step))
            for key, value in _flatten(metrics, "/")
            if _is_number(value)
        ]
        for start in range(0, len(flat), METRICS_A_BATCH):
            self.client.log_batch(run_id or self.run_id, metrics=flat[start : start + METRICS_A_BATCH])

    def log_table(self, rows: list[dict[str, Any]]) -> None:
        numbers = {f"{row['group']}/{row['model']}": row for row in rows}
        self.log_metrics(numbers, step=0, run_id=self.parent_id)
        columns = list(dict.fromkeys(key for row in rows for key in row))
        data = [[row.get(column) for column in columns] for row in rows]
        self.client.log_dict(self.parent_id, {"columns": columns, "data": data}, "results/table.json")
        self.client.log_text(self.parent_id, _markdown(columns, data), "results/table.md")

    def close(self, status: str, *, quietly: bool = False) -> None:
        """Ends the child; the parent shows the state of the child that ended last, for nobody knows which is last."""
        try:
            self.client.set_terminated(self.run_id, status)
            self.client.set_terminated(self.parent_id, status)
        except Exception:
            if not quietly:
                raise


def _open_session(stage: str, instance: str, params: dict[str, Any], tags: Mapping[str, str | None]) -> _Session | None:
    """The opened child run, or None after a warning."""
    try:
        root = project_root()
        client, experiment_id, parent_id = _open_store(root)
        session = _Session(
            client,
            experiment_id=experiment_id,
            parent_id=parent_id,
            name=f"{stage}/{instance}" if instance else stage,
            tags=_origin_tags(stage) | {key: value for key, value in tags.items() if value is not None},
        )
        session.log_params(params)
    except Exception as error:
        _warn(error)
        return None
    return session


def _open_store(root: Path) -> tuple[Any, str, str]:
    """Client, experiment and parent run.

    Under a lock: several stages may start at once, and each of the three is made when it is not there.
    """
    for name, value in MLFLOW_SETTINGS.items():
        os.environ.setdefault(name, value)
    from mlflow.tracking import MlflowClient

    with _locked(root / "mlflow.db.lock"):
        client = MlflowClient(tracking_uri=_tracking_uri(root))
        experiment_id = _experiment(client, root)
        return client, experiment_id, _parent_run(client, experiment_id)


def _experiment(client: Any, root: Path) -> str:
    if found := client.get_experiment_by_name(EXPERIMENT):
        return found.experiment_id
    # A tracking server has a place of its own for artifacts. A database has not: MLflow would take the current
    # folder, which for a queued experiment is a temporary one.
    on_server = _tracking_uri(root).startswith(("http://", "https://"))
    return client.create_experiment(EXPERIMENT, artifact_location=None if on_server else str(root / "mlartifacts"))


def _parent_run(client: Any, experiment_id: str) -> str:
    name, revision, params_sha1 = _dvc_experiment(), head_revision(), _sha1(Path("params.yaml"))
    key = f"{name} {revision} {params_sha1}"
    if found := client.search_runs([experiment_id], f"tags.`{PARENT_KEY_TAG}` = '{key}'", max_results=1):
        client.update_run(found[0].info.run_id, status="RUNNING")
        return found[0].info.run_id
    tags = {PARENT_KEY_TAG: key, "dvc.exp": name, "mlflow.source.git.commit": revision, "params.sha1": params_sha1}
    return client.create_run(experiment_id, run_name=name, tags=tags).info.run_id


def _origin_tags(stage: str) -> dict[str, str]:
    """Where a child run comes from."""
    return {
        "stage": stage,
        "dvc.exp": _dvc_experiment(),
        "dvc.stage": os.environ.get("DVC_STAGE", stage),
        "mlflow.source.name": f"stages/{stage}.py",
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": head_revision(),
    }


def _tracking_uri(root: Path) -> str:
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{root / 'mlflow.db'}"


def _dvc_experiment() -> str:
    return os.environ.get("DVC_EXP_NAME") or "workspace"


def _sha1(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest() if path.is_file() else "none"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time."""
    with open(path, "a", encoding="utf-8") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def _termination_unwinds() -> Iterator[None]:
    """SIGTERM ends the block as an exit would, so that its run does not stay RUNNING for ever."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _flatten(tree: dict[str, Any], separator: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flatten(value, separator, f"{prefix}{key}{separator}")
        else:
            yield f"{prefix}{key}", value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _legal(name: str) -> str:
    return re.sub(r"[^\w\-. /]", "_", name)[:LEGAL_NAME_LENGTH]


def _markdown(columns: list[str], data: list[list[Any]]) -> str:
    lines = [columns, ["---"] * len(columns), *data]
    cells = [["" if cell is None else str(cell).replace("|", "\\|") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def _warn(error: Exception) -> None:
    message, _, _ = str(error).partition("[SQL:")
    reason = " ".join(message.split())[:300] or type(error).__name__
    print(f"tracking: goes on without MLflow: {reason}", file=sys.stderr)
