"""What a training process asks of its machine: Accelerate, bfloat16, and memory that is not given back."""

import ctypes
import sys
from datetime import timedelta

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs

from tinybert.pipeline.errors import UserError

# How long processes wait for the one that fills the teacher cache.
LONGEST_WAIT = timedelta(hours=12)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # malloc.h of glibc
LARGEST_INT = 2**31 - 1


def start_accelerator(precision: str) -> Accelerator:
    """Accelerate for this process, which may be one of several; UserError if the machine lacks the precision."""
    if precision == "bfloat16":
        check_bfloat16()
    # Not every loss reaches all of a student's weights.
    unused = DistributedDataParallelKwargs(find_unused_parameters=True)
    patient = InitProcessGroupKwargs(timeout=LONGEST_WAIT)
    mixed_precision = "bf16" if precision == "bfloat16" else "no"
    return Accelerator(mixed_precision=mixed_precision, kwargs_handlers=[unused, patient])


def check_bfloat16() -> None:
    """Raises UserError if this machine does not compute bfloat16 in hardware."""
    if torch.cuda.is_available():
        supported = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        supported = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if not supported:
        raise UserError("precision: bfloat16 is not supported by this machine; fix: set it to float32")


def keep_memory() -> None:
    """Lets this process reuse freed memory instead of returning it to the system.

    glibc returns a block of 32 MiB or more immediately, and the gradient of the word embeddings is one: mapping its
    pages again at each step took a fifth of a small student's step.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # absent from musl
    if mallopt:
        # Some versions of glibc refuse so high a threshold; forbidding mmap has the same effect.
        if not mallopt(M_MMAP_THRESHOLD, LARGEST_INT):
            mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, LARGEST_INT)
