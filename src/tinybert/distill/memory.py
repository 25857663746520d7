"""How this process takes memory from the system."""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # malloc.h of glibc
LARGEST_INT = 2**31 - 1


def keep_memory() -> None:
    """Memory that was freed stays with this process, to be used again.

    glibc gives a block of 32 MiB or more back at once, and the gradient of a vocabulary's embeddings is one: at each
    step the system would hand its pages out anew, which took a fifth of a small student's step.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # absent from musl
    if mallopt:
        # Not every version of glibc takes so high a threshold; 0 blocks by mmap is the same.
        if not mallopt(M_MMAP_THRESHOLD, LARGEST_INT):
            mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, LARGEST_INT)
