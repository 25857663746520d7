"""Files of DVC that a kill cut short are removed, and nothing that was finished is run again."""

import subprocess

import pytest
from dvc.repo import Repo

from tests.support.project import run
from tests.support.root import ROOT
from tinybert import cli
from tinybert.cli import LOCK_FILE, READERS_AND_WRITERS

STAGES = """
stages:
  one:
    cmd: echo ran >> runs && cp params.yaml out
    deps: [params.yaml]
    outs: [out]
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project of one stage, run."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "dvc.yaml").write_text(STAGES)
    (folder / "params.yaml").write_text("seed: 1\n")
    for command in (["init", "--quiet", "--no-scm"], ["repro"]):
        done = run(folder, "dvc", *command)
        assert done.returncode == 0, done.stderr
    return folder


def removed(capsys) -> list[str]:
    cli.main(["repair"])
    return [line.split(":")[0] for line in capsys.readouterr().out.splitlines()]


def test_outside_of_a_project_there_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        SystemExit, match=r"^repair: no dvc\.yaml in this folder; fix: run it in the repository's root$"
    ):
        cli.main(["repair"])


@pytest.mark.parametrize("left", [b"", b"schema: '2.0'\nstages:\n  one:\n    cmd", b"schema: '2.0'\nstages:\n  one: {"])
def test_dvc_continues_without_cut_files(project, left, monkeypatch, capsys):
    monkeypatch.chdir(project)
    LOCK_FILE.write_bytes(left)
    READERS_AND_WRITERS.write_bytes(b'{"write": {')
    cli.main(["repair"])
    assert capsys.readouterr().out.count("removed, because a kill cut it short") == 2
    again = run(project, "dvc", "repro")
    assert (again.returncode, (project / "runs").read_text()) == (0, "ran\n")
    assert b"md5" in LOCK_FILE.read_bytes()


def test_whole_and_absent_files_stay(project, monkeypatch, capsys):
    monkeypatch.chdir(project)
    before = LOCK_FILE.read_bytes()
    assert removed(capsys) == []
    assert LOCK_FILE.read_bytes() == before
    LOCK_FILE.unlink()
    READERS_AND_WRITERS.unlink(missing_ok=True)
    assert removed(capsys) == []


def test_conflicts_and_a_live_dvc_are_left_alone(project, monkeypatch, capsys):
    monkeypatch.chdir(project)
    conflict = b"<<<<<<< HEAD\nschema: '2.0'\n=======\nstages: {}\n>>>>>>> other\n"
    LOCK_FILE.write_bytes(conflict)
    assert removed(capsys) == []
    assert LOCK_FILE.read_bytes() == conflict
    LOCK_FILE.write_bytes(b"schema: '2.0'\nstages:\n  one: {")
    with Repo().lock:
        assert removed(capsys) == []
    assert removed(capsys) == [str(LOCK_FILE)]


def test_make_repro_repairs_before_dvc_runs():
    recipe = subprocess.run(["make", "--dry-run", "repro"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert recipe.index("tinybert.cli repair") < recipe.index("\ndvc repro\n")
