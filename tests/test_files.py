"""Files: sizes as people state them, lines as people break them."""

import gzip

import numpy as np
import pytest

from tinybert.errors import UserError
from tinybert.files import file_sizes_mb, read_json, read_jsonl


def test_file_sizes_are_those_of_gzip_in_units_of_a_million_bytes(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, 1_500_000, dtype=np.uint8).tobytes()
    content = noise + bytes(1_500_000)  # several chunks, half of them empty
    (tmp_path / "file").write_bytes(content)
    sizes = file_sizes_mb(tmp_path / "file")
    assert sizes["raw"] == 3.0
    assert sizes["compressed"] == len(gzip.compress(content, 6, mtime=0)) / 1e6
    assert 1.5 < sizes["compressed"] < 1.51


@pytest.mark.parametrize("line", [b"[1]\n", b'{"a": \n', b"\xff\xfe\x00\n", b'{"a": NaN}\n', b"[" * 100_000])
def test_a_line_that_is_no_object_is_told_with_its_number(tmp_path, line):
    (tmp_path / "rows.jsonl").write_bytes(b'{"a": 1}\n' + line)
    with pytest.raises(UserError, match=r"rows\.jsonl, line 2: .* is no JSON object; one a line is expected"):
        list(read_jsonl(tmp_path / "rows.jsonl"))


@pytest.mark.parametrize("text", ["NaN", '{"a": -Infinity}', "[" * 100_000, ""])
def test_what_is_no_json_is_refused(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError):
        read_json(tmp_path / "a.json")
