"""What a process of a stage needs: its random streams, its place among the launched ones, and progress bars."""

import hashlib
import os
import shlex
import shutil
import sys
from typing import Any

import numpy as np
from tqdm import tqdm

from tinybert.pipeline.errors import UserError

# Such as "accelerate launch --num_processes 2". Not part of params: how a stage is launched is no setting of the
# experiment, and changing it reruns nothing.
LAUNCHER = "TINYBERT_LAUNCHER"
LAUNCHED = "TINYBERT_LAUNCHED"  # set for the processes that a launcher starts: not every launcher leaves a mark


def stream(seed: int, purpose: str, *place: int) -> np.random.Generator:
    """A random generator that shares nothing with those of other purposes, places or seeds.

    Args:
        seed: The seed from params.
        purpose: Such as "order" or "masks". It is hashed into NumPy's seed, because NumPy drops trailing zeros, so
            that (42,), (42, 0) and (42, 0, 0) alone would give one stream.
        place: Such as epoch, step and row.
    """
    tag = int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:4])
    return np.random.default_rng((tag, len(place), *place, seed))


def torch_seed(seed: int, purpose: str, *place: int) -> int:
    """The same as a number for torch's generators."""
    return int(stream(seed, purpose, *place).integers(2**63))


def is_main_process() -> bool:
    """Whether this process writes and reports: the only one, or the first of several."""
    return int(os.environ.get("RANK", "0")) == 0


def relaunch(script: str, arguments: list[str]) -> None:
    """Replaces this process by the module `script` under the launcher that the environment names, if there is one.

    Returns in the launched processes. Raises UserError if the launcher is no command.
    """
    command = shlex.split(os.environ.get(LAUNCHER, ""))
    if not command or LAUNCHED in os.environ:
        return
    if not shutil.which(command[0]):
        raise UserError(f"{LAUNCHER}: {command[0]!r} is no command here; fix: name one, such as accelerate launch")
    os.environ[LAUNCHED] = "1"
    os.execvp(command[0], [*command, "-m", script, *arguments])


def progress_bar(**settings: Any) -> tqdm:
    """A tqdm bar that redraws in place on a terminal and prints few lines into a log file."""
    return tqdm(**_style(), **settings)


def _style() -> dict[str, Any]:
    interactive = sys.stderr.isatty()
    return {"mininterval": 0.2 if interactive else 20, "dynamic_ncols": interactive, "leave": interactive}


class TextBar(tqdm):
    """A bar of bytes that also shows documents per second."""

    documents = 0

    def advance(self, size_bytes: int, *, documents: int) -> None:
        """Counts what was done since the last call."""
        self.documents += documents
        self.update(size_bytes)

    @property
    def format_dict(self) -> dict:
        """What tqdm shows, with the documents per second behind it."""
        shown = super().format_dict
        rate = self.documents / shown["elapsed"] if shown["elapsed"] else 0
        return {**shown, "postfix": f"{rate:,.0f} documents/s"}


def text_progress_bar(title: str, total_bytes: int | None = None) -> TextBar:
    """A bar of MB/s, documents/s and, if the total is known, the remaining time; it appears after a second."""
    return TextBar(desc=title, total=total_bytes, unit="B", unit_scale=True, delay=1, **_style())
