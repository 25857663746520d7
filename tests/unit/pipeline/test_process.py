"""Random streams that share nothing, how a training stage is launched, the bar of text, the revision."""

import itertools
import os

import pytest

from tests.support.project import commit_all, git
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.process import (
    LAUNCHED,
    LAUNCHER,
    code_revision,
    is_main_process,
    package_versions,
    relaunch,
    stream,
)

PLACES = [(42, "order"), (42, "order", 0), (42, "order", 0, 0), (42, "masks", 0), (42, "masks", 0, 0), (0, "order", 42)]


def first_draw(place) -> float:
    return stream(*place).random()


def test_the_same_place_gives_the_same_numbers():
    assert first_draw((42, "order", 3)) == first_draw((42, "order", 3))


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(PLACES, 2)))
def test_different_places_give_different_numbers(one, other):
    assert first_draw(one) != first_draw(other)


@pytest.fixture
def executed(monkeypatch):
    calls = []
    monkeypatch.setattr(os, "execvp", lambda *call: calls.append(call))
    for name in ("RANK", LAUNCHED):
        monkeypatch.delenv(name, raising=False)
    return calls


def test_without_a_launcher_the_process_continues(executed, monkeypatch):
    monkeypatch.delenv(LAUNCHER, raising=False)
    relaunch("stages.general_distill", ["--student", "lazy"])
    assert executed == []


def test_the_launcher_gets_the_stage_as_a_module(executed, monkeypatch):
    monkeypatch.setenv(LAUNCHER, "env 'two words' -x")
    relaunch("stages.general_distill", ["--student", "lazy"])
    assert executed == [("env", ["env", "two words", "-x", "-m", "stages.general_distill", "--student", "lazy"])]


def test_a_launched_process_launches_no_more(executed, monkeypatch):
    """Though its launcher leaves no rank, as Accelerate's does for one process."""
    monkeypatch.setenv(LAUNCHER, "env")
    relaunch("stages.general_distill", [])
    relaunch("stages.general_distill", [])
    assert len(executed) == 1
    monkeypatch.delenv(LAUNCHED)


def test_the_first_of_several_processes_writes(executed, monkeypatch):
    assert is_main_process()
    monkeypatch.setenv("RANK", "1")
    assert not is_main_process()
    monkeypatch.setenv("RANK", "0")
    assert is_main_process()


def test_a_launcher_that_is_no_command_is_refused(executed, monkeypatch):
    monkeypatch.setenv(LAUNCHER, "no-such-launcher launch")
    with pytest.raises(UserError, match="TINYBERT_LAUNCHER: 'no-such-launcher' is not a command here"):
        relaunch("stages.general_distill", [])


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A git repository with code, params and a result, one commit."""
    monkeypatch.chdir(tmp_path)
    for name in ("src/a.py", "params.yaml", "metrics/a.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1\n")
    commit_all(tmp_path)
    return tmp_path


def test_a_commit_of_results_is_no_new_revision_of_the_code(project):
    code = git(project, "rev-parse", "HEAD")
    (project / "metrics/a.json").write_text("2\n")
    assert code_revision() == code
    git(project, "commit", "--quiet", "--all", "--message", "results")
    assert code_revision() == code != git(project, "rev-parse", "HEAD")


@pytest.mark.parametrize("name", ["src/a.py", "params.yaml", "src/new.py"])
def test_uncommitted_changes_of_code_or_params_are_reported(project, name):
    (project / name).write_text("3\n")
    assert code_revision() == f"{git(project, 'rev-parse', 'HEAD')} and uncommitted changes"


def test_outside_of_git_there_is_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert code_revision() == "none"


def test_versions_are_those_that_are_installed():
    import torch

    installed = package_versions()["torch"]  # PyPI's wheel names its build, such as +cu130, in the module alone
    assert torch.__version__ in (installed, f"{installed}+{torch.__version__.partition('+')[2]}")
