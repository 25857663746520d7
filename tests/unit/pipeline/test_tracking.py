"""Tracking against a real MLflow store, which two processes create simultaneously, once for this file."""

import fcntl
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest

from tests.support.project import commit_all, forking_python, git
from tests.support.root import ROOT
from tinybert.pipeline import tracking
from tinybert.pipeline.tracking import stage_run

# MLflow itself calls what SQLAlchemy and pandas have deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy", "ignore:For backward compatibility")

SOURCE = ROOT / "src"
PYTHON = sys.executable
FIRST_STAGE = """
from tinybert.pipeline.tracking import stage_run
with stage_run("general_distill", "lazy", params={}, tags={}):
    pass
"""


def clean_environment(**added: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("DVC_", "MLFLOW_", "RANK"))}
    return kept | {"PYTHONPATH": str(SOURCE)} | added


@pytest.fixture(scope="module")
def first_store(tmp_path_factory):
    """A project folder whose store was made by two processes started together, and what these printed."""
    root = tmp_path_factory.mktemp("project")
    (root / "params.yaml").write_text("seed: 1\n")
    command = [PYTHON, "-c", FIRST_STAGE]
    processes = [
        subprocess.Popen(command, cwd=root, env=clean_environment(), stderr=subprocess.PIPE, text=True) for _ in "12"
    ]
    printed = [process.communicate(timeout=60)[1] for process in processes]
    return root, [process.returncode for process in processes], printed


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Nothing of the user's environment, and MLflow as tracking sets it up, from its first import on."""
    for name in [name for name in os.environ if name.startswith(("DVC_", "MLFLOW_", "RANK"))]:
        monkeypatch.delenv(name)
    for name, value in tracking.MLFLOW_SETTINGS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tracking, "LONGEST_WAIT_S", 240)  # other tests run beside these
    monkeypatch.setattr(sys, "executable", str(forking_python()))  # has imported MLflow, for the writer


@pytest.fixture
def root(first_store, tmp_path, monkeypatch):
    """A project of its own for each test, in the made store's state, as current folder."""
    shutil.copy(first_store[0] / "mlflow.db", tmp_path)
    (tmp_path / "params.yaml").write_text("seed: 1\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def runs(root: Path) -> list:
    """All runs, newest first."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{root / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("tinybert")
    return client.search_runs([experiment.experiment_id])


@contextmanager
def stored_run(stage: str, instance: str, *, params: dict, tags: dict) -> Iterator[tracking.StoredRun]:
    """Does what stage_run does, but within this process, which imports MLflow once."""
    run = tracking.StoredRun()
    run.start(stage, instance, params, tags)
    yield run
    run.end("FINISHED")


def children(root: Path, name: str) -> list:
    return [run for run in runs(root) if run.info.run_name == name]


def parent_of(root: Path, run):
    return next(other for other in runs(root) if other.info.run_id == run.data.tags["mlflow.parentRunId"])


def test_two_processes_make_the_store_at_once(first_store):
    root, exit_codes, printed = first_store
    assert exit_codes == [0, 0]
    assert printed == ["", ""]
    names = [run.info.run_name for run in runs(root)]
    assert sorted(names) == ["general_distill/lazy", "general_distill/lazy", "workspace"]
    assert {run.info.status for run in runs(root)} == {"FINISHED"}
    assert runs(root)[0].info.artifact_uri.startswith(f"{root}/mlartifacts/")


def test_a_queued_experiment_is_tracked_at_the_project(root, monkeypatch, tmp_path_factory):
    copy = tmp_path_factory.mktemp("copy")
    (copy / "params.yaml").write_text("seeds: [42, 43]\n")
    monkeypatch.chdir(copy)
    monkeypatch.setenv("DVC_ROOT", str(root))
    monkeypatch.setenv("DVC_EXP_NAME", "lippy-slue")
    monkeypatch.setenv("DVC_STAGE", "evaluate@cola-tinybert4")
    with stored_run("evaluate", "cola-tinybert4", params={}, tags={"task": "cola", "student": "tinybert4"}):
        pass
    [child] = children(root, "evaluate/cola-tinybert4")
    expected = {"stage": "evaluate", "task": "cola", "student": "tinybert4", "dvc.exp": "lippy-slue",
                "dvc.stage": "evaluate@cola-tinybert4", "mlflow.source.name": "stages/evaluate.py",
                "mlflow.source.git.commit": "none"}  # fmt: skip
    assert expected.items() <= child.data.tags.items()
    assert parent_of(root, child).info.run_name == "lippy-slue"
    assert list(copy.iterdir()) == [copy / "params.yaml"]


def test_one_parent_for_one_state_of_the_project(root):
    def parent_id() -> str:
        with stored_run("tokenize", "general", params={}, tags={}):
            pass
        return children(root, "tokenize/general")[0].data.tags["mlflow.parentRunId"]

    first = parent_id()
    assert parent_id() == first
    (root / "params.yaml").write_text("seed: 2\n")
    assert parent_id() != first


def test_git_revision_is_a_tag(root):
    commit_all(root)
    head = git(root, "rev-parse", "HEAD")
    with stored_run("report", "", params={}, tags={}):
        pass
    [child] = children(root, "report")
    assert len(head) == 40
    assert child.data.tags["mlflow.source.git.commit"] == head
    assert parent_of(root, child).data.tags["mlflow.source.git.commit"] == head


def test_params_metrics_and_curve(root, capfd):
    params = {"training": {"epochs": 3, "rate": 5e-5}, "terms": ["a"] * 5000, "tasks.cola": {"length": 32}}
    with stage_run("general_distill", "professor", params=params, tags={}) as run:
        for step in (10, 20):
            run.log_metrics({"curve": {"total": 1.0 / step, "hidden": 2.0}}, step)
        run.log_metrics({"steps": 20, "loss": {"hard:λ": 0.5}, "split": "dev", "collapsed": True, "none": None})
    [child] = children(root, "general_distill/professor")
    assert child.data.params["training.epochs"] == "3"
    assert child.data.params["training.rate"] == "5e-05"
    assert child.data.params["tasks.cola.length"] == "32"
    assert len(child.data.params["terms"]) == 6000
    assert child.data.metrics == {"curve/total": 0.05, "curve/hidden": 2.0, "steps": 20.0, "loss/hard_λ": 0.5}
    assert curve_steps(root, child) == [(10, 0.1), (20, 0.05)]
    assert capfd.readouterr() == ("", "")


def curve_steps(root: Path, run) -> list[tuple[int, float]]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{root / 'mlflow.db'}")
    return [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, "curve/total")]


@pytest.mark.parametrize(("error", "status"), [(ValueError("a bug"), "FAILED"), (KeyboardInterrupt(), "KILLED")])
def test_an_error_ends_the_run_and_is_raised_again(root, error, status):
    with pytest.raises(type(error)), stage_run("augment", "cola", params={}, tags={}):
        raise error
    [child] = children(root, "augment/cola")
    assert child.info.status == status
    assert child.info.end_time is not None
    assert parent_of(root, child).info.status == status


def test_termination_ends_the_run(root):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as stopped, stage_run("augment", "rte", params={}, tags={}):
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(5)
    assert stopped.value.code == 143
    assert children(root, "augment/rte")[0].info.status == "KILLED"
    assert signal.getsignal(signal.SIGTERM) == before


def test_result_table_lies_on_the_parent(root):
    rows = [
        {"group": "cola", "model": "tinybert4", "score": 0.25, "collapsed": False},
        {"group": "domain", "model": "lazy", "perplexity": 8.5},
    ]
    for _ in range(2):  # a second report of the same state replaces the first
        with stored_run("report", "", params={}, tags={}) as run:
            run.log_result_table(rows, {"teacher": {"layers": 4}, "seeds": [42, 43]})
    child = children(root, "report")[0]
    parent = parent_of(root, child)
    assert parent.data.metrics == {"cola/tinybert4/score": 0.25, "domain/lazy/perplexity": 8.5}
    assert parent.data.params == {"teacher.layers": "4", "seeds": "[42, 43]"}
    assert child.data.metrics == {}
    table = json.loads((Path(child.info.artifact_uri) / "results.json").read_text())
    assert table["columns"] == ["group", "model", "score", "collapsed", "perplexity"]
    assert table["data"] == [["cola", "tinybert4", 0.25, False, None], ["domain", "lazy", None, None, 8.5]]


def test_the_experiments_name_comes_from_the_environment(root, monkeypatch):
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "another")
    with stored_run("report", "", params={}, tags={}):
        pass
    with sqlite3.connect(root / "mlflow.db") as database:
        names = "SELECT experiments.name FROM runs JOIN experiments USING (experiment_id) WHERE runs.name = 'report'"
        assert database.execute(names).fetchall() == [("another",)]


def test_datasets_are_inputs_of_the_run(root, capfd):
    frame = pd.DataFrame({"sentence": ["fish swim", "fish fly"], "label": [1, 0]})
    with stage_run("finetune_teacher", "cola", params={}, tags={}) as run:
        run.log_dataset(frame, "data/tasks/cola/train.jsonl", "cola-train", "training")
    [logged] = children(root, "finetune_teacher/cola")[0].inputs.dataset_inputs
    assert logged.dataset.name == "cola-train"
    assert json.loads(logged.dataset.source)["uri"].endswith("data/tasks/cola/train.jsonl")
    assert [tag.value for tag in logged.tags] == ["training"]
    assert capfd.readouterr() == ("", "")


def test_final_models_are_external_models(root):
    weights = root / "models/final/cola/tinybert4/model.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"abc")
    from mlflow.tracking import MlflowClient

    with stored_run("package", "cola-tinybert4", params={}, tags={}) as run:
        run.log_model_reference("cola-tinybert4", Path("models/final/cola/tinybert4"), {"dev": {"mcc": 0.5}})
    client = MlflowClient(tracking_uri=f"sqlite:///{root / 'mlflow.db'}")
    child = children(root, "package/cola-tinybert4")[0]
    [model] = client.search_logged_models([child.info.experiment_id])
    assert {
        "dvc.path": "models/final/cola/tinybert4",
        "dvc.md5": "900150983cd24fb0d6963f7d28e17f72",
    }.items() <= model.tags.items()
    assert (model.name, model.source_run_id) == ("cola-tinybert4", child.info.run_id)
    assert [(metric.key, metric.value) for metric in model.metrics] == [("dev/mcc", 0.5)]


@pytest.mark.parametrize("arguments", [(), ({"blocks": 5}, 1, 2)])
def test_a_wrong_call_fails_in_the_stage(arguments):
    with pytest.raises(TypeError, match="argument"):
        tracking.Run().log_metrics(*arguments)
    with pytest.raises(AttributeError, match="log_metric"):
        tracking.Run().log_metric({"blocks": 5}, 1)


def test_without_a_store_the_work_continues(root, monkeypatch, capfd):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with stage_run("tokenize", "domain", params={"a": 1}, tags={}) as run:
        run.log_metrics({"blocks": 5})
        run.log_metrics({"curve": {"total": 1.0}}, 1)
        run.log_result_table([{"group": "a", "model": "b", "c": 1}], {})
    assert one_warning(capfd)


def test_an_unwritable_project_is_no_error(root, capfd):
    (root / "mlflow.db.lock").mkdir()
    with stage_run("tokenize", "domain", params={}, tags={}):
        pass
    assert one_warning(capfd)


def test_a_store_that_fails_later_is_given_up(root, capfd):
    with stage_run("quantize", "cola-teacher", params={}, tags={}) as run:
        wait_for_run(root, "quantize/cola-teacher")
        with sqlite3.connect(root / "mlflow.db") as database:
            database.execute("DROP TABLE metrics")
        for step in range(3):
            run.log_metrics({"curve": {"total": 1.0}}, step)
    assert "no such table: metrics" in one_warning(capfd)
    with sqlite3.connect(root / "mlflow.db") as database:
        status = database.execute("SELECT status FROM runs WHERE name = 'quantize/cola-teacher'").fetchall()
    assert status == [("FAILED",)]


def test_a_store_that_does_not_answer_ends_the_wait(root, monkeypatch, capfd):
    monkeypatch.setattr(tracking, "LONGEST_WAIT_S", 2)
    monkeypatch.setattr(sys, "executable", PYTHON)  # a kill ends the client of the fork server, not the fork
    with open(root / "mlflow.db.lock", "a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with stage_run("tokenize", "domain", params={}, tags={}) as run:
            run.log_metrics({"sequences": 5})
    assert one_warning(capfd).endswith("its process was killed, or took too long")


KILLED_STAGE = """
import sys, time
from tinybert.pipeline.tracking import stage_run
with stage_run("prune", "cola", params={}, tags={}):
    time.sleep(60)
"""


def wait_for_run(root: Path, name: str) -> None:
    for _ in range(300):
        with sqlite3.connect(root / "mlflow.db") as database:
            if database.execute("SELECT status FROM runs WHERE name = ?", (name,)).fetchall():
                return
        time.sleep(0.1)
    raise TimeoutError(name)


def test_a_killed_stage_leaves_a_killed_run(root):
    stage = subprocess.Popen([PYTHON, "-c", KILLED_STAGE], env=clean_environment())
    wait_for_run(root, "prune/cola")
    stage.kill()
    stage.wait()
    for _ in range(300):
        if children(root, "prune/cola")[0].info.status == "KILLED":
            return
        time.sleep(0.1)
    pytest.fail("the run is still open")


def one_warning(capfd) -> str:
    out, err = capfd.readouterr()
    assert out == ""
    [line] = err.splitlines()
    assert line.startswith("tracking: continues without MLflow")
    return line


def test_only_the_first_of_several_processes_tracks(root, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    before = len(runs(root))
    with stage_run("general_distill", "lazy", params={}, tags={}):
        pass
    assert len(runs(root)) == before
