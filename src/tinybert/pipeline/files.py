"""Files that appear whole or not at all, and the plain formats that stages exchange."""

import errno
import glob
import gzip
import json
import os
import re
import secrets
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tinybert.pipeline.errors import UserError

COMPRESSION_LEVEL = 6  # gzip's default
READ_BYTES = 2**20
LINE_LIMIT_BYTES = 16 * 2**20
PARTIAL = ".partial"  # the ending of everything unfinished; git and DVC ignore it
FULL = (errno.ENOSPC, errno.EDQUOT)
TEMPORARY = os.environ.get("TMPDIR", "/tmp")  # tempfile.gettempdir() fails on full disks
BYTE_ORDER_MARK = "\ufeff"
NO_TEXT = re.compile("[\0\ud800-\udfff]")  # NUL, and halves of surrogate pairs, which cannot be written


@contextmanager
def atomic_file(path: str | Path, mode: str = "w") -> Iterator[IO]:
    """Opens a temporary file beside `path` and renames it to `path` when the block ends without an error.

    Text is UTF-8 with "\\n" line ends. On an error nothing is left behind and an older `path` stays. What a killed
    writer of `path` left is removed.

    Raises:
        UserError: The disk is full.
    """
    path = Path(path)
    encoding, newline = (None, None) if "b" in mode else ("utf-8", "\n")
    with report_full_disk(path):
        temporary = _temporary(path)
        try:
            with open(temporary, mode, encoding=encoding, newline=newline) as handle:
                yield handle
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yields an empty temporary folder beside `path`, which becomes `path` when the block ends without an error.

    An older folder at `path` is replaced as a whole; otherwise as `atomic_file`. A kill between removing the old folder
    and renaming the new one leaves neither, which loses nothing: DVC reruns a stage whose output is missing.
    """
    path = Path(path)
    with report_full_disk(path):
        temporary = _temporary(path)
        try:
            temporary.mkdir()
            yield temporary
            _replace_folder(path, temporary)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


@contextmanager
def report_full_disk(place: str | Path) -> Iterator[None]:
    """Turns the error of a full disk in its block into a UserError, which names the system's file or else `place`.

    Errors inside a temporary folder are reported by the block that created it.
    """
    try:
        yield
    except Exception as error:  # safetensors and ONNX Runtime have error types of their own for it
        reasons = [os.strerror(number) for number in FULL if number == getattr(error, "errno", None)]
        reasons += [os.strerror(number) for number in FULL if os.strerror(number) in str(error)]
        if not reasons or isinstance(error, UserError) or PARTIAL in str(place):
            raise
        named = str(getattr(error, "filename", None) or place)
        where = place if PARTIAL in named else named
        raise UserError(f"{where}: {reasons[0]}; fix: free some space and run the command again") from error


def _temporary(path: Path) -> Path:
    """A free name beside `path`, in its folder, which is created; what killed writers of `path` left is removed.

    Another writer of `path` that is still running (its `dvc repro` alone was killed) fails when it renames its file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for leftover in list(path.parent.glob(f".{glob.escape(path.name)}.????????{PARTIAL}")):
        doomed = _free_name(path)  # its owner must not find it half removed
        os.replace(leftover, doomed)
        shutil.rmtree(doomed) if doomed.is_dir() else doomed.unlink()
    return _free_name(path)


def _free_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}{PARTIAL}")


def _replace_folder(path: Path, new: Path) -> None:
    older = _free_name(path)
    if path.exists():
        os.replace(path, older)
    try:
        os.replace(new, path)
    except OSError:
        if older.exists():
            os.replace(older, path)
        raise
    shutil.rmtree(older, ignore_errors=True)


def write_json(path: str | Path, value: Any) -> None:
    """Writes `value` as indented JSON in the order given; ValueError for NaN and infinity."""
    with atomic_file(path) as handle:
        json.dump(value, handle, indent=2, ensure_ascii=False, allow_nan=False)
        handle.write("\n")


def read_json(path: str | Path) -> Any:
    """Reads a JSON file; ValueError if it holds none, or NaN or infinity, which are no JSON."""
    return parse_json(Path(path).read_text(encoding="utf-8"))


def parse_json(text: str) -> Any:
    """The value of a JSON text; ValueError if it has none: NaN, infinity and endless nesting are no JSON."""
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def write_jsonl(path: str | Path, rows: Iterable[dict]) -> int:
    """Writes one JSON object a line and returns how many; `rows` may be a stream of any length."""
    count = 0
    with atomic_file(path) as handle:
        for row in rows:
            handle.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
            count += 1
    return count


def read_jsonl(path: str | Path) -> Iterator[dict]:
    """Yields the objects of a JSON-lines file one by one; UserError for a line without one."""
    with open(path, "rb") as handle:
        for number, line in enumerate(handle, start=1):
            try:
                found = parse_json(line.decode("utf-8"))
            except ValueError:
                found = None
            if not isinstance(found, dict):
                beginning = line[:40].decode("utf-8", errors="replace")
                raise UserError(f"{path}, line {number}: must be a JSON object (got {beginning!r})")
            yield found


def read_lines(
    path: str | Path, *, key: str, on_read: Callable[[int], object] = lambda size_bytes: None
) -> Iterator[tuple[int, str]]:
    """Yields the lines of a third-party UTF-8 text file, unpacking `.gz` on the way.

    Args:
        path: The file; only "\\n" and "\\r\\n" end a line.
        key: The params key that names the file; errors begin with it.
        on_read: Called with the bytes of the file, packed if it is, that were read since the last call.

    Yields:
        The line's number from 1, and the line without its end.

    Raises:
        UserError: The file cannot be read, is no sound gzip file, is not UTF-8, holds NUL bytes, or has a line above
            16 MiB.
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
        raise UserError(f"{key}: {path} does not exist; fix: correct the path") from None
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UserError(f"{key}: {path} cannot be read ({reason}); fix: replace the file") from None


def _decode(raw: bytes, where: str) -> str:
    if len(raw) > LINE_LIMIT_BYTES:
        raise UserError(f"{where}: longer than {LINE_LIMIT_BYTES // 2**20} MiB; fix: break the text into lines")
    if b"\0" in raw:
        raise UserError(f"{where}: holds NUL bytes; fix: save the file as plain UTF-8 text")
    try:
        return raw.decode("utf-8").removeprefix(BYTE_ORDER_MARK).rstrip("\r\n")
    except UnicodeDecodeError as error:
        found = f"byte 0x{raw[error.start]:02x} at column {error.start + 1}"
        raise UserError(f"{where}: not UTF-8 ({found}); fix: convert it, for example with iconv -t utf-8") from None


def printable(text: str) -> str:
    """The text with control characters, which a terminal would obey, as escapes."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def file_sizes_mb(path: str | Path) -> dict[str, float]:
    """The size of a file in MB (10^6 bytes): raw, and compressed as gzip does by default."""
    compressor = zlib.compressobj(COMPRESSION_LEVEL, wbits=31)  # 31: gzip format, time stamp 0
    compressed = 0
    with open(path, "rb") as handle:
        while chunk := handle.read(READ_BYTES):
            compressed += len(compressor.compress(chunk))
    compressed += len(compressor.flush())
    return {"raw": Path(path).stat().st_size / 1e6, "compressed": compressed / 1e6}
