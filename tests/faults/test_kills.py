"""Kill anything, lose nothing: `dvc repro` and studies are killed, run again, and end as if undisturbed."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.support.outputs import check_whole, few_students_params, hashes, leftovers
from tests.support.project import copy_project, run, tiny_params, write_params
from tests.unit.report.test_studies import SMALL

KILLS = 20
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
SECONDS_TO_UNWIND = 60
ALWAYS_SAVED = {"TINYBERT_CHECKPOINT_SECONDS": "0"}


def start(project: Path, *command: str, log: Path, **environment: str) -> subprocess.Popen:
    """A Python module in the copy, as the head of a process group of its own, which Ctrl-C reaches."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("DVC_", "MLFLOW_"))}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with open(log, "a", encoding="utf-8") as handle:
        return subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=project,
            env=inherited | {"PATH": path, "PYTHONUNBUFFERED": "1"} | environment,
            stdout=handle,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )


def kill_group(process: subprocess.Popen, number: signal.Signals) -> None:
    """Sends the signal to all processes of the group, and waits till they are gone."""
    os.killpg(process.pid, number)
    process.wait(timeout=SECONDS_TO_UNWIND)
    deadline = time.monotonic() + SECONDS_TO_UNWIND
    while members(process.pid):
        assert time.monotonic() < deadline, f"{number.name} did not end {members(process.pid)}"
        time.sleep(0.05)


def members(group: int) -> list[str]:
    """The command lines of a process group's members that are still at work."""
    listed = subprocess.run(["ps", "-eo", "pgid=,stat=,args="], check=True, capture_output=True, text=True).stdout
    rows = (line.split(maxsplit=2) for line in listed.splitlines())
    return [args for number, state, args in rows if int(number) == group and not state.startswith("Z")]


def wait_for(happened, process: subprocess.Popen, *, seconds: float = 1000) -> bool:
    """Whether it happened before the process ended."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        if process.poll() is not None:
            return False
        time.sleep(0.005)
    return True


def saved_step(project: Path, stage: str) -> int:
    """The step of the stage's checkpoint, 0 where there is none."""
    try:
        (path,) = (project / f".checkpoints/{stage}").glob("*.pt")
        return torch.load(path, weights_only=True)["step"]
    except (OSError, ValueError):
        return 0


def test_a_killed_training_resumes_and_ends_with_the_same_bytes(tmp_path):
    project, log = copy_project(tmp_path / "project"), tmp_path / "log"
    tree = tiny_params()
    tree["teacher"]["pretraining"] |= {"epochs": 100, "max_steps": 300}
    write_params(project, tree)
    repro = ("dvc", "repro", "prepare_teacher")
    assert run(project, "dvc", "repro", "tokenize@general").returncode == 0  # what it needs, in less time than below
    process = start(project, *repro, log=log, **ALWAYS_SAVED)
    assert wait_for(lambda: saved_step(project, "prepare_teacher") >= 5, process), log.read_text()
    kill_group(process, signal.SIGKILL)
    assert 5 <= saved_step(project, "prepare_teacher") < 300
    assert not (project / "models/teacher").exists()
    check_whole(project)
    resumed = run(project, *repro)
    assert resumed.returncode == 0, resumed.stderr[-3000:]
    assert re.findall("Running stage '(.*)'", resumed.stdout) == ["prepare_teacher"]
    assert leftovers(project) == []
    after_kill = hashes(project)
    shutil.rmtree(project / ".dvc/cache")
    (project / "dvc.lock").unlink()
    undisturbed = run(project, *repro, "--single-item")
    assert "Running stage 'prepare_teacher'" in undisturbed.stdout
    assert hashes(project) == after_kill
    assert {"reports/metrics/prepare_teacher.json", "models/teacher/model.safetensors"} <= after_kill.keys()


@pytest.mark.long
def test_twenty_kills_at_random_moments_change_nothing(tmp_path):
    whole, project = (copy_project(tmp_path / name) for name in ("whole", "killed"))
    for folder in (whole, project):
        write_params(folder, few_students_params())
    began = time.monotonic()
    undisturbed = run_long(whole, "dvc", "repro", log=tmp_path / "whole.log")
    seconds = time.monotonic() - began
    stages = len(started(tmp_path / "whole.log"))
    draw, log = random.Random(0), tmp_path / "killed.log"
    log.touch()
    signals = []
    for number in range(KILLS):
        removed = run(project, "tinybert.cli", "repair", PYTHONPATH="src")  # as make repro does
        assert removed.returncode == 0, removed.stderr
        print(removed.stdout, end="")
        process = start(project, "dvc", "repro", log=log, **ALWAYS_SAVED)
        goal = stages * number // KILLS + 1  # so that the kills are spread over the run, and it gets on
        if number % 4:
            wait_for(lambda goal=goal: len(started(log)) >= goal, process, seconds=3 * seconds)
        time.sleep(draw.uniform(0, 1.5 * seconds / stages))
        assert process.poll() is None, f"kill {number} came too late\n{log.read_text()[-3000:]}"
        signals.append(draw.choice(SIGNALS))
        kill_group(process, signals[-1])
        print(f"kill {number}: {signals[-1].name}, {len(started(log))} of {stages} stages begun", flush=True)
        check_whole(project)
    assert set(signals) == set(SIGNALS)
    run(project, "tinybert.cli", "repair", PYTHONPATH="src")
    run_long(project, "dvc", "repro", log=log)
    assert undisturbed == hashes(project)
    assert leftovers(project) == []


def run_long(project: Path, *command: str, log: Path) -> dict[str, str]:
    """Runs it to its good end, however long it takes; the hashes of its outputs."""
    assert start(project, *command, log=log).wait() == 0, log.read_text()[-3000:]
    return hashes(project)


def started(log: Path) -> set[str]:
    """The stages that have begun so far."""
    return set(re.findall("Running stage '(.*)'", log.read_text()))


STUDY = SMALL.replace("seeds: 2", "seeds: 1")
CONDUCT = ("tinybert.cli", "study", "small")
IN_STUDY = ALWAYS_SAVED | {"PYTHONPATH": "src"}


@pytest.mark.long
def test_a_killed_study_resumes_and_runs_no_experiment_twice(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    write_params(copy_project(whole), few_students_params())
    (whole / "studies/small.yaml").write_text(STUDY)
    shutil.copytree(whole, killed, symlinks=True)
    log = tmp_path / "whole.log"
    assert start(whole, *CONDUCT, log=log, **IN_STUDY).wait() == 0, log.read_text()
    log = tmp_path / "killed.log"
    for variant, moment in (("uniform", "==="), ("uniform", "Running stage 'p"), ("top", "Running stage 'p")):
        kill_study(killed, log, f"=== small-{variant}", moment)
        check_whole(killed)
        assert (killed / "params.yaml").read_text() == (whole / "params.yaml").read_text()
    log.write_text("")
    assert start(killed, *CONDUCT, log=log, **IN_STUDY).wait() == 0, log.read_text()
    assert "2 experiments, 1 to run: top\n" in log.read_text()
    file = "reports/studies/README.md"
    assert (killed / file).read_text() == (whole / file).read_text()
    names = run(killed, "dvc", "exp", "list", "--all-commits", "--name-only").stdout.split()
    assert [name.split("-")[1] for name in sorted(names)] == ["top", "uniform"]
    log.write_text("")
    assert start(killed, *CONDUCT, log=log, **IN_STUDY).wait() == 0, log.read_text()
    assert "2 experiments, 0 to run" in log.read_text() and "Running stage" not in log.read_text()


def kill_study(project: Path, log: Path, *moments: str) -> None:
    """Kills the study two seconds after all of the moments are in its log, and does what it asks for then, if it does.

    Two seconds into an experiment DVC has put the workspace's changes aside, at times.
    """
    log.write_text("")
    process = start(project, *CONDUCT, log=log, **IN_STUDY)
    assert wait_for(lambda: all(moment in log.read_text() for moment in moments), process), log.read_text()
    time.sleep(2)
    kill_group(process, signal.SIGKILL)
    check = [sys.executable, "-c", "from tinybert.report.studies import *; check_disturbed_workspace()"]
    asked = subprocess.run(check, cwd=project, env=os.environ | IN_STUDY, capture_output=True, text=True)
    if fix := re.search("restore them with (.*) \\(if nothing", asked.stderr):
        subprocess.run(fix[1], shell=True, cwd=project, check=True, capture_output=True)
