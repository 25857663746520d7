"""Atomic file writes, and the plain formats that stages exchange."""

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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from tinybert.pipeline.errors import UserError
from tinybert.pipeline.process import byte_bar

LINE_LIMIT_BYTES = 16 * 2**20
PARTIAL = ".partial"  # the ending of everything unfinished; git and DVC ignore it
FULL = (errno.ENOSPC, errno.EDQUOT)
UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR)
NO_TEXT = re.compile("[\0\ud800-\udfff]")  # NUL, and halves of surrogate pairs, which cannot be written


@contextmanager
def atomic_file(path: str | Path, mode: str = "w") -> Iterator[IO]:
    """Opens a temporary file beside `path` and renames it to `path` when the block ends without an error.

    Text is UTF-8 with "\\n" line ends. On an error nothing is left behind and an older `path` stays. Leftovers of a
    killed writer of `path` are removed. UserError if the disk is full, or the folder may not be written.
    """
    encoding, newline = (None, None) if "b" in mode else ("utf-8", "\n")
    with _temporary(Path(path)) as temporary, open(temporary, mode, encoding=encoding, newline=newline) as handle:
        yield handle


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yields an empty temporary folder beside `path`, which becomes `path` when the block ends without an error.

    An older folder at `path` is replaced; otherwise as `atomic_file`. A kill between removing the old folder
    and renaming the new one leaves neither, which loses nothing: DVC reruns a stage whose output is missing.
    """
    with _temporary(Path(path)) as temporary:
        temporary.mkdir()
        yield temporary


@contextmanager
def report_disk_error(place: str | Path) -> Iterator[None]:
    """Converts errors of full disks, permissions and files in the place of folders to a UserError that names the file.

    If the error of a full disk names none, `place` is named, as for temporary files. Errors inside a temporary folder
    are reported by the block that created it.
    """
    try:
        yield
    except Exception as error:  # safetensors and ONNX Runtime have error types of their own for it
        number, named = getattr(error, "errno", None), str(getattr(error, "filename", None) or "")
        if number in UNWRITABLE and named:
            fix = "change its permissions, or name another file"
            raise UserError(f"{place if PARTIAL in named else named}: {os.strerror(number)}; fix: {fix}") from error
        reasons = [os.strerror(full) for full in FULL if full == number or os.strerror(full) in str(error)]
        if not reasons or isinstance(error, UserError) or PARTIAL in str(place):
            raise
        where = place if PARTIAL in named else named or place
        raise UserError(f"{where}: {reasons[0]}; fix: free some space and run the command again") from error


@contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    """A free name beside `path`; what the block writes there becomes `path`, or is removed after an error.

    Another writer of `path` that is still running (its `dvc repro` alone was killed) fails when it renames its file.
    """
    with report_disk_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        for leftover in list(path.parent.glob(f".{glob.escape(path.name)}.????????{PARTIAL}")):
            doomed = _free_name(path)  # its owner must not find it half removed
            os.replace(leftover, doomed)
            _remove(doomed)
        temporary, older = _free_name(path), _free_name(path)
        try:
            yield temporary
            if path.is_dir():  # only files can be renamed over an older one
                os.replace(path, older)
            os.replace(temporary, path)
        except BaseException:
            if older.exists():
                os.replace(older, path)
            _remove(temporary)
            raise
        _remove(older)


def _free_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}{PARTIAL}")


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def write_file(path: str | Path, content: str | bytes | memoryview) -> None:
    """Writes a text or bytes as `atomic_file` does."""
    with atomic_file(path, "w" if isinstance(content, str) else "wb") as handle:
        handle.write(content)


def write_json(path: str | Path, value: Any) -> None:
    """Writes `value` as indented JSON in the order given; ValueError for NaN and infinity."""
    write_file(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: str | Path) -> Any:
    """Reads a JSON file; ValueError if it holds none."""
    return parse_json(Path(path).read_text(encoding="utf-8"))


def parse_json(text: str) -> Any:
    """The value of a JSON text; ValueError if it has none: NaN, infinity and endless nesting are no JSON."""

    def reject(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    try:
        return json.loads(text, parse_constant=reject)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def write_jsonl(path: str | Path, rows: Iterable[dict]) -> None:
    """Writes one JSON object a line; `rows` may be a stream of any length."""
    with atomic_file(path) as handle:
        handle.writelines(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)


def read_jsonl(path: str | Path) -> Iterator[dict]:
    """Yields the objects of a JSON-lines file one by one; UserError for a line without one."""
    with open(path, "rb") as handle:
        for number, line in enumerate(handle, start=1):
            found = None
            with suppress(ValueError):
                found = parse_json(line.decode("utf-8"))
            if not isinstance(found, dict):
                beginning = line[:40].decode("utf-8", errors="replace")
                raise UserError(f"{path}, line {number}: must be a JSON object (got {beginning!r})")
            yield found


def read_documents(path: str | Path, title: str) -> Iterator[dict]:
    """Yields the documents that an earlier stage wrote, with a progress bar; UserError if one has no text."""
    with byte_bar(title, Path(path).stat().st_size) as progress:
        for document in read_jsonl(path):
            text = document.get("text")
            if not isinstance(text, str) or NO_TEXT.search(text):
                raise UserError(f"{path}: a document has no text; fix: run the stage that wrote it again")
            progress.update(len(text.encode()))
            yield document


def read_lines(
    path: str | Path, *, key: str, on_read: Callable[[int], object] = lambda size_bytes: None
) -> Iterator[tuple[int, str]]:
    """Yields each line of a third-party UTF-8 text file, plain or `.gz`: its number from 1, and it without its end.

    Args:
        path: The file; only "\\n" and "\\r\\n" end a line.
        key: The params key that names the file; errors begin with it.
        on_read: Called with the bytes of the file, packed if it is, that were read since the last call.

    Raises:
        UserError: The file cannot be read or unpacked, is not UTF-8, holds NUL bytes, or has a line above 16 MiB.
    """
    is_packed = str(path).lower().endswith(".gz")
    try:
        with open(path, "rb") as file, gzip.open(file) if is_packed else file as handle:
            position = 0
            for number, raw in enumerate(iter(lambda: handle.readline(LINE_LIMIT_BYTES + 1), b""), start=1):
                on_read(file.tell() - position)
                position = file.tell()
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
        return raw.decode("utf-8").removeprefix("\ufeff").rstrip("\r\n")
    except UnicodeDecodeError as error:
        found = f"byte 0x{raw[error.start]:02x} at column {error.start + 1}"
        raise UserError(f"{where}: not UTF-8 ({found}); fix: iconv -f ENCODING -t utf-8 OLD > NEW") from None


def flatten(tree: dict[str, Any], separator: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the leaves of a nested mapping, with their keys joined by the separator."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flatten(value, separator, f"{prefix}{key}{separator}")
        else:
            yield f"{prefix}{key}", value


def printable(text: str) -> str:
    """The text with control characters, which a terminal would obey, as escapes."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def one_line(text: object) -> str:
    """The text of a value in one line: white space and control characters become single spaces."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())


def file_sizes_mb(path: str | Path) -> dict[str, float]:
    """The size of a file in MB (10^6 bytes): raw, and compressed as gzip does by default."""
    content = Path(path).read_bytes()
    return {"raw": len(content) / 1e6, "compressed": len(gzip.compress(content, 6, mtime=0)) / 1e6}
