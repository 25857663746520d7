"""What the page was made with: the project's revision, Python and the packages that decide results."""

import platform
from pathlib import Path

from tinybert.pipeline.tracking import RESULT_PATHS, git, package_versions
from tinybert.report.results import Results
from tinybert.report.table import Table

NAMED_CHANGES = 5


def versions_table(results: Results) -> Table:
    """Revision, what of the sources was not committed, seed, Python and packages."""
    rows = [
        *revision_rows(results.root),
        ("seed", str(results.params.seed)),
        ("Python", platform.python_version()),
        ("machine", f"{platform.system()} {platform.machine()}"),
        *package_versions().items(),
    ]
    return Table("Versions", ("", "version"), rows, names=2)


def revision_rows(root: Path) -> list[tuple[str, str]]:
    """The commit, and the sources that differ from it; one row that says so where there is no git repository."""
    commit = git("rev-parse", "HEAD", root=root)
    if not commit:
        return [("git revision", "none")]
    changed = [line[3:] for line in git("status", "--porcelain", "--", *RESULT_PATHS, root=root).splitlines()]
    more = len(changed) - NAMED_CHANGES
    named = ", ".join(changed[:NAMED_CHANGES]) + (f" and {more} more" if more > 0 else "")
    return [("git revision", commit), ("sources not committed", named or "none")]
