"""Files that appear whole or not at all, and the plain formats the stages exchange."""

import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tinybert.text_lines import json_object, parse_json

COMPRESSION_LEVEL = 6  # gzip's default
CHUNK_BYTES = 1 << 20


@contextmanager
def atomic_file(path: str | Path, mode: str = "w") -> Iterator[IO]:
    """Opens a temporary file beside `path`; renames it to `path` when the block ends without error.

    Text is UTF-8 with "\\n" line ends. On an error nothing is left behind and an older `path` stays.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    encoding, newline = (None, None) if "b" in mode else ("utf-8", "\n")
    try:
        with os.fdopen(descriptor, mode, encoding=encoding, newline=newline) as handle:
            yield handle
        os.chmod(temporary, 0o644)  # mkstemp makes private files; outputs are ordinary ones
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yields an empty temporary folder beside `path`; it becomes `path` when the block ends without error.

    An older folder at `path` is replaced as a whole. On an error nothing is left behind.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        yield temporary
        temporary.chmod(0o755)
        if path.exists():
            shutil.rmtree(path)
        os.replace(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def write_json(path: str | Path, value) -> None:
    """Writes `value` as indented JSON, in the order given; NaN and infinity are refused (ValueError)."""
    with atomic_file(path) as handle:
        json.dump(value, handle, indent=2, ensure_ascii=False, allow_nan=False)
        handle.write("\n")


def read_json(path: str | Path):
    """Reads a JSON file; ValueError where it is none, or holds NaN or infinity, which are no JSON."""
    return parse_json(Path(path).read_text(encoding="utf-8"))


def write_jsonl(path: str | Path, rows: Iterable[dict]) -> int:
    """Writes one JSON object a line and returns how many; `rows` may be a stream of any length."""
    count = 0
    with atomic_file(path) as handle:
        for row in rows:
            handle.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
            count += 1
    return count


def read_jsonl(path: str | Path) -> Iterator[dict]:
    """Yields the objects of a JSON-lines file one by one; a line that is none is a UserError."""
    with open(path, "rb") as handle:
        for number, line in enumerate(handle, start=1):
            yield json_object(line, f"{path}, line {number}")


def file_sizes_mb(path: str | Path) -> dict[str, float]:
    """Size of a file in MB (10^6 bytes): raw, and compressed as gzip does at its default level."""
    compressor = zlib.compressobj(COMPRESSION_LEVEL, wbits=31)  # 31: gzip format, time stamp 0
    compressed = 0
    with open(path, "rb") as handle:
        while chunk := handle.read(CHUNK_BYTES):
            compressed += len(compressor.compress(chunk))
    compressed += len(compressor.flush())
    return {"raw": Path(path).stat().st_size / 1e6, "compressed": compressed / 1e6}
