"""Two files that DVC writes in place, so that a kill may cut them short: `make repro` mends them first.

dvc.lock, by which DVC knows what is finished, becomes what it was when the last stage began (stage.py keeps it), so
that at most the stage that had just ended is run again. The list of which process reads and writes which file is
removed: it is of use to processes that are alive.
"""

import json
import os
from pathlib import Path

from tinybert.paths import KEPT_LOCK_FILE, LOCK_FILE

READERS_AND_WRITERS = Path(".dvc/tmp/rwlock")


def mend_cut_files() -> list[Path]:
    """Mends those of the two files of the project in the current folder that cannot be read; returns them."""
    checks = {LOCK_FILE: _is_lock_file, READERS_AND_WRITERS: _is_json}
    cut = [path for path, is_whole in checks.items() if path.exists() and not is_whole(path)]
    for path in cut:
        if path == LOCK_FILE and KEPT_LOCK_FILE.is_file():
            os.replace(KEPT_LOCK_FILE, path)
        else:
            path.unlink()
    return cut


def _is_lock_file(path: Path) -> bool:
    """By DVC's own judgement."""
    from dvc.dvcfile import Lockfile
    from dvc.repo import Repo
    from dvc.utils.serialize import ParseError
    from dvc.utils.strictyaml import YAMLValidationError

    file = Lockfile(Repo(), str(path))
    try:
        file.load()
    except (ParseError, YAMLValidationError):
        return False
    return True


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_text())
    except ValueError:
        return False
    return True


def main() -> None:
    for path in mend_cut_files():
        print(f"{path}: was cut short when DVC was killed; mended, at most one finished stage runs again")


if __name__ == "__main__":
    main()
