"""Which commit made a result."""

import pytest

from tests.support.project import commit_all, git
from tinybert.pipeline.process import code_revision, package_versions


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
