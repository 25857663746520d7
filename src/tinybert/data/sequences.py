"""Sequences of word pieces: documents cut to what one forward pass reads, ragged, without padding.

On disk a folder with tokens.npy (all blocks one behind the other) and offsets.npy (where each begins, and the end).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tinybert.pipeline.errors import UserError


@dataclass(frozen=True)
class Sequences:
    """A folder of blocks, memory-mapped: tokens (all tokens,) uint16 or int32, offsets (blocks + 1,) int64."""

    tokens: np.ndarray
    offsets: np.ndarray

    @classmethod
    def open(cls, folder: str | Path) -> "Sequences":
        """Opens what write_sequences wrote; UserError when the files are absent or do not fit together."""
        try:
            tokens = np.load(Path(folder) / "tokens.npy", mmap_mode="r")
            offsets = np.load(Path(folder) / "offsets.npy")
        except OSError as error:
            raise UserError(f"{folder}: no blocks in it ({error}); run the stage tokenize") from None
        except Exception:  # beside its own, NumPy passes on those of Python's parser
            raise UserError(f"{folder}: its .npy files are damaged; run the stage tokenize again") from None
        are_whole = tokens.dtype in (np.uint16, np.int32) and offsets.dtype == np.int64
        are_flat = are_whole and tokens.ndim == offsets.ndim == 1 and len(offsets) >= 2
        if not are_flat or offsets[0] != 0 or offsets[-1] != len(tokens) or np.any(np.diff(offsets) <= 0):
            raise UserError(f"{folder}: tokens.npy and offsets.npy do not fit together; run the stage tokenize again")
        return cls(tokens=tokens, offsets=offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        """Block `index` (from 0) as a new (length,) int64 array, [CLS] and [SEP] included."""
        if not 0 <= index < len(self):
            raise IndexError(f"block {index} of {len(self)}")
        return self.tokens[self.offsets[index] : self.offsets[index + 1]].astype(np.int64)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each block: (blocks,) int64."""
        return np.diff(self.offsets)


@contextmanager
def blocks_writer(folder: Path, token_type: np.dtype) -> Iterator[Callable[[np.ndarray, np.ndarray], None]]:
    """Yields a function that appends to the blocks in the existing `folder`: (tokens, lengths of the blocks)."""
    end = 0

    def append(tokens: np.ndarray, lengths: np.ndarray) -> None:
        nonlocal end
        append_tokens(tokens)
        append_offsets(end + np.cumsum(lengths))
        end += len(tokens)

    with (
        _growing_array(folder / "tokens.npy", token_type) as append_tokens,
        _growing_array(folder / "offsets.npy", np.dtype(np.int64)) as append_offsets,
    ):
        append_offsets(np.zeros(1, dtype=np.int64))
        yield append


@contextmanager
def _growing_array(path: Path, dtype: np.dtype) -> Iterator[Callable[[np.ndarray], None]]:
    """Yields a function that appends to a one-dimensional .npy file, whose header is completed at the end."""
    count = 0

    def write_header() -> None:  # NumPy pads it, so that it has the same size whatever the length in it
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
        np.lib.format.write_array_header_1_0(handle, header)

    def append(values: np.ndarray) -> None:
        nonlocal count
        handle.write(values.astype(dtype, copy=False).data)
        count += len(values)

    with open(path, "wb") as handle:
        write_header()
        yield append
        handle.seek(0)
        write_header()
