"""Checkpoints from which an interrupted run resumes: weights, optimizer and loss curve in one safetensors file."""

import fcntl
import json
import os
import sys
import time
import zlib
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import IO

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tinybert.pipeline.errors import UserError

VARIABLE = "TINYBERT_CHECKPOINT_SECONDS"
SECONDS_BETWEEN = 120.0  # unless the variable says otherwise


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
        return self.folder / f"{self.fingerprint()}.safetensors"

    @property
    def is_due(self) -> bool:
        """Whether it is time to save."""
        return self.is_writer and not self._is_taken and time.monotonic() - self._last >= self._seconds_between

    def load(self) -> tuple[dict[str, Tensor], dict] | None:
        """The saved tensors and facts; None if this run saved nothing or the file is damaged."""
        if not any(self.folder.glob("*.safetensors")) or not self.path.is_file() or not self._is_ours():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
                metadata = file.metadata()
                facts = json.loads(metadata["facts"])
        except (SafetensorError, OSError, TypeError, KeyError, ValueError, RecursionError):
            return None
        if metadata.get("checksum") != _checksum(tensors, metadata["facts"]):
            return None
        self.step = facts["step"]
        return tensors, facts

    def save(self, tensors: dict[str, Tensor], facts: dict) -> None:
        """Replaces the saved state atomically; if that fails, it prints that the run continues without one."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if self._is_ours():
                self._replace({name: tensor.contiguous() for name, tensor in tensors.items()}, json.dumps(facts))
                self.step = facts["step"]
        except (OSError, SafetensorError) as error:
            print(f"checkpoint: training continues without one, {self.folder}: {error}", file=sys.stderr)
            self.is_writer = False
        self._last = time.monotonic()

    def _replace(self, tensors: dict[str, Tensor], facts: str) -> None:
        temporary = self.path.with_suffix(".partial")
        try:
            save_file(tensors, temporary, metadata={"facts": facts, "checksum": _checksum(tensors, facts)})
            os.replace(temporary, self.path)
        finally:
            temporary.unlink(missing_ok=True)  # a partial file would keep a full disk full

    def describe(self) -> str:
        """What is saved, for error messages."""
        return "no checkpoint yet" if self.step is None else f"last good checkpoint: step {self.step}, {self.path}"

    def remove(self) -> None:
        """Removes the saved state; called when the run's outputs are in place."""
        if "path" in vars(self) and self._is_ours():  # without a path nothing was saved
            for ending in (".safetensors", ".partial", ".lock"):
                self.path.with_suffix(ending).unlink(missing_ok=True)

    def _is_ours(self) -> bool:
        """Whether this process, or the writer of its group, holds the lock; a process that dies releases it."""
        if self.is_writer and self._lock is None:
            self._lock = open(self.path.with_suffix(".lock"), "a", encoding="utf-8")  # noqa: SIM115 (held till the end)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._is_taken = True
        return not self._is_taken


def _checksum(tensors: dict[str, Tensor], facts: str) -> str:
    """CRC-32 of all that is saved: without it a flipped bit would go unnoticed."""
    total = zlib.crc32(facts.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        total = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), total)
        total = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, total)
    return f"{total:08x}"
