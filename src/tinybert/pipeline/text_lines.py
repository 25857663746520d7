"""Chunks of whole JSON lines."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import NO_TEXT, json_object

CHUNK_BYTES = 2**20


@dataclass(frozen=True)
class Chunk:
    """Some whole lines of a JSON-lines file, as they stand there; `first_line` counts from 1."""

    path: str
    first_line: int
    data: bytes

    def objects(self) -> Iterator[tuple[bytes, dict]]:
        """Yields (line with its end, the object on it); a line that holds none is a UserError."""
        for number, line in enumerate(io.BytesIO(self.data), start=self.first_line):
            yield line, json_object(line, f"{self.path}, line {number}")

    def texts(self) -> Iterator[tuple[bytes, str]]:
        """Yields (line with its end, the "text" of the document on it); a line that holds none is a UserError."""
        for number, (line, document) in enumerate(self.objects(), start=self.first_line):
            text = document.get("text")
            if not isinstance(text, str) or NO_TEXT.search(text):
                raise UserError(f'{self.path}, line {number}: "text" is {text!r:.40}; a text is expected')
            yield line, text


def read_chunks(path: str | Path, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """Yields a JSON-lines file in chunks of at least `chunk_bytes`, the last one smaller."""
    number = 1
    with open(path, "rb") as handle:
        while data := handle.read(chunk_bytes):
            data += handle.readline()
            yield Chunk(str(path), number, data)
            number += data.count(b"\n")
