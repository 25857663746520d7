"""The revision that the page names."""

import subprocess

from tinybert.report.versions import revision_rows


def git(folder, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    return subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_the_commit_and_sources_that_differ_from_it(tmp_path):
    git(tmp_path, "init", "-q")
    for name in ("params.yaml", "README.md"):
        (tmp_path / name).write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    commit = git(tmp_path, "rev-parse", "HEAD").strip()
    (tmp_path / "README.md").write_text("2")  # decides no result
    assert revision_rows(tmp_path) == [("git revision", commit), ("sources not committed", "none")]
    (tmp_path / "params.yaml").write_text("2")
    (tmp_path / "src").mkdir()
    for number in range(6):
        (tmp_path / f"src/{number}.py").write_text("new")
    git(tmp_path, "add", "src")
    named = "params.yaml, src/0.py, src/1.py, src/2.py, src/3.py and 2 more"
    assert revision_rows(tmp_path)[1] == ("sources not committed", named)


def test_where_there_is_no_repository(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert revision_rows(tmp_path) == [("git revision", "none")]
