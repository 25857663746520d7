"""Two files that DVC writes in place, so that a kill may cut them short: `make repro` removes what is cut.

Of what ran here nothing but the report is run again, for DVC's run cache in .dvc/cache/runs knows what dvc.lock says of
finished stages; the list of who reads and writes which file is of use to processes that are alive.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dvc.repo import Repo

Checks = dict[Path, Callable[[Path], bool]]
LOCK_FILE = Path("dvc.lock")
READERS_AND_WRITERS = Path(".dvc/tmp/rwlock")
CONFLICT = b"<<<<<<<"  # git's; to be mended by hand


def remove_cut_files() -> list[Path]:
    """Removes of the two files of the project in the current folder those that cannot be read; returns them.

    None while another DVC is at work, which may just be writing them.
    """
    from dvc.lock import LockError
    from dvc.repo import Repo

    repo = Repo()
    try:
        with repo.lock:
            checks: Checks = {LOCK_FILE: partial(_is_lock_file, repo), READERS_AND_WRITERS: _is_json}
            cut = [path for path, is_whole in checks.items() if path.exists() and not is_whole(path)]
            for path in cut:
                path.unlink()
            return cut
    except LockError:
        return []


def _is_lock_file(repo: "Repo", path: Path) -> bool:
    """By DVC's own judgement."""
    from dvc.dvcfile import Lockfile
    from dvc.utils.serialize import ParseError
    from dvc.utils.strictyaml import YAMLValidationError

    try:
        Lockfile(repo, str(path)).load()
    except (ParseError, YAMLValidationError):
        return CONFLICT in path.read_bytes()
    return True


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_text())
    except ValueError:
        return False
    return True


def main() -> None:
    for path in remove_cut_files():
        print(f"{path}: was cut short when DVC was killed; removed, for DVC finds what is finished without it")


if __name__ == "__main__":
    main()
