"""Contestants that take steps in turn, each in a process of its own, so that peaks of memory do not mix."""

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from tinybert.models.packed_linear import linear_float32
from tinybert.pipeline.process import peak_resident_mib

MIB = 2**20
NO_BF16 = "no bf16 in hardware"
RATE_REPEATS = 20


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
        """Seconds that one step took; ends the benchmark if the process has ended."""
        try:
            self.connection.send(True)
            seconds, self.peak_mib = self.connection.recv()
        except (EOFError, OSError):
            sys.exit("a contestant's process ended before its step; see above")
        return seconds

    def report(self, name: str, took: str) -> None:
        """Prints a line on the time and memory that it took."""
        print(f"{name:10}{took}   peak memory {self.peak_mib:.0f} MiB")


@contextmanager
def contestant(run: Callable, *arguments: Any) -> Iterator[Contestant]:
    """Starts `run(*arguments, start_gun)` in a process of its own, which iterates over the gun step by step."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=run, args=(*arguments, StartGun(theirs)), daemon=True)
    process.start()
    theirs.close()
    yield Contestant(ours)
    ours.send(False)
    process.join()


def compare(
    work: Any, run_reference: Callable, run_ours: Callable, options: argparse.Namespace, line: Callable
) -> tuple[list[float], list[float]]:
    """Both take steps of `work` in turn, and a line is printed on each.

    Args:
        options: `warmup` and `pairs` of steps; every other pair starts with ours. `precision` of ours.
        line: The seconds of the steps -> a text.

    Returns:
        Seconds of each step, the reference's and ours, without those of the warm-up.
    """
    print(f"{hardware()}; reference in float32, ours in {options.precision}", flush=True)
    with contestant(run_reference, work) as plain, contestant(run_ours, work, options.precision) as mine:
        systems = [("reference", plain, []), ("ours", mine, [])]
        for number in range(-options.warmup, options.pairs):
            for _, system, seconds in systems[:: -1 if number % 2 else 1]:
                seconds.append(system.step())
    for name, system, seconds in systems:
        del seconds[: options.warmup]
        system.report(name, line(seconds))
    return systems[0][2], systems[1][2]


def synchronize() -> None:
    """Waits for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def peak_memory_mib() -> float:
    """Most memory this process has held: allocated on the GPU if there is one, else resident."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / MIB
    return peak_resident_mib()


def hardware() -> str:
    """One line: what computes, what of bf16 it has in hardware, threads, version."""
    if torch.cuda.is_available():
        has_bf16 = "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else NO_BF16
        return f"{torch.cuda.get_device_name()} ({has_bf16}), torch {torch.__version__}"
    has = torch.cpu.get_capabilities()
    features = [name for name in ("amx_bf16", "avx512_bf16") if has.get(name)] or [NO_BF16]
    return f"{has['cpu_name']} ({', '.join(features)}), {torch.get_num_threads()} threads, torch {torch.__version__}"


def processor() -> str:
    """The CPU of ONNX Runtime and OpenVINO, and whether it multiplies INT8 in hardware."""
    has = torch.cpu.get_capabilities()
    return f"{has['cpu_name']} ({'VNNI' if has.get('avx512_vnni') or has.get('avx_vnni') else 'no VNNI'})"


def matrix_rate(dtype: torch.dtype) -> float:
    """FLOP/s of a product of two large square matrices: what the hardware could do."""
    device, size = ("cuda", 8192) if torch.cuda.is_available() else ("cpu", 2048)
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    linear_float32(left, right)  # as in training: in float32 MKL may be slower than oneDNN
    synchronize()
    started = time.perf_counter()
    for _ in range(RATE_REPEATS):
        linear_float32(left, right)
    synchronize()
    return RATE_REPEATS * 2 * size**3 / (time.perf_counter() - started)
