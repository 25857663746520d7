"""The record command keeps a finished run in results/, and refuses one that is not finished."""

import json
import re
import shutil
import subprocess

import pytest

from tests.support.project import git, run
from tests.support.root import ROOT
from tinybert import cli

STAGES = """
stages:
  general_distill:
    matrix:
      student: ${students}
    cmd: mkdir -p reports/timings/general_distill out && cp params.yaml out/${item.student} &&
      echo '{"seconds":1.5,"peak_memory_mb":1}' > reports/timings/general_distill/${item.student}.json
    deps: [code]
    params: [students]
    outs: ["out/${item.student}"]
  quantize:
    matrix:
      model: [cola-teacher]
    cmd: mkdir -p reports/timings/quantize reports/latency && echo '{"fp32":{}}' > reports/latency/${item.model}.json &&
      echo '{"seconds":0.5,"peak_memory_mb":1}' > reports/timings/quantize/${item.model}.json
    deps: [code]
    outs: ["reports/latency/${item.model}.json"]
  report:
    cmd: mkdir -p metrics/evaluate && cp params.yaml reports/summary.md && echo '{}' > reports/summary_metrics.json &&
      echo '{}' > metrics/evaluate/42.json && echo '{"seconds":2.25,"peak_memory_mb":1}' > reports/timings/report.json
    deps: [params.yaml, out]
    outs:
      - metrics: {cache: false}
      - reports/summary.md: {cache: false}
    metrics: [reports/summary_metrics.json: {cache: false}]
"""
IGNORED = "/out/\n/reports/*\n!/reports/summary.md\n!/reports/summary_metrics.json\n"
FILES = ["dvc.lock", "latency", "metrics", "params.yaml", "run.json", "summary.md", "summary_metrics.json"]


def commit(folder):
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "change")


def dvc(folder, *command):
    done = run(folder, "dvc", *command)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A project of two kinds of stages, run and committed."""
    folder = tmp_path_factory.mktemp("project")
    files = {"dvc.yaml": STAGES, "params.yaml": "students: [lazy, tinybert4]\n", "code": "1\n", ".gitignore": IGNORED}
    for name, text in files.items():
        (folder / name).write_text(text)
    git(folder, "init", "--quiet", "--initial-branch=main")
    dvc(folder, "init", "--quiet")
    commit(folder)
    dvc(folder, "repro")
    return folder


@pytest.fixture
def project(finished, tmp_path, monkeypatch):
    """A copy of it, the current folder; DVC knows the files by their times, so these are copied too."""
    shutil.copytree(finished, tmp_path / "project", symlinks=True)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def read_run(folder):
    return json.loads((folder / "results/minilm/run.json").read_text())


def test_record_holds_settings_numbers_code_and_timings(project):
    cli.main(["record", "minilm"])
    record = project / "results/minilm"
    assert sorted(path.name for path in record.iterdir()) == FILES
    for name in ("params.yaml", "dvc.lock", "metrics/evaluate/42.json"):
        assert (record / name).read_bytes() == (project / name).read_bytes()
    assert json.loads((record / "latency/cola-teacher.json").read_text()) == {"fp32": {}}
    found = read_run(project)
    assert found["revision"] == git(project, "rev-parse", "HEAD")
    distilled = {"general_distill@lazy": 1.5, "general_distill@tinybert4": 1.5}
    assert found["seconds"] == distilled | {"quantize@cola-teacher": 0.5, "report": 2.25}
    assert found["total_seconds"] == 5.8
    assert found["processor"] and found["threads"] and {"python", "torch"} <= found["versions"].keys()


def test_record_replaces_an_older_one(project):
    (project / "results/minilm").mkdir(parents=True)
    (project / "results/minilm/older.json").write_text("{}")
    cli.main(["record", "minilm"])
    assert sorted(path.name for path in (project / "results/minilm").iterdir()) == FILES


def test_record_refuses_uncommitted_code(project):
    (project / "notes.py").write_text("")
    with pytest.raises(SystemExit, match=r"^git status: uncommitted files \(got 1, first \?\? notes.py\); fix: commit"):
        cli.main(["record", "minilm"])
    assert not (project / "results/minilm").exists()


def test_record_can_be_checked_as_its_readme_says(project):
    cli.main(["record", "minilm"])
    (project / "code").write_text("2\n")
    (project / "params.yaml").write_text("students: [lazy]\n")
    dvc(project, "repro")
    commit(project)
    git(project, "checkout", "--quiet", read_run(project)["revision"])
    git(project, "checkout", "main", "--", "results")
    commands = re.search(r"^rm -rf .*\n.*", (ROOT / "results/README.md").read_text(encoding="utf-8"), re.MULTILINE)
    subprocess.run(["sh", "-ec", commands[0].replace("NAME", "minilm")], check=True)
    dvc(project, "checkout")
    assert "up to date" in dvc(project, "status")
    (project / "params.yaml").write_text("students: [lazy, tinybert4]\n# changed\n")
    assert "params.yaml" in dvc(project, "status")


def test_record_refuses_a_run_that_is_not_up_to_date(project):
    (project / "code").write_text("2\n")
    with pytest.raises(SystemExit, match=r"^dvc status: not up to date \(got \d stages, first .*\); fix: dvc repro$"):
        cli.main(["record", "minilm"])
    assert not (project / "results").exists()


def test_record_refuses_a_run_without_a_lock(project):
    (project / "dvc.lock").unlink()
    with pytest.raises(SystemExit, match=r"^dvc status: not up to date .*; fix: dvc repro$"):
        cli.main(["record", "minilm"])


def test_record_refuses_a_run_without_a_timing(project):
    (project / "reports/timings/general_distill/lazy.json").unlink()
    fix = "fix: dvc repro --force --single-item general_distill@lazy$"
    with pytest.raises(SystemExit, match=rf"^reports/timings/general_distill/lazy.json: missing, .*; {fix}"):
        cli.main(["record", "minilm"])
    assert not (project / "results").exists()


@pytest.mark.parametrize("name", ["..", "a/b", "README.md", ""])
def test_record_refuses_names_that_are_no_folder(project, name):
    with pytest.raises(SystemExit, match=r"^NAME: .*; allowed: .*; fix: "):
        cli.main(["record", name])


def test_record_outside_of_a_dvc_project_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=r"^dvc status: failed \([^\n]*\); fix: [^\n]*$"):
        cli.main(["record", "minilm"])
