"""Contestants that take steps in turn, each in a process of its own, so that peaks of memory do not mix."""

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

MIB = 2**20
NO_BF16 = "no bf16 in hardware"


class StartGun:
    """Iterating yields once for each step that is ordered, and answers what it took; no more ends the process."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def __iter__(self) -> Iterator[None]:
        while self.connection.recv():
            started = time.perf_counter()
            yield
            synchronize()
            self.connection.send((time.perf_counter() - started, peak_memory_mib()))
        sys.exit()  # whatever loop asks for more


@dataclass
class Contestant:
    """A process that takes a step on request."""

    connection: Connection
    peak_mib: float = 0.0

    def step(self) -> float:
        """Seconds that one step took; ends the benchmark where the process has ended."""
        try:
            self.connection.send(True)
            seconds, self.peak_mib = self.connection.recv()
        except (EOFError, OSError):
            sys.exit("a contestant's process ended before its step; see above")
        return seconds


@contextmanager
def contestant(run: Callable, *arguments) -> Iterator[Contestant]:
    """Starts `run(*arguments, start_gun)` in a process of its own, which iterates over the gun step by step."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=run, args=(*arguments, StartGun(theirs)), daemon=True)
    process.start()
    theirs.close()
    yield Contestant(ours)
    ours.send(False)
    process.join()


def alternate(first: Contestant, second: Contestant, *, warmup_steps: int, pairs: int) -> list[tuple[float, float]]:
    """Seconds of both in each pair of steps; every other pair starts with the second."""
    for _ in range(warmup_steps):
        first.step(), second.step()
    seconds = []
    for pair in range(pairs):
        if pair % 2:
            later = second.step()
            seconds.append((first.step(), later))
        else:
            seconds.append((first.step(), second.step()))
    return seconds


def synchronize() -> None:
    """Waits for the GPU, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def peak_memory_mib() -> float:
    """Most memory this process has held: allocated on the GPU where there is one, else resident."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / MIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def hardware() -> str:
    """One line: what computes, what of bf16 it has in hardware, threads, version."""
    if torch.cuda.is_available():
        has_bf16 = "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else NO_BF16
        return f"{torch.cuda.get_device_name()} ({has_bf16}), torch {torch.__version__}"
    has = torch.cpu.get_capabilities()
    features = [name for name in ("amx_bf16", "avx512_bf16") if has.get(name)] or [NO_BF16]
    return f"{has['cpu_name']} ({', '.join(features)}), {torch.get_num_threads()} threads, torch {torch.__version__}"


def matrix_rate(dtype: torch.dtype, repeats: int = 20) -> float:
    """FLOP/s of a product of two large square matrices: what the hardware could do."""
    device, size = ("cuda", 8192) if torch.cuda.is_available() else ("cpu", 2048)
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    left @ right
    synchronize()
    started = time.perf_counter()
    for _ in range(repeats):
        left @ right
    synchronize()
    return repeats * 2 * size**3 / (time.perf_counter() - started)
