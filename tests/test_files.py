"""Files: sizes as people state them."""

import gzip

import numpy as np

from tinybert.files import file_sizes_mb


def test_file_sizes_are_those_of_gzip_in_units_of_a_million_bytes(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, 1_500_000, dtype=np.uint8).tobytes()
    content = noise + bytes(1_500_000)  # several chunks, half of them empty
    (tmp_path / "file").write_bytes(content)
    sizes = file_sizes_mb(tmp_path / "file")
    assert sizes["raw"] == 3.0
    assert sizes["compressed"] == len(gzip.compress(content, 6, mtime=0)) / 1e6
    assert 1.5 < sizes["compressed"] < 1.51
