"""What the page was made with: the project's revision, Python and the packages that decide results."""

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tinybert.report.results import Results
from tinybert.report.table import Table

PACKAGES = ("torch", "transformers", "tokenizers", "datasets", "onnxruntime", "numpy", "scikit-learn", "mlflow", "dvc")
SOURCES = ("src", "stages", "params.yaml", "dvc.yaml", "requirements.txt")  # what decides results; not their outputs
NAMED_CHANGES = 5


def versions_table(results: Results) -> Table:
    """Revision, what of the sources was not committed, seed, Python and packages."""
    rows = [
        *revision_rows(results.root),
        ("seed", str(results.params.seed)),
        ("Python", platform.python_version()),
        ("machine", f"{platform.system()} {platform.machine()}"),
    ]
    for package in PACKAGES:
        try:
            rows.append((package, version(package)))
        except PackageNotFoundError:
            rows.append((package, "not installed"))
    return Table("Versions", ("", "version"), rows, names=2)


def revision_rows(root: Path) -> list[tuple[str, str]]:
    """The commit, and the sources that differ from it; one row that says so where there is no git repository."""
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return [("git revision", "none")]
    changed = [line[3:] for line in (_git(root, "status", "--porcelain", "--", *SOURCES) or "").splitlines()]
    more = len(changed) - NAMED_CHANGES
    named = ", ".join(changed[:NAMED_CHANGES]) + (f" and {more} more" if more > 0 else "")
    return [("git revision", commit.strip()), ("sources not committed", named or "none")]


def _git(root: Path, *arguments: str) -> str | None:
    """What git prints; None where it fails or is not there."""
    try:
        answer = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout if answer.returncode == 0 else None
