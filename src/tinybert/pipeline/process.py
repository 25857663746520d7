"""Helpers for a process: random streams, its rank, memory, progress bars, git, the revision of the code."""

import ctypes
import hashlib
import os
import resource
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from tinybert.pipeline.errors import UserError

# Such as "accelerate launch --num_processes 2". Not part of params: how a stage is launched does not belong to the
# experiment, and changing it reruns nothing.
LAUNCHER = "TINYBERT_LAUNCHER"
LAUNCHED = "TINYBERT_LAUNCHED"  # set for the processes that a launcher starts: not every launcher leaves a mark
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # malloc.h of glibc
LARGEST_INT = 2**31 - 1
MOST_GROWTH_BYTES = 2**29  # of what the process holds, until freed memory is returned
# Metrics and reports are results themselves.
RESULT_PATHS = ("src", "stages", "dvc.yaml", "params.yaml", "requirements.txt")
PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "datasets", "onnx", "onnxruntime", "numpy")


def stream(seed: int, purpose: str, *place: int) -> np.random.Generator:
    """A random generator that shares nothing with those of other purposes ("order"), places (epoch, row) or seeds."""
    # The number of places is part of NumPy's seed, which drops trailing zeros: (42, 0) alone would be as (42, 0, 0).
    tag = int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:4])
    return np.random.default_rng((tag, len(place), *place, seed))


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


class FreedMemory:
    """Keeps freed memory for reuse, and returns it to the system when the process holds too much; glibc only.

    glibc returns a block of 32 MiB or more immediately, and the gradient of the word embeddings is one: mapping its
    pages again at each step took a fifth of a small student's step. But the logits of a masked LM have a different size
    in each batch and do not fit into freed gaps, so the heap grows to a multiple of the memory in use.
    """

    def __init__(self) -> None:
        libc = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
        self.trim = getattr(libc, "malloc_trim", None)  # absent from musl
        self.first_bytes: int | None = None
        if libc and self.trim:
            # Some versions of glibc refuse so high a threshold; forbidding mmap has the same effect.
            if not libc.mallopt(M_MMAP_THRESHOLD, LARGEST_INT):
                libc.mallopt(M_MMAP_MAX, 0)
            libc.mallopt(M_TRIM_THRESHOLD, LARGEST_INT)

    def after_step(self) -> None:
        """Returns freed memory if the process grew by MOST_GROWTH_BYTES since the first step or the last return."""
        if not self.trim:
            return
        _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
        held = (resident - shared) * resource.getpagesize()
        if self.first_bytes is None:
            self.first_bytes = held
        elif held > self.first_bytes + MOST_GROWTH_BYTES:
            self.trim(0)
            self.first_bytes = None


def progress_bar(**settings: Any) -> tqdm:
    """A tqdm bar, shown by the main process only; it redraws on a terminal and prints few lines into a log file."""
    interactive = sys.stderr.isatty()
    if not is_main_process():
        settings["disable"] = True
    return tqdm(mininterval=0.2 if interactive else 20, dynamic_ncols=interactive, leave=interactive, **settings)


def byte_bar(title: str, total_bytes: int | None = None) -> tqdm:
    """A bar of MB/s and, if the total is known, the remaining time; it appears after a second."""
    return progress_bar(desc=title, total=total_bytes, unit="B", unit_scale=True, delay=1)


def peak_resident_mib() -> float:
    """This process's peak resident memory; ru_maxrss is the fallback: on Linux it starts at the parent's peak."""
    status = Path("/proc/self/status")
    peak = status.read_text().partition("VmHWM:")[2] if status.is_file() else ""  # gVisor writes no VmHWM
    if peak:
        return int(peak.split()[0]) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def git(*arguments: str) -> str:
    """What a git command prints, without the last line's end; empty if it fails."""
    try:
        answer = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.rstrip("\n") if answer.returncode == 0 else ""


def code_revision() -> str:
    """The last commit that changed code, pipeline or params: committing results does not change it.

    Ends in " and uncommitted changes" if one of these paths has any; "none" outside of git.
    """
    commit = git("log", "-1", "--format=%H", "--", *RESULT_PATHS)
    if not commit:
        return "none"
    return f"{commit} and uncommitted changes" if git("status", "--porcelain", "--", *RESULT_PATHS) else commit


def package_versions() -> dict[str, str]:
    """The versions of the packages that decide results."""
    return {package: version(package) for package in PACKAGES}
