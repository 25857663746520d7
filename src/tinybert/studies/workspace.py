"""The user's workspace while DVC runs an experiment.

To set one up DVC puts changes that are not committed aside, into git's stash, and leaves the branch for some seconds. A
kill just then leaves it so, and the study would go on with other settings.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import read_json, write_json
from tinybert.pipeline.tracking import git

NOTE = Path(".dvc/tmp/study.json")  # there while an experiment is run, and after a kill
LOCK = Path(".dvc/tmp/study.lock")


@contextmanager
def only_study() -> Iterator[None]:
    """UserError where another study is at work: two would take each other's stash for a kill's."""
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    with open(LOCK, "a", encoding="utf-8") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError("another study runs in this project; say it again when that one has ended") from None
        yield


@contextmanager
def noted_workspace() -> Iterator[None]:
    """Notes branch and stash for `check_disturbed_workspace` of a later run, should this one be killed."""
    write_json(NOTE, _state())
    yield
    NOTE.unlink()


def check_disturbed_workspace() -> None:
    """UserError with the commands that mend it, where a kill left the workspace as DVC had it for some seconds."""
    if not NOTE.is_file():
        return
    before, now = read_json(NOTE), _state()
    commands = []
    if before["branch"] and not now["branch"]:
        commands.append(f"git checkout --force {before['branch']}")
    if now["stash"] not in ("", before["stash"]):
        commands.append("git stash pop")
    if commands:
        raise UserError(
            "the study was killed while DVC had put the workspace's changes aside; bring them back with "
            f"{' && '.join(commands)} (where all is as it should be: rm {NOTE}), and say it again"
        )
    NOTE.unlink()


def _state() -> dict[str, str]:
    """The branch, empty where none is checked out, and the newest commit of the stash, empty where it is."""
    return {
        "branch": git("symbolic-ref", "--short", "HEAD"),
        "stash": git("rev-parse", "--verify", "--quiet", "refs/stash"),
    }
