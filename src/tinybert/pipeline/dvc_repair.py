"""Removes DVC files that a kill cut short. DVC writes them in place and refuses to start when it cannot read them."""

import json
from pathlib import Path

LOCK_FILE = Path("dvc.lock")
READERS_AND_WRITERS = Path(".dvc/tmp/rwlock")


def remove_cut_files() -> list[Path]:
    """Removes dvc.lock and DVC's list of readers and writers if they are unreadable; does nothing while DVC is running.

    Nothing is lost: DVC restores finished stages from its run cache, and the list matters to live processes only.

    Returns:
        The removed files. A dvc.lock with git conflict markers stays: people resolve those.
    """
    from dvc.dvcfile import Lockfile
    from dvc.lock import LockError
    from dvc.repo import Repo
    from dvc.utils.serialize import ParseError
    from dvc.utils.strictyaml import YAMLValidationError

    repo, cut = Repo(), []
    try:
        with repo.lock:
            try:
                Lockfile(repo, str(LOCK_FILE)).load()
            except (ParseError, YAMLValidationError):
                cut += [LOCK_FILE] if b"<<<<<<<" not in LOCK_FILE.read_bytes() else []
            try:
                json.loads(READERS_AND_WRITERS.read_text() if READERS_AND_WRITERS.exists() else "{}")
            except ValueError:
                cut.append(READERS_AND_WRITERS)
            for path in cut:
                path.unlink()
    except LockError:
        return []
    return cut


if __name__ == "__main__":
    for path in remove_cut_files():
        print(f"{path}: removed, because a kill cut it short; DVC restores finished stages from its cache")
