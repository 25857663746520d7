"""Sequences on disk: written in parts, read as a sequence, and what is told when they are damaged."""

from pathlib import Path

import numpy as np
import pytest

from tinybert.data.sequences import Sequences, blocks_writer
from tinybert.pipeline.errors import UserError


def write(folder: Path) -> None:
    """Two blocks, of 4 and of 3 tokens."""
    with blocks_writer(folder, np.dtype(np.uint16)) as append:
        append(np.array([2, 5, 6, 3]), np.array([4]))
        append(np.array([2, 7, 3]), np.array([3]))


def test_blocks_written_in_parts_are_plain_arrays(tmp_path):
    write(tmp_path)
    np.save(tmp_path / "whole.npy", np.array([0, 4, 7]))
    assert (tmp_path / "offsets.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()
    np.save(tmp_path / "whole.npy", np.array([2, 5, 6, 3, 2, 7, 3], dtype=np.uint16))
    assert (tmp_path / "tokens.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()


def test_blocks_are_a_sequence_of_int64_copies(tmp_path):
    write(tmp_path)
    blocks = Sequences.open(tmp_path)
    assert len(blocks) == 2 and blocks.lengths.tolist() == [4, 3] and isinstance(blocks.tokens, np.memmap)
    block = blocks[1]
    block[0] = 99
    assert block.dtype == np.int64 and blocks[1].tolist() == [2, 7, 3]
    with pytest.raises(IndexError):
        blocks[2]


def test_absent_and_damaged_folders_are_named(tmp_path):
    with pytest.raises(UserError, match=r"no blocks in it .*run the stage tokenize"):
        Sequences.open(tmp_path / "absent")
    write(tmp_path)
    np.save(tmp_path / "offsets.npy", np.array([0, 4, 8]))
    with pytest.raises(UserError, match="do not fit together"):
        Sequences.open(tmp_path)


def test_numpys_long_complaints_become_one_line(tmp_path):
    write(tmp_path)
    header = b" " * 20_000  # more than NumPy reads without being told to
    (tmp_path / "offsets.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(ValueError, match="\n"):
        np.load(tmp_path / "offsets.npy")
    with pytest.raises(UserError, match=r"its .npy files are damaged; run the stage tokenize again$") as caught:
        Sequences.open(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("offsets", [np.array(4), np.array([[0, 4]]), np.array([0])])
def test_arrays_of_another_shape_are_no_offsets(tmp_path, offsets):
    write(tmp_path)
    np.save(tmp_path / "offsets.npy", offsets)
    with pytest.raises(UserError, match="do not fit together"):
        Sequences.open(tmp_path)
