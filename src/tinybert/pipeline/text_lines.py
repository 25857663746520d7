"""Lines of UTF-8 text files, one at a time or in chunks of many, with errors that name file and line."""

import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tinybert.pipeline.errors import UserError

LINE_LIMIT_BYTES = 16 * 2**20
# Work for one process at a time: long enough to outweigh handing it over, small enough to hold a few dozen.
CHUNK_BYTES = 2**20
BYTE_ORDER_MARK = "\ufeff"
# NUL, and halves of surrogate pairs, which cannot be written
NO_TEXT = re.compile("[\0\ud800-\udfff]")


def read_lines(
    path: str | Path, *, key: str, on_read: Callable[[int], object] = lambda size_bytes: None
) -> Iterator[tuple[int, str]]:
    """Yields (line number from 1, line without its end) of a UTF-8 file; `.gz` is unpacked on the way.

    Only "\\n" and "\\r\\n" end a line. `on_read` is told how many bytes of the file were read since it was told last
    (packed ones of a `.gz`). UserError, which begins with the params key `key`, when the file cannot be read, is no
    sound gzip file, is not UTF-8, holds NUL bytes, or has a line above 16 MiB.
    """
    path = Path(path)
    is_packed = path.suffix.lower() == ".gz"
    try:
        with open(path, "rb") as file, gzip.open(file) if is_packed else file as handle:
            number = position = 0
            while raw := handle.readline(LINE_LIMIT_BYTES + 1):
                number += 1
                before, position = position, file.tell()
                on_read(position - before)
                yield number, _decode(raw, f"{key}: {path}, line {number}")
    except FileNotFoundError:
        raise UserError(f"{key}: {path} does not exist; correct the path") from None
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UserError(f"{key}: {path} cannot be read ({reason}); replace the file or take it off the list") from None


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


def json_object(line: bytes, where: str) -> dict:
    """The JSON object on a line of UTF-8; UserError, which begins with `where`, where there is none."""
    try:
        found = parse_json(line.decode("utf-8"))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        beginning = line[:40].decode("utf-8", errors="replace")
        raise UserError(f"{where}: {beginning!r} is no JSON object; one a line is expected")
    return found


def parse_json(text: str):
    """The value that a JSON text says; ValueError where it says none: NaN, infinity and endless nesting are none."""
    try:
        return json.loads(text, parse_constant=_check_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _check_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _decode(raw: bytes, where: str) -> str:
    if len(raw) > LINE_LIMIT_BYTES:
        raise UserError(f"{where}: longer than {LINE_LIMIT_BYTES // 2**20} MiB; break the text into lines")
    if b"\0" in raw:
        raise UserError(f"{where}: holds NUL bytes; save the file as plain UTF-8 text")
    try:
        return raw.decode("utf-8").removeprefix(BYTE_ORDER_MARK).rstrip("\r\n")
    except UnicodeDecodeError as error:
        found = f"byte 0x{raw[error.start]:02x} at column {error.start + 1}"
        raise UserError(f"{where}: not UTF-8 ({found}); convert it, for example with iconv -t utf-8") from None


def printable(text: str) -> str:
    """The text with escapes in the place of control characters, which a terminal would obey."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)
