"""Two files that DVC writes in place, so that a kill may cut them short: `make repro` removes what is cut.

Nothing is lost: DVC's run cache in .dvc/cache/runs knows what dvc.lock says of finished stages, and the list of who
reads and writes which file is of use to processes that are alive.
"""

import json
from pathlib import Path

LOCK_FILE = Path("dvc.lock")
READERS_AND_WRITERS = Path(".dvc/tmp/rwlock")


def remove_cut_files() -> list[Path]:
    """Removes of the two files of the project in the current folder those that cannot be read; returns them."""
    checks = {LOCK_FILE: _is_lock_file, READERS_AND_WRITERS: _is_json}
    cut = [path for path, is_whole in checks.items() if path.exists() and not is_whole(path)]
    for path in cut:
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
    for path in remove_cut_files():
        print(f"{path}: was cut short when DVC was killed; removed, for DVC finds what is finished without it")


if __name__ == "__main__":
    main()
