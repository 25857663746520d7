"""Checkpoints from which an interrupted run resumes: the state that its next steps depend on, in one PyTorch file."""

import fcntl
import io
import os
import sys
import time
import zipfile
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import torch

from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import write_file

VARIABLE = "TINYBERT_CHECKPOINT_SECONDS"
SECONDS_BETWEEN = 120.0  # unless the variable says otherwise
STARTED = time.monotonic()


class Checkpoint:
    """The last saved state of one run, in a file that only the same run reads.

    Args:
        folder: Of the stage instance; created when the first state is saved.
        fingerprint: Returns a digest of all that decides the run: params, inputs, code. It is called once, and only if
            there is something to load or save, because it reads all inputs.
        is_writer: Whether this process saves; of several processes one does.
    """

    def __init__(self, folder: Path, fingerprint: Callable[[], str], *, is_writer: bool = True) -> None:
        self.folder, self.fingerprint, self.is_writer = folder, fingerprint, is_writer
        self.step: int | None = None  # of the saved state
        self.earlier_seconds = 0.0  # of the processes that were interrupted, up to the state they left
        self._last = time.monotonic()
        self._lock: IO | None = None
        self._is_taken = False  # by another process that runs the same
        given = os.environ.get(VARIABLE, str(SECONDS_BETWEEN))
        try:
            self._seconds_between = float(given)
        except ValueError:
            raise UserError(f"{VARIABLE}: must be a number of seconds (got {given!r}); fix: set it to 60") from None

    @cached_property
    def path(self) -> Path:
        """The file of this very run."""
        return self.folder / f"{self.fingerprint()}.pt"

    @property
    def is_due(self) -> bool:
        """Whether it is time to save."""
        return self.is_writer and not self._is_taken and time.monotonic() - self._last >= self._seconds_between

    def load(self) -> dict[str, Any] | None:
        """The saved state, on the CPU; None if there is none, it cannot be read, or another process runs the same."""
        if not any(self.folder.glob("*.pt")) or not self.path.is_file() or not self._is_ours():
            return None
        try:
            with zipfile.ZipFile(self.path) as archive:
                if archive.testzip():  # compares the checksums, which PyTorch writes but does not read
                    return None
            state = torch.load(self.path, map_location="cpu", weights_only=True)
            self.step, self.earlier_seconds = state["step"], state["seconds"]
        except Exception:  # damaged archives raise errors of zipfile, pickle and PyTorch
            return None
        return state

    def save(self, state: dict[str, Any]) -> None:
        """Replaces the saved state atomically; if that fails, it prints that the run continues without one.

        Args:
            state: Numbers, texts and tensors in lists and dicts; its "step" is that of the run.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if self._is_ours():
                archive = io.BytesIO()  # PyTorch's own errors do not say that a disk is full
                torch.save(state | {"seconds": self.earlier_seconds + time.monotonic() - STARTED}, archive)
                write_file(self.path, archive.getbuffer())
                self.step = state["step"]
        except (OSError, UserError) as error:
            print(f"checkpoint: not saved, training continues: {error}", file=sys.stderr)
            self.is_writer = False
        self._last = time.monotonic()

    def remove(self) -> None:
        """Removes the saved state; called when the run's outputs are in place."""
        if "path" in vars(self) and self._is_ours():  # without a path nothing was saved
            for path in self.folder.glob(f"*{self.path.stem}.*"):  # what a killed process left, too
                path.unlink(missing_ok=True)

    def _is_ours(self) -> bool:
        """Whether this process, or the writer of its group, holds the lock; a process that dies releases it."""
        if self.is_writer and self._lock is None:
            try:
                self._lock = open(self.path.with_suffix(".lock"), "a", encoding="utf-8")  # noqa: SIM115
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # another process runs the same, or the folder may not be written
                self._is_taken = True
        return not self._is_taken
