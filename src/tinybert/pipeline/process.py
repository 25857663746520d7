"""What a process of a stage needs: its random streams, its place among the launched ones, and progress bars."""

import hashlib
import os
import shlex
import shutil
import sys
import time
from typing import Any

import numpy as np
from tqdm import tqdm

from tinybert.pipeline.errors import UserError

# Such as "accelerate launch --num_processes 2". Not part of params: how a stage is launched does not belong to the
# experiment, and changing it reruns nothing.
LAUNCHER = "TINYBERT_LAUNCHER"
LAUNCHED = "TINYBERT_LAUNCHED"  # set for the processes that a launcher starts: not every launcher leaves a mark


def stream(seed: int, purpose: str, *place: int) -> np.random.Generator:
    """A random generator that shares nothing with those of other purposes ("order", "masks"), places or seeds.

    `place` is such as epoch, step and row.
    """
    # The number of places is part of NumPy's seed, which drops trailing zeros: (42, 0) alone would be as (42, 0, 0).
    tag = int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:4])
    return np.random.default_rng((tag, len(place), *place, seed))


def dropout_seed(seed: int, *place: int) -> int:
    """The seed of torch's generator for a step's dropout."""
    return int(stream(seed, "dropout", *place).integers(2**63))


def is_main_process() -> bool:
    """Whether this process writes and reports: the only one, or the first of several."""
    return int(os.environ.get("RANK", "0")) == 0


def relaunch(script: str, arguments: list[str]) -> None:
    """Replaces this process by the module `script` under the launcher that the environment names, if there is one.

    Returns in the launched processes. Raises UserError if the launcher is not a command.
    """
    command = shlex.split(os.environ.get(LAUNCHER, ""))
    if not command or LAUNCHED in os.environ:
        return
    if not shutil.which(command[0]):
        raise UserError(f"{LAUNCHER}: {command[0]!r} is not a command here; fix: name one, such as accelerate launch")
    os.environ[LAUNCHED] = "1"
    os.execvp(command[0], [*command, "-m", script, *arguments])


def progress_bar(**settings: Any) -> tqdm:
    """A tqdm bar that redraws in place on a terminal and prints few lines into a log file."""
    return tqdm(**_style(), **settings)


def _style() -> dict[str, Any]:
    interactive = sys.stderr.isatty()
    return {"mininterval": 0.2 if interactive else 20, "dynamic_ncols": interactive, "leave": interactive}


class TextBar(tqdm):
    """A bar of MB/s, documents/s and, if the total is known, the remaining time; it appears after a second."""

    documents = 0

    def __init__(self, title: str, total_bytes: int | None = None) -> None:
        super().__init__(desc=title, total=total_bytes, unit="B", unit_scale=True, delay=1, **_style())

    def advance(self, size_bytes: int) -> None:
        """Counts a document of this size."""
        self.documents += 1
        rate = self.documents / max(time.time() - self.start_t, 1e-9)
        self.set_postfix_str(f"{rate:,.0f} documents/s", refresh=False)
        self.update(size_bytes)
