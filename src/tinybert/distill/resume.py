"""Where an interrupted training goes on: weights, optimizer and loss curve in one safetensors file."""

import fcntl
import json
import os
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.process import is_main_process

if TYPE_CHECKING:
    from tinybert.stage import Stage

VARIABLE = "TINYBERT_CHECKPOINT_SECONDS"
SECONDS_BETWEEN = 120.0  # unless the variable says otherwise


def _seconds_between() -> float:
    given = os.environ.get(VARIABLE, str(SECONDS_BETWEEN))
    try:
        return float(given)
    except ValueError:
        raise UserError(f"{VARIABLE}: {given!r} is no number of seconds; give one, such as 60") from None


class Checkpoint:
    """The last saved state of one training run, in `folder`, under a name that only the same run has.

    fingerprint: of all that decides the run (params, inputs, code); asked for once, and only when there is something
    to load or save, for it reads all inputs. Two runs with one fingerprint at once: the second goes without.
    """

    def __init__(self, folder: Path, fingerprint: Callable[[], str], *, is_writer: bool = True) -> None:
        self.folder, self.fingerprint, self.is_writer = folder, fingerprint, is_writer
        self.seconds_between = _seconds_between()
        self.last = time.monotonic()
        self.step: int | None = None  # of the saved state
        self._path: Path | None = None
        self._lock: IO | None = None
        self._is_taken = False  # by another run of the same kind

    @classmethod
    def of(cls, stage: "Stage", **part: str) -> "Checkpoint":
        """That of a stage instance, or of one of the trainings in it."""
        folder = paths.checkpoints(stage.name, stage.items | part)
        return cls(folder, stage.fingerprint(), is_writer=is_main_process())

    @property
    def path(self) -> Path:
        """The file of this very run."""
        self._path = self._path or self.folder / f"{self.fingerprint()}.safetensors"
        return self._path

    @property
    def is_due(self) -> bool:
        """Whether it is time to save."""
        return self.is_writer and not self._is_taken and time.monotonic() - self.last >= self.seconds_between

    def load(self) -> tuple[dict[str, Tensor], dict] | None:
        """The saved tensors and facts; None where this run has saved none, or the file is damaged."""
        if not any(self.folder.glob("*.safetensors")) or not self.path.is_file() or not self._is_ours():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
                saved, metadata = json.loads(file.metadata()["facts"]), file.metadata()
        except (SafetensorError, OSError, TypeError, KeyError, ValueError, RecursionError):  # damaged, or none of ours
            return None
        if metadata.get("checksum") != _checksum(tensors, metadata["facts"]):
            return None
        self.step = saved["step"]
        return tensors, saved

    def save(self, tensors: dict[str, Tensor], facts: dict) -> None:
        """Replaces the saved state as a whole; where disk or rights do not allow it, training goes on without."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if self._is_ours():
                self._replace({name: part.contiguous() for name, part in tensors.items()}, json.dumps(facts))
                self.step = facts["step"]
        except (OSError, SafetensorError) as error:
            print(f"checkpoint: goes on without, {self.folder}: {error}", file=sys.stderr)
            self.is_writer = False
        self.last = time.monotonic()

    def _replace(self, tensors: dict[str, Tensor], facts: str) -> None:
        temporary = self.path.with_suffix(".partial")
        try:
            save_file(tensors, temporary, metadata={"facts": facts, "checksum": _checksum(tensors, facts)})
            os.replace(temporary, self.path)
        finally:
            temporary.unlink(missing_ok=True)  # on a full disk it would be in everybody's way

    def describe(self) -> str:
        """Words for what is saved."""
        return "no checkpoint yet" if self.step is None else f"last good checkpoint: step {self.step}, {self.path}"

    def remove(self) -> None:
        """To be called when the run's outputs are in place."""
        if self._path and self._is_ours():
            for ending in (".safetensors", ".partial", ".lock"):
                self._path.with_suffix(ending).unlink(missing_ok=True)

    def _is_ours(self) -> bool:
        """Whether this process, or the writer of its group, holds the lock, which a dying process lets go."""
        if self.is_writer and self._lock is None:
            self._lock = open(self.path.with_suffix(".lock"), "a", encoding="utf-8")  # noqa: SIM115 (held till the end)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._is_taken = True
        return not self._is_taken


def _checksum(tensors: dict[str, Tensor], facts: str) -> str:
    """Of all that is saved: a bit that turned would go on as a weight."""
    total = zlib.crc32(facts.encode())
    for name in sorted(tensors):
        part = tensors[name].detach().cpu().contiguous()
        total = zlib.crc32(f"{name} {part.dtype} {tuple(part.shape)}".encode(), total)
        total = zlib.crc32(part.reshape(-1).view(torch.uint8).numpy().data, total)
    return f"{total:08x}"


def training_state(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """All tensors that the next steps depend on: weights, and what the optimizer remembers of each."""
    state = {f"module.{name}": tensor for name, tensor in module.state_dict().items()}
    for index, remembered in optimizer.state_dict()["state"].items():
        state |= {f"optimizer.{index}.{name}": tensor for name, tensor in remembered.items()}
    return state


def restore_training_state(tensors: dict[str, Tensor], module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Puts back what `training_state` gave."""
    parts: dict[str, dict[str, Tensor]] = {"module": {}, "optimizer": {}}
    for name, tensor in tensors.items():
        part, _, rest = name.partition(".")
        parts.setdefault(part, {})[rest] = tensor
    module.load_state_dict(parts["module"])
    remembered: dict[int, dict] = {}
    for name, tensor in parts["optimizer"].items():
        index, _, key = name.partition(".")
        remembered.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict(optimizer.state_dict() | {"state": remembered})
