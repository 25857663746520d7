"""Files: sizes as people state them, lines as people break them."""

import gzip
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from tests.support.root import ROOT
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import atomic_file, atomic_folder, file_sizes_mb, read_json, read_jsonl

WRITER = """
import os, signal, sys
from tinybert.pipeline.files import atomic_file, atomic_folder
kind, path, number = sys.argv[1:]
with (atomic_file if kind == "file" else atomic_folder)(path) as target:
    if kind == "file":
        target.write("half")
        target.flush()
    else:
        (target / "part").write_text("half")
    os.kill(os.getpid(), int(number))
"""


def write(path, kind: str, text: str) -> None:
    if kind == "file":
        with atomic_file(path) as handle:
            handle.write(text)
    else:
        with atomic_folder(path) as folder:
            (folder / "part").write_text(text)


def read(path) -> str:
    return (path / "part" if path.is_dir() else path).read_text()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_the_next_writer_removes_leftovers_of_killed_ones_only(tmp_path, kind):
    path, other = tmp_path / "cola", tmp_path / ".cola.json.0123abcd.partial"  # another output's, at work
    write(path, kind, "old")
    other.write_text("")
    for _ in range(2):
        command = [sys.executable, "-c", WRITER, kind, path, str(int(signal.SIGKILL))]
        killed = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT / "src")})
        assert killed.returncode == -signal.SIGKILL
        assert read(path) == "old"
        assert len(list(tmp_path.iterdir())) == 3
    write(path, kind, "new")
    assert read(path) == "new"
    assert sorted(tmp_path.iterdir()) == [other, path]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_writer_that_was_taken_for_dead_replaces_nothing(tmp_path, kind):
    """Of two that write one output, the later one wins; the earlier one ends with an error."""
    path = tmp_path / "cola"
    writer = atomic_file if kind == "file" else atomic_folder
    with pytest.raises(FileNotFoundError), writer(path):
        write(path, kind, "whole")
    assert read(path) == "whole"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_an_error_leaves_the_older_output_alone(tmp_path, kind):
    path = tmp_path / "cola"
    write(path, kind, "old")
    with pytest.raises(SystemExit), (atomic_file if kind == "file" else atomic_folder)(path):
        sys.exit(143)  # as SIGTERM does in a stage
    assert read(path) == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_file_sizes_are_raw_and_gzip_in_millions_of_bytes(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, 1_500_000, dtype=np.uint8).tobytes()
    content = noise + bytes(1_500_000)  # several chunks, half of them empty
    (tmp_path / "file").write_bytes(content)
    sizes = file_sizes_mb(tmp_path / "file")
    assert sizes["raw"] == 3.0
    assert sizes["compressed"] == len(gzip.compress(content, 6, mtime=0)) / 1e6
    assert 1.5 < sizes["compressed"] < 1.51


@pytest.mark.parametrize("line", [b"[1]\n", b'{"a": \n', b"\xff\xfe\x00\n", b'{"a": NaN}\n', b"[" * 100_000])
def test_a_line_that_is_no_object_is_reported_by_number(tmp_path, line):
    (tmp_path / "rows.jsonl").write_bytes(b'{"a": 1}\n' + line)
    with pytest.raises(UserError, match=r"rows\.jsonl, line 2: must be a JSON object"):
        list(read_jsonl(tmp_path / "rows.jsonl"))


@pytest.mark.parametrize("text", ["NaN", '{"a": -Infinity}', "[" * 100_000, ""])
def test_what_is_no_json_is_refused(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError):
        read_json(tmp_path / "a.json")
