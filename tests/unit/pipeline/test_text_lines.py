"""Chunks of whole lines, and what is told about a line in the middle of them."""

import pytest

from tinybert.pipeline.errors import UserError
from tinybert.pipeline.text_lines import Chunk, read_chunks

LINES = [b'{"n": 1}\n', b'{"n": 22}\r\n', '{"n": "é\u2028"}\n'.encode(), b'{"n": 4}']


@pytest.mark.parametrize("chunk_bytes", [1, 10, 25, 1000])
def test_chunks_are_whole_lines_that_make_up_the_file(tmp_path, chunk_bytes):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(LINES))
    chunks = list(read_chunks(path, chunk_bytes=chunk_bytes))
    assert [line for chunk in chunks for line, _ in chunk.objects()] == LINES
    assert [found["n"] for chunk in chunks for _, found in chunk.objects()] == [1, 22, "é\u2028", 4]
    for chunk in chunks:
        assert chunk.data.startswith(LINES[chunk.first_line - 1])


def test_an_empty_file_has_no_chunks(tmp_path):
    (tmp_path / "a.jsonl").touch()
    assert list(read_chunks(tmp_path / "a.jsonl")) == []


@pytest.mark.parametrize("line", [b"", b"[1]", b'{"n": ', b'{"n": "\xff"}', b"[" * 100_000])
def test_a_line_without_an_object_is_named(line):
    chunk = Chunk("a.jsonl", 7, b'{"n": 1}\n' + line + b"\n")
    with pytest.raises(UserError, match=r"^a\.jsonl, line 8: must be a JSON object"):
        list(chunk.objects())


@pytest.mark.parametrize("line", [b"{}", b'{"text": 3}', b'{"text": "\\ud800"}', b'{"text": "a\\u0000"}'])
def test_a_document_without_text_is_named(line):
    chunk = Chunk("a.jsonl", 7, b'{"text": ""}\n' + line + b"\n")
    with pytest.raises(UserError, match=r'^a\.jsonl, line 8: "text" is .*; a text is expected$'):
        list(chunk.texts())
