"""Lines of UTF-8 text files, one at a time, with errors that name file and line."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from tinybert.errors import UserError

LINE_LIMIT_BYTES = 16 * 2**20
BYTE_ORDER_MARK = "\ufeff"


def read_lines(path: str | Path, *, key: str) -> Iterator[tuple[int, str]]:
    """Yields (line number from 1, line without its end) of a UTF-8 file; `.gz` is unpacked on the way.

    Only "\\n" and "\\r\\n" end a line. UserError, which begins with the params key `key`, when the file cannot be
    read, is no sound gzip file, is not UTF-8, holds NUL bytes, or has a line above 16 MiB.
    """
    path = Path(path)
    open_file = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        with open_file(path, "rb") as handle:
            number = 0
            while raw := handle.readline(LINE_LIMIT_BYTES + 1):
                number += 1
                yield number, _decode(raw, f"{key}: {path}, line {number}")
    except FileNotFoundError:
        raise UserError(f"{key}: {path} does not exist; correct the path") from None
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UserError(f"{key}: {path} cannot be read ({reason}); replace the file or take it off the list") from None


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
